//! Takes the readings that conditions and moving rates need.
//!
//! No background task is needed: a check that comes at least a tenth of a second after the last readings takes the next
//! ones before it is decided. Gates whose policies need no readings never enter this code.

use std::time::Duration;

use tidegate_core::Tick;

use super::charged::Keep;
use super::load::CountedAdmission;
use super::waits::{Waits, run_without_waiting};
use super::{Check, Gate, GateDecision, PlacesStanding};
use crate::policy::{PolicySet, SignalError, Source, SourceStanding};
use crate::switches::Switches;
use tidegate_limits::store::StoreError;

/// The numbers that the policies of a gate go by, see [`Gate::signals`].
#[derive(Clone, Copy, Debug)]
pub struct Signals<'g>(pub(super) &'g Gate);

impl Signals<'_> {
    /// Applies the present state of the switches to the policies at once, rather than within a tenth of a second. For
    /// callers that have just changed a switch.
    pub fn notice_switches(self) {
        self.0.notice_switches();
    }

    /// Reports the value of a signal that policies use, as in `when: signal NAME above 10`. It takes effect at once,
    /// and lasts until the next report or until the condition considers the value stale. Takes a short lock, and work
    /// for each condition of the policies.
    ///
    /// # Errors
    /// [`SignalError`] if no policy in force and no trigger uses the signal, or the value is not finite; nothing changes then.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let careful = Policy::new("careful", Limit::new(Quota::per_second(1).gcra()?, "1/s"))
    ///     .when("signal queue-length above 1000, until 800".parse()?);
    /// let gate = Gate::in_memory(PolicySet::new(vec![careful])?, 1000)?;
    /// let request = Descriptor::new();
    /// assert!(gate.check(&request).now()?.limits.is_empty(), "nobody has said how long the queue is");
    ///
    /// gate.signals().report("queue-length", 1200.0)?;
    /// assert!(gate.check(&request).now()?.allowed);
    /// assert!(!gate.check(&request).now()?.allowed);
    ///
    /// gate.signals().report("queue-length", 700.0)?;
    /// assert!(gate.check(&request).now()?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn report(self, name: &str, value: f64) -> Result<(), SignalError> {
        self.0.policies.load().report(name, value, self.0.time.now())?;
        self.0.trigger(&[(Source::Signal(name.into()), value)]);
        Ok(())
    }

    /// Returns the sources that the policies in force use, with their last readings.
    #[must_use]
    pub fn list(self) -> Vec<SourceStanding> {
        self.0.policies.load().sources(self.0.time.now())
    }

    /// Takes the readings that conditions and moving rates need, if any are due: at most ten times a second. Checks do so
    /// by themselves; this is for pages, metrics and logs that are to be right while no checks come. Reads the load of
    /// the machine, and where a condition is on another policy, the store of this process.
    pub fn read(self) {
        self.0.sense(&self.0.policies.load());
    }

    /// Counts work that begins as in flight, for conditions and moving rates on `in-flight`. For callers that settle
    /// what [`Gate::charge`] charged by themselves; admissions and tickets are counted without it. Call
    /// [`Signals::end_work`] once for each call. Costs one atomic addition.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::{Clock as _, ManualClock};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let careful = Policy::new("careful", Limit::new(Quota::per_second(1).gcra()?, "1/s"))
    ///     .when("in-flight above 1, until 0".parse()?);
    /// let clock = ManualClock::default();
    /// let gate = Gate::in_memory(PolicySet::new(vec![careful])?, 1000)?.with_clock(clock.clone());
    /// let request = Descriptor::new();
    /// assert!(gate.check(&request).now()?.limits.is_empty());
    ///
    /// gate.signals().begin_work();
    /// gate.signals().begin_work();
    /// clock.advance(Duration::from_millis(100));
    /// assert_eq!(gate.check(&request).now()?.limits.len(), 1, "two are in flight");
    ///
    /// gate.signals().end_work(Duration::from_millis(100));
    /// gate.signals().end_work(Duration::from_millis(100));
    /// clock.advance(Duration::from_millis(100));
    /// assert!(gate.check(&request).now()?.limits.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_work(self) {
        self.0.sensing.load.begin();
    }

    /// Counts the end of work that [`Signals::begin_work`] counted, and how long it took, for conditions and moving rates
    /// on `latency`. Costs three atomic additions.
    pub fn end_work(self, took: Duration) {
        self.0.end(&CountedAdmission { finished: true }, || took);
    }
}

impl Gate {
    /// Applies the present state of the switches to the policies.
    fn notice_switches(&self) {
        self.policies.load().sense(self.time.now(), |source| match source {
            Source::Switch(name) => self.levels_off(name),
            _ => None,
        });
    }

    fn levels_off(&self, name: &str) -> Option<f64> {
        self.sensing.switches.as_ref()?.levels_off(name).map(f64::from)
    }

    /// Tells the switches what was read, and the policies which switches that turned.
    fn trigger(&self, readings: &[(Source, f64)]) {
        if self.sensing.switches.as_ref().is_some_and(|switches| switches.take(readings)) {
            self.notice_switches();
        }
    }

    /// Takes the readings that the policies need, if any are due.
    pub(super) fn sense(&self, policies: &PolicySet) {
        let Some(sensed) = policies.sensed() else { return };
        let now = self.time.recent();
        if !sensed.is_due(now) {
            return;
        }
        let recent = self.sensing.load.recent(now);
        let mut machine = None;
        let triggers = self.sensing.switches.as_ref().is_some_and(Switches::have_triggers);
        let mut readings = Vec::new();
        policies.sense(now, |source| {
            let mut machine = || *machine.get_or_insert_with(|| self.sensing.machine());
            let percent = |thousandths: u16| f64::from(thousandths) / 10.0;
            let value = match source {
                Source::Cpu => machine().cpu.map(percent),
                Source::Memory => machine().memory.map(percent),
                Source::Load => machine().load.map(|hundredths| f64::from(hundredths) / 100.0),
                Source::InFlight => self.sensing.load.in_flight(now).map(|inside| inside as f64),
                Source::Latency => recent.latency,
                Source::Rate => recent.rate,
                Source::Policy(name) => self.share_in_use(policies, name, now),
                Source::Switch(name) => self.levels_off(name),
                // Signals are reported, not read.
                Source::Signal(_) => None,
            };
            if let (true, Some(value)) = (triggers, value) {
                readings.push((source.clone(), value));
            }
            value
        });
        self.trigger(&readings);
    }

    /// Decides under policies that lie in several stores, need readings, lower priorities, charge what they
    /// refuse, or block keys.
    #[inline(never)]
    pub(super) fn decide_otherwise<K: Keep>(
        &self,
        mut decision: GateDecision,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        self.sense(&decision.policies);
        let demoted;
        let check = if decision.policies.demotes() {
            demoted = run_without_waiting(self.demoted(check, &decision.policies, Waits::No));
            decision.priority = demoted.priority;
            &demoted
        } else {
            check
        };
        let stores_blocks = self.stores_blocks(&decision.policies);
        if stores_blocks {
            run_without_waiting(self.learn_blocks(check, &decision.policies, Waits::No));
        }
        let mut decided = if self.routes.are_plain(decision.policies.shares().with_prepared(false)) {
            self.decide_plain(check, &mut decision, keep).map(|()| decision)
        } else {
            self.decide_routed(decision, check, keep)
        };
        if let Ok(decision) = &mut decided
            && let allowed = decision.allowed
            && decision.leaves_uncharged(check, allowed)
        {
            run_without_waiting(self.charge_anyway(check, decision, allowed, Waits::No));
        }
        if let Ok(decision) = &mut decided
            && stores_blocks
            && !decision.allowed
        {
            run_without_waiting(self.keep_blocks(check, decision, Waits::No));
        }
        decided.inspect(|decision| self.count(check, decision))
    }

    /// Counts a request that was let through.
    pub(super) fn count(&self, check: &Check<'_, '_>, decision: &GateDecision) {
        if decision.allowed && !check.peek && decision.policies.sensed().is_some() {
            self.sensing.load.admit();
        }
    }

    /// Counts an admission that begins; `None` if no policy needs the count.
    pub(super) fn begin(&self, decision: &GateDecision) -> Option<CountedAdmission> {
        decision.policies.sensed()?;
        Some(self.sensing.load.begin())
    }

    /// Counts a ticket that is created, if policies need the count.
    #[cfg(feature = "ticket")]
    pub(super) fn open_ticket(&self, made: Tick, expires: Tick) {
        if self.reads(&Source::InFlight) {
            self.sensing.load.open_ticket(made, expires);
        }
    }

    /// Reports whether policies go by a number.
    #[cfg(feature = "ticket")]
    pub(super) fn reads(&self, source: &Source) -> bool {
        self.policies.load().sensed().is_some_and(|sensed| sensed.reads(source))
    }

    /// Counts the end of a ticket: no work is done under it any more.
    #[cfg(feature = "ticket")]
    pub(super) fn close_ticket(&self, made: Tick, expires: Tick) {
        if self.reads(&Source::InFlight) {
            self.sensing.load.close_ticket(made, expires);
        }
    }

    /// Counts the duration of work that was done under a ticket, if policies need it.
    #[cfg(feature = "ticket")]
    pub(super) fn took(&self, span: Duration) {
        if self.policies.load().sensed().is_some() {
            self.sensing.load.finish(span);
        }
    }

    /// Counts the end of an admission; `took` returns its duration.
    pub(super) fn end(&self, counted: &CountedAdmission, took: impl FnOnce() -> Duration) {
        self.sensing.load.end(counted, took);
    }

    /// Returns how much of the limit of a policy without `by` is in use, in percent; of several limits the highest
    /// share. `None` if an engine would have to be awaited.
    fn share_in_use(&self, policies: &PolicySet, name: &str, now: Tick) -> Option<f64> {
        let (place, _) = policies.find(name)?;
        let left = |one: &PlacesStanding| one.standing.remaining as f64 / one.standing.limit.max(1) as f64;
        let standings = self.standings(policies, place, now)?;
        standings.iter().map(|one| (1.0 - left(one)) * 100.0).reduce(f64::max).map(|fullest| fullest.max(0.0))
    }
}
