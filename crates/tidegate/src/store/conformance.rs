//! The law that every store passes, remote ones included.
//!
//! [`run`] takes a way to make an empty store and panics, naming the law and the seed, where the store breaks one. Most laws
//! are one differential trace: random steps on the store and on [`PlainStore`], whose answers must be equal line by line. Steps go
//! one by one and many at once ([`Store::settle_each`]), by the caller's clock, a fresh one and the engine's.
//!
//! Answers that come later are awaited on the calling thread, so a store that needs a runtime is made with one of its own.

mod laws;
mod random;
mod trace;

pub use random::Random;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::concurrency::Concurrency;
use tidegate_core::rate::{
    Bandwidth, CalendarUnit, ColdFactor, GuavaBursty, GuavaWarming, TokenBucket, UberPacer, XTime,
};
use tidegate_core::{Quota, Rate, Tick};

use super::step::{DecidedBy, Settled, Step, StepClock};
use super::{Answer, Home, PlainStore, Settling, Store};
use crate::block_on::block_on;
use crate::clock::{Clock as _, ManualClock};

/// Runs the whole suite against stores that `make` returns empty.
///
/// `quotas` are the limits to try; [`quotas`] gives one of every algorithm. `steps` is the length of each of five random traces: a
/// thousand for an engine over the network, a hundred thousand in memory. Where the store has a clock of its own
/// ([`super::Caps::own_clock`]), its answers are held to what a plain map says at the ticks they name; [`run_by_clock`] also holds the ticks to
/// the clock.
///
/// # Panics
/// When a law is broken; the message names law, seed and step.
///
/// # Examples
/// A store that counts its steps passes if the one behind it does:
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::store::{Home, Occupancy, PlainStore, Settled, Settling, Step, Store, conformance};
///
/// #[derive(Debug, Default)]
/// struct Counting(PlainStore, AtomicU64);
///
/// impl Store for Counting {
///     fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         self.0.settle_into(step, out)
///     }
///
///     fn occupancy(&self) -> Occupancy {
///         self.0.occupancy()
///     }
/// }
///
/// conformance::run(Counting::default, &conformance::quotas(), 200);
/// ```
pub fn run<S: Store>(make: impl Fn() -> S, quotas: &[Arc<Quota>], steps: u64) {
    suite(|_| make(), None, quotas, steps);
}

/// Runs the suite against stores whose own clock is the one that `make` is handed: it runs fast, slow and backwards.
///
/// # Panics
/// As [`run`].
pub fn run_by_clock<S: Store>(make: impl Fn(ManualClock) -> S, quotas: &[Arc<Quota>], steps: u64) {
    let clock = ManualClock::default();
    suite(|clock| make(clock.clone()), Some(&clock), quotas, steps);
}

fn suite<S: Store>(
    make: impl Fn(&ManualClock) -> S,
    clock: Option<&ManualClock>,
    quotas: &[Arc<Quota>],
    steps: u64,
) {
    let unused = ManualClock::default();
    let make = || make(clock.unwrap_or(&unused));
    laws::run(&make, quotas);
    for seed in 1..=5 {
        let store = make();
        let mut subject = Subject::new(&store, clock);
        match seed {
            1..=3 => trace::one_by_one(&mut subject, quotas, seed, steps),
            _ => trace::many_at_once(&mut subject, quotas, seed, steps),
        }
    }
}

/// Returns one limit of every algorithm there is, awkward rates among them.
///
/// # Panics
/// Never: the parameters are constants that the tests build.
#[must_use]
pub fn quotas() -> Vec<Arc<Quota>> {
    let all = [
        Quota::per_second(7).burst(5).gcra(),
        Quota::per_second(999_999_937).burst(1000).gcra(),
        Quota::per_day(3).gcra(),
        Quota::per_second(5).fixed_window(),
        Quota::per_day(5).calendar_window(CalendarUnit::Day, "Asia/Shanghai"),
        Quota::per_second(6).sliding_window(7),
        Quota::per_second(6).sliding_counter(),
        Quota::per_second(6).sliding_log(),
        Quota::per_second(7).burst(4).token_bucket(),
        Quota::per_second(3).burst(9).interval_bucket(),
        Quota::per_second(7).burst(4).leaky_bucket(),
        Quota::per_second(20).burst(2).leaky_queue(8),
        Quota::per_second(20).warm_up(Duration::from_secs(2), ColdFactor::THREE),
        XTime::new(3.7, 6).map(Quota::from),
        Rate::new(30, Duration::from_secs(1)).and_then(|rate| UberPacer::new(rate, 4)).map(Quota::from),
        GuavaBursty::new(5.5, 1.0).map(Quota::from),
        GuavaWarming::new(9.0, Duration::from_secs(1), 3.0).map(Quota::from),
        // Starts below the cost of some asks, so that denied strangers have to be kept.
        Rate::new(3, Duration::from_secs(1))
            .and_then(|rate| Bandwidth::new(rate, 8)?.initial(1))
            .map(|bandwidth| TokenBucket::new(bandwidth).into()),
        Quota::concurrency(5, Duration::from_secs(2)),
        Concurrency::new(7).map(Quota::from),
    ];
    all.into_iter().map(|quota| Arc::new(quota.expect("constant parameters in range"))).collect()
}

/// How far behind the latest tick a clock is at least that a store may follow.
const FAR_BEHIND: Duration = Duration::from_secs(10);

/// A store beside its plain twin.
struct Subject<'a> {
    store: &'a dyn Store,
    /// The store's own clock, where the suite has it in hand.
    clock: Option<&'a ManualClock>,
    plain: PlainStore,
    /// The latest tick at which the store has decided.
    latest: Tick,
}

impl<'a> Subject<'a> {
    fn new(store: &'a dyn Store, clock: Option<&'a ManualClock>) -> Self {
        assert_eq!(store.caps(), store.caps(), "law: a store says the same of itself each time");
        assert_eq!(store.home(), store.home(), "law: a store says the same of itself each time");
        Self { store, clock, plain: PlainStore::default(), latest: Tick::EPOCH }
    }

    /// Holds an answer to the plain map's, and returns that.
    fn judge(&mut self, step: &Step<'_>, ours: Answer, told: &str) -> Answer {
        let at = match &ours {
            Ok(settled) => {
                self.judge_at(step, settled, told);
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
        assert_eq!(alike(ours), alike(theirs.clone()), "law: equal to the plain map; {told}, {step:?}");
        theirs
    }

    /// Holds the tick and the decider of an answer to what the step and the store say.
    fn judge_at(&self, step: &Step<'_>, settled: &Settled, told: &str) {
        let local = matches!(self.store.home(), Home::Process { .. });
        assert_eq!(
            settled.by == DecidedBy::Local,
            local,
            "law: an answer says whether this process decided it; {told}, {step:?}"
        );
        // A clock that is far behind may be followed, so that one which was far ahead for a moment does not stop time.
        let held = |tick: Tick| {
            let behind = self.latest.since(tick);
            settled.at == tick.max(self.latest) || behind > FAR_BEHIND && settled.at > self.latest
        };
        let in_time = match step.clock {
            StepClock::Caller => held(step.now),
            // What was permitted may have been by the older tick; a refusal is by the fresh one.
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
            "law: decided by the clock that the step names, which does not step back; {told}, at {:?} after {:?}, {step:?}",
            settled.at, self.latest
        );
    }
}

/// Settles a step, and waits where the store may wait.
fn settle(store: &dyn Store, step: &Step<'_>) -> Answer {
    let mut settled = Settled::default();
    match store.settle_into(step, &mut settled) {
        Settling::Done(done) => done.map(|()| settled),
        Settling::Later(later) => {
            assert!(store.caps().may_wait, "law: only a store that says so answers later");
            block_on(later)
        }
    }
}
