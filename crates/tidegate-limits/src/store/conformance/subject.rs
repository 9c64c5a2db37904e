//! Runs the store under test and a plain map on the same steps, and compares their answers.

use std::time::Duration;

use tidegate_core::Tick;

use crate::block_on::block_on;
use crate::clock::{Clock as _, ManualClock};
use crate::store::step::{DecidedBy, Settled, Step, StepClock};
use crate::store::{Answer, Home, PlainStore, Settling, Store};

/// A store may follow a clock that is at least this far behind the latest tick.
const FAR_BEHIND: Duration = Duration::from_secs(10);

/// A store under test, and a plain map that gets the same steps.
pub(super) struct Subject<'a> {
    pub(super) store: &'a dyn Store,
    /// The store's own clock, if the suite controls it.
    pub(super) clock: Option<&'a ManualClock>,
    pub(super) plain: PlainStore,
    /// The latest tick at which the store has decided.
    pub(super) latest: Tick,
}

impl<'a> Subject<'a> {
    pub(super) fn new(store: &'a dyn Store, clock: Option<&'a ManualClock>) -> Self {
        assert_eq!(store.caps(), store.caps(), "law: a store says the same of itself each time");
        assert_eq!(store.home(), store.home(), "law: a store says the same of itself each time");
        Self { store, clock, plain: PlainStore::default(), latest: Tick::EPOCH }
    }

    /// Checks that an answer equals the plain map's, and returns the plain map's.
    pub(super) fn judge(&mut self, step: &Step<'_>, ours: Answer, context: &str) -> Answer {
        let at = match &ours {
            Ok(settled) => {
                self.judge_at(step, settled, context);
                self.latest = settled.at;
                settled.at
            }
            Err(_) => step.now,
        };
        let theirs = self.plain.blocking_settle(&Step { now: at, clock: StepClock::Caller, ..*step });
        let alike = |answer: Answer| {
            answer.map(|settled| {
                let mut settled = Settled { by: DecidedBy::Local, ..settled };
                if !step.receipts {
                    settled.lines.iter_mut().for_each(|line| line.receipt = None);
                }
                settled
            })
        };
        assert_eq!(alike(ours), alike(theirs.clone()), "law: equal to the plain map; {context}, {step:?}");
        theirs
    }

    /// Checks that an answer was decided at the tick, and by the kind of store, that the step and the store name.
    pub(super) fn judge_at(&self, step: &Step<'_>, settled: &Settled, context: &str) {
        let local = matches!(self.store.home(), Home::Process { .. });
        assert_eq!(
            settled.by == DecidedBy::Local,
            local,
            "law: an answer says whether this process decided it; {context}, {step:?}"
        );
        // A store may follow a clock that is far behind, so that a clock that was far ahead for a moment does not stop
        // time.
        let held = |tick: Tick| {
            let behind = self.latest.since(tick);
            settled.at == tick.max(self.latest) || behind > FAR_BEHIND && settled.at > self.latest
        };
        let in_time = match step.clock {
            StepClock::Caller => held(step.now),
            // A permission may be by the older tick; a refusal is by the fresh one.
            StepClock::Fresh(clock) => {
                let fresh = clock.now().max(step.now);
                held(fresh) || held(step.now) && (settled.allowed || settled.at >= fresh)
            }
            StepClock::Engine if !self.store.caps().own_clock => held(step.now),
            StepClock::Engine => match self.clock {
                Some(clock) => held(clock.now()),
                None => settled.at >= self.latest,
            },
        };
        assert!(
            in_time,
            "law: decided by the clock that the step names, which does not step back; {context}, at {:?} after {:?}, {step:?}",
            settled.at, self.latest
        );
    }
}

/// Settles a step, and waits if the store answers later.
pub(super) fn settle(store: &dyn Store, step: &Step<'_>) -> Answer {
    let mut settled = Settled::default();
    match store.settle_into(step, &mut settled) {
        Settling::Done(done) => done.map(|()| settled),
        Settling::Later(later) => {
            assert!(store.caps().may_wait, "law: only a store that says so answers later");
            block_on(later)
        }
    }
}
