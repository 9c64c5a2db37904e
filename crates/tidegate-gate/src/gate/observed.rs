//! Tells an observer what a gate decides and settles, and what that changes of breakers and moving limits.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::decision::Ruling;
use tidegate_core::{Decision, Tick};

use super::Gate;
use super::endings::{Fate, Finished, PartEndings};
use crate::policy::{Plan, head_of_key};
use tidegate_limits::observer::{AnyEvent, Event, KeyDigest, LimitMoved, Observer};
use tidegate_limits::store::{ChargeAnswer, Executed, GuardChange, Moved, Op};

/// The observer of a gate, if it has one.
#[derive(Default)]
pub(super) struct Observed(Option<Box<Observing>>);

struct Observing {
    observer: Arc<dyn Observer>,
    digests: RandomState,
}

impl Observed {
    pub(super) fn by(observer: Arc<dyn Observer>) -> Self {
        Self(Some(Box::new(Observing::new(observer))))
    }
}

impl Observing {
    fn new(observer: Arc<dyn Observer>) -> Self {
        Self { observer, digests: RandomState::new() }
    }

    /// Tells the decisions of a request.
    #[cold]
    #[inline(never)]
    fn decided<'s>(
        &self,
        plan: &Plan<'_>,
        at: Tick,
        allowed: bool,
        charge_answers: impl Iterator<Item = Option<&'s ChargeAnswer>>,
    ) {
        for (line, charge_answer) in plan.lines.iter().zip(charge_answers) {
            let Some(ChargeAnswer { decision, .. }) = charge_answer else { continue };
            // Of a refused request nothing was charged, so a limit that would have allowed it has decided nothing.
            if !allowed && decision.is_allowed() {
                continue;
            }
            let Some((policy, mut event)) = self.event(&plan.keys[line.key.clone()], at, *decision) else {
                continue;
            };
            (event.cost, event.max_wait, event.shadow) = (line.cost, line.max_wait, !line.binding);
            self.observer.on_named(policy, AnyEvent::Decision(&event));
        }
    }

    /// Tells a change of a guard.
    #[cold]
    #[inline(never)]
    fn moved(&self, Moved { key, change }: &Moved) {
        let Some(head) = head_of_key(key) else { return };
        let digest = self.digest(key, head.has_values);
        let told = match change {
            GuardChange::Breaker(change) => match digest {
                Some(digest) => AnyEvent::KeyChange(change, digest),
                None => AnyEvent::Change(change),
            },
            GuardChange::Limit { at, from, to } => {
                let moved = LimitMoved::new(*at, *from, *to);
                return self.observer.on_named(head.policy, AnyEvent::Limit(&moved));
            }
        };
        self.observer.on_named(head.policy, told);
    }

    /// Returns the name of a key's policy, and an event of the limit that the key belongs to, at a cost of 1; `None` if the
    /// bytes are no key of a policy.
    fn event<'k>(&self, key: &'k [u8], at: Tick, decision: Decision) -> Option<(&'k str, Event)> {
        let head = head_of_key(key)?;
        let event = Event::at_once(at, decision, head.limit, self.digest(key, head.has_values));
        Some((head.policy, event))
    }

    fn tell(&self, policy: &str, event: AnyEvent<'_>) {
        self.observer.on_named(policy, event);
    }

    fn digest(&self, key: &[u8], has_values: bool) -> Option<KeyDigest> {
        has_values.then(|| KeyDigest(self.digests.hash_one(key)))
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map(|observing| &observing.observer).fmt(f)
    }
}

impl Gate {
    /// Reports whether the gate has an observer, who wants to know what steps change.
    #[inline]
    pub(super) const fn is_observed(&self) -> bool {
        self.observed.0.is_some()
    }

    /// Tells the decisions and the changes of a step that a store has executed.
    #[inline]
    pub(super) fn tell_executed(&self, op: Op<'_>, plan: &Plan<'_>, executed: &mut Executed) {
        if self.is_observed() {
            self.tell_decided(op, plan, executed.at, executed.allowed, executed.lines.iter().map(Some));
            self.tell_moved(&mut executed.moved);
        }
    }

    /// Tells the decisions of a request.
    #[inline]
    pub(super) fn tell_decided<'s>(
        &self,
        op: Op<'_>,
        plan: &Plan<'_>,
        at: Tick,
        allowed: bool,
        charge_answers: impl Iterator<Item = Option<&'s ChargeAnswer>>,
    ) {
        if let (Some(observing), Op::Take) = (&self.observed.0, op) {
            observing.decided(plan, at, allowed, charge_answers);
        }
    }

    /// Tells what a step has changed of guards.
    #[inline]
    pub(super) fn tell_moved(&self, moved: &mut Vec<Moved>) {
        if let Some(observing) = &self.observed.0 {
            moved.drain(..).for_each(|moved| observing.moved(&moved));
        }
    }

    /// Tells how charges of limits have ended.
    #[inline]
    pub(super) fn tell_finished(&self, part: &PartEndings<'_>, finished: &Finished<'_>, at: Tick) {
        if let Some(observing) = &self.observed.0 {
            tell_each(observing, part, finished, at);
        }
    }
}

/// Tells how the charges of a step have ended.
#[cold]
#[inline(never)]
fn tell_each(observing: &Observing, part: &PartEndings<'_>, finished: &Finished<'_>, at: Tick) {
    for (charge, settled) in part.each(finished) {
        let decision =
            Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: settled.standing };
        let Some((policy, mut event)) = observing.event(charge.key, at, decision) else { continue };
        event.cost = settled.charged;
        let told = match settled.fate {
            // The guard's own changes are told.
            _ if charge.quota.is_guard() => continue,
            Fate::Returned(_) if settled.used == 0 => AnyEvent::Cancel(&event),
            Fate::Returned(_) | Fate::Owed(_) => AnyEvent::Settle(&event, settled.used),
            Fate::Forgotten | Fate::Kept => continue,
        };
        observing.tell(policy, told);
    }
}
