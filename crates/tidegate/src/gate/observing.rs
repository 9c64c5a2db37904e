//! The observer of a gate: what it is told of a policy, found by the key of a charge.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Decision, Tick};

use crate::observer::{AnyEvent, Event, KeyDigest, LimitMoved, Observer};
use crate::policy::{Plan, head_of_key};
use crate::store::{GuardChange, Moved, Settlement};

/// The observer of a gate, if it has one.
#[derive(Default)]
pub(super) struct Observed(pub(super) Option<Box<Observing>>);

pub(super) struct Observing {
    observer: Arc<dyn Observer>,
    digests: RandomState,
}

impl Observing {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { observer, digests: RandomState::new() }
    }

    /// Tells the decisions of a request.
    #[cold]
    #[inline(never)]
    pub(super) fn decided<'s>(
        &self,
        plan: &Plan<'_>,
        (at, allowed): (Tick, bool),
        settlements: impl Iterator<Item = Option<&'s Settlement>>,
    ) {
        for (line, settlement) in plan.lines.iter().zip(settlements) {
            let Some(Settlement { decision, .. }) = settlement else { continue };
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
    pub(super) fn moved(&self, Moved { key, change }: &Moved) {
        let Some(head) = head_of_key(key) else { return };
        let digest = self.digest(key, head.has_values);
        let told = match change {
            GuardChange::Breaker(change) => match digest {
                Some(digest) => AnyEvent::KeyChange(change, digest),
                None => AnyEvent::Change(change),
            },
            GuardChange::Limit { at, from, to } => {
                let moved = LimitMoved { at: *at, from: *from, to: *to };
                return self.observer.on_named(head.policy, AnyEvent::Limit(&moved));
            }
        };
        self.observer.on_named(head.policy, told);
    }

    /// Returns the name of a key's policy, and an event of the limit that the key belongs to, at a cost of 1; `None` if the
    /// bytes are no key of a policy.
    pub(super) fn event<'k>(&self, key: &'k [u8], at: Tick, decision: Decision) -> Option<(&'k str, Event)> {
        let head = head_of_key(key)?;
        let event = Event {
            at,
            cost: Cost::ONE,
            max_wait: Duration::ZERO,
            decision,
            binding: head.limit,
            key: self.digest(key, head.has_values),
            shadow: false,
        };
        Some((head.policy, event))
    }

    pub(super) fn tell(&self, policy: &str, event: AnyEvent<'_>) {
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
