//! The numbers that conditions and moving rates go by: where a gate reads them.
//!
//! Nothing runs for them: a check that comes a tenth of a second after the last readings takes the next ones, before it is decided. Gates
//! whose policies go by no such number never come here.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::time::nanos;

use super::charged::Keep;
use super::{Check, Gate, GateDecision};
use crate::policy::{PolicySet, SignalError, Source, SourceStanding};
use crate::signals::{Reading, Watch};
use crate::store::{Op, Settled, Settling, Step, StepClock, StoreError};

/// Over how long rates and latencies are taken.
const WINDOW: Duration = Duration::from_secs(1);

/// What a gate reads.
#[derive(Default)]
pub(super) struct Sensing {
    machine: Option<Arc<dyn Fn() -> Reading + Send + Sync>>,
    /// Started with the first check under policies that ask for it; `None` inside where the system does not tell.
    watch: OnceLock<Option<Watch>>,
    load: Load,
}

/// What a gate lets through.
#[derive(Debug, Default)]
struct Load {
    admitted: AtomicU64,
    begun: AtomicU64,
    /// Admissions that ended, however.
    ended: AtomicU64,
    /// Those of them that were finished, and how long they took in all.
    finished: AtomicU64,
    spent: AtomicU64,
    /// Earlier counts, the oldest first: at most one for each tenth of a second of the window, and one before it.
    history: Mutex<VecDeque<Counts>>,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    at: Tick,
    admitted: u64,
    finished: u64,
    spent: u64,
}

/// What a gate let through lately.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    rate: Option<f64>,
    latency: Option<f64>,
}

impl Gate {
    /// Replaces where the shares of the machine that are in use come from, for policies that go by them: from `read`, which is called up to
    /// ten times a second, by a check, and should return at once. Otherwise they are those of [`Watch`], whose thread starts with the first
    /// check under such policies.
    #[must_use]
    pub fn with_machine(mut self, read: impl Fn() -> Reading + Send + Sync + 'static) -> Self {
        self.sensing.machine = Some(Arc::new(read));
        self
    }

    /// Tells the value of a signal that policies go by: `when: signal NAME above 10`. What follows of it holds from now on, until the next
    /// report, or until the condition counts the value as too old. A short lock, and a step for each condition of the policies.
    ///
    /// # Errors
    /// [`SignalError`] where no policy in force goes by that name, or the value is not finite; nothing is changed then.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::Limit;
    /// use tidegate::{Descriptor, Gate, Policy, PolicySet, Quota};
    ///
    /// let careful = Policy::new("careful", Limit::new(Quota::per_second(1).gcra()?, "1/s"))
    ///     .when("signal queue-length above 1000, until 800".parse()?);
    /// let gate = Gate::in_memory(PolicySet::new(vec![careful])?, 1000)?;
    /// let request = Descriptor::new();
    /// assert!(gate.check(&request)?.limits.is_empty(), "nobody has said how long the queue is");
    ///
    /// gate.report_signal("queue-length", 1200.0)?;
    /// assert!(gate.check(&request)?.allowed);
    /// assert!(!gate.check(&request)?.allowed);
    ///
    /// gate.report_signal("queue-length", 700.0)?;
    /// assert!(gate.check(&request)?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn report_signal(&self, name: &str, value: f64) -> Result<(), SignalError> {
        self.policies.load().report(name, value, self.time.now())
    }

    /// Returns the numbers that the policies in force go by, as they were read last.
    #[must_use]
    pub fn sources(&self) -> Vec<SourceStanding> {
        self.policies.load().sources(self.time.now())
    }

    /// Takes the readings that policies go by, if they go by any and it is time.
    pub(super) fn sense(&self, policies: &PolicySet) {
        let Some(sensed) = policies.sensed() else { return };
        let now = self.time.recent();
        if !sensed.is_due(now) {
            return;
        }
        let lately = self.sensing.load.lately(now);
        let mut machine = None;
        policies.sense(now, |source| {
            let mut machine = || *machine.get_or_insert_with(|| self.sensing.machine());
            let percent = |thousandths: u16| f64::from(thousandths) / 10.0;
            match source {
                Source::Cpu => machine().cpu.map(percent),
                Source::Memory => machine().memory.map(percent),
                Source::Load => machine().load.map(|hundredths| f64::from(hundredths) / 100.0),
                Source::InFlight => Some(self.sensing.load.in_flight() as f64),
                Source::Latency => lately.latency,
                Source::Rate => lately.rate,
                Source::Policy(name) => self.share_in_use(policies, name, now),
                // Reported, not read.
                Source::Signal(_) => None,
            }
        });
    }

    /// Decides under policies that lie in several stores, or that go by numbers which have to be read.
    #[inline(never)]
    pub(super) fn decide_otherwise<K: Keep>(
        &self,
        mut decision: GateDecision,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        self.sense(&decision.policies);
        let decided = if self.routes.are_plain(decision.policies.shares().with_sensed(false)) {
            self.decide_plain(check, &mut decision, keep).map(|()| decision)
        } else {
            self.decide_routed(decision, check, keep)
        };
        decided.inspect(|decision| self.count(check, decision))
    }

    /// Counts a request that was let through.
    pub(super) fn count(&self, check: &Check<'_, '_>, decision: &GateDecision) {
        if decision.allowed && !check.peek && decision.policies.sensed().is_some() {
            // Relaxed, here and below: counts that order nothing.
            self.sensing.load.admitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an admission that begins; `None` where nothing goes by it.
    pub(super) fn begin(&self, decision: &GateDecision) -> Option<Begun> {
        decision.policies.sensed()?;
        self.sensing.load.begun.fetch_add(1, Ordering::Relaxed);
        Some(Begun { finished: false })
    }

    /// Counts its end, which was `took` later.
    pub(super) fn end(&self, begun: &Begun, took: impl FnOnce() -> Duration) {
        let load = &self.sensing.load;
        load.ended.fetch_add(1, Ordering::Relaxed);
        if begun.finished {
            load.spent.fetch_add(nanos(took()), Ordering::Relaxed);
            load.finished.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how much of the limit of a policy without `by` is in use, in percent: of its fullest limit. `None` where an engine would
    /// have to be awaited.
    fn share_in_use(&self, policies: &PolicySet, name: &str, now: Tick) -> Option<f64> {
        let (place, _) = policies.find(name)?;
        let plan = policies.plan_of_one_key(place);
        let mut fullest: Option<f64> = None;
        for line in &plan.lines {
            let store = self.routes.of(line.share).ok()?;
            let charge = plan.charge(line);
            let tag = self.routes.tag(store, charge.key);
            let charges = std::slice::from_ref(&charge);
            let step = Step { now, clock: StepClock::Engine, tag, receipts: false, op: Op::Peek, charges };
            let mut settled = Settled::default();
            let Settling::Done(Ok(())) = self.routes.store(store).settle_into(&step, &mut settled) else {
                return None;
            };
            let standing = settled.lines.first()?.decision.standing;
            let left = standing.remaining as f64 / standing.limit.max(1) as f64;
            fullest = Some(fullest.unwrap_or(0.0).max((1.0 - left) * 100.0));
        }
        fullest
    }
}

/// An admission that is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Whether its work was done, so that it says how long such work takes.
    pub(super) finished: bool,
}

impl Sensing {
    fn machine(&self) -> Reading {
        match &self.machine {
            Some(read) => read(),
            None => {
                let watch = self.watch.get_or_init(|| Watch::start().ok());
                watch.as_ref().map(Watch::reading).unwrap_or_default()
            }
        }
    }
}

impl Load {
    fn in_flight(&self) -> u64 {
        // Ends first: of an admission that comes and goes between the two, the end is not counted without its beginning.
        let ended = self.ended.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed).saturating_sub(ended)
    }

    /// Returns what went through within the window before now.
    fn lately(&self, now: Tick) -> Lately {
        let counts = Counts {
            at: now,
            admitted: self.admitted.load(Ordering::Relaxed),
            finished: self.finished.load(Ordering::Relaxed),
            spent: self.spent.load(Ordering::Relaxed),
        };
        let mut history = self.history.lock();
        history.push_back(counts);
        // The first that stays is the last one from before the window, or from its edge.
        while history.len() > 2 && now.since(history[1].at) >= WINDOW {
            history.pop_front();
        }
        let Some(before) = history.front().filter(|before| before.at < now) else { return Lately::default() };
        let passed = now.since(before.at).as_secs_f64();
        let finished = counts.finished.saturating_sub(before.finished);
        let spent = counts.spent.saturating_sub(before.spent);
        Lately {
            // A window that is not full yet says what it would hold if nothing followed.
            rate: Some(counts.admitted.saturating_sub(before.admitted) as f64 / passed.max(WINDOW.as_secs_f64())),
            latency: (finished > 0).then(|| spent as f64 / finished as f64 / 1e6),
        }
    }
}

impl fmt::Debug for Sensing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sensing").field("watch", &self.watch).field("load", &self.load).finish_non_exhaustive()
    }
}
