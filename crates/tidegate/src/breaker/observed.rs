//! What observers are told of breakers that a store holds, one for each key.
//!
//! A store settles a breaker without a word of what changed. So where somebody listens, the state is looked at before, and the same step is
//! taken once more on a copy, which tells. A lock keeps other calls from coming between the two.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::breaker::{Change, CircuitBreaker, CircuitBreakerState};
use tidegate_core::{Ask, Cost, Tick};

use crate::observer::{KeyDigest, Observer};
use crate::store::{Ending, Handling, Op, Settled};
use crate::sync::Mutex;

pub(super) struct Observed {
    observer: Arc<dyn Observer>,
    digests: RandomState,
    /// Never held while an observer is called.
    turn: Mutex<()>,
}

impl Observed {
    pub(super) fn by(observer: Arc<dyn Observer>) -> Self {
        Self { observer, digests: RandomState::new(), turn: Mutex::new(()) }
    }

    /// Returns the same observer for an empty breaker.
    pub(super) fn again(&self) -> Self {
        Self::by(Arc::clone(&self.observer))
    }

    /// Settles a step by `settle`, and tells what it changed.
    pub(super) fn settle(
        &self,
        law: &CircuitBreaker,
        (now, key, op): (Tick, &[u8], Op<'_>),
        settle: impl Fn(Op<'_>) -> Settled,
    ) -> Settled {
        let turn = self.turn.lock();
        let before = match op {
            Op::Take | Op::Draw | Op::Finish(_) | Op::Breaker(Handling::Force(_) | Handling::Release) => {
                settle(Op::Breaker(Handling::Look)).breaker
            }
            Op::Peek | Op::Reset | Op::Breaker(Handling::Look) => None,
        };
        let settled = settle(op);
        drop(turn);
        // A refusal changes nothing: what time has brought about meanwhile is told by the next one who enters.
        if let Some(before) = before.filter(|_| settled.allowed) {
            let key = KeyDigest(self.digests.hash_one(key));
            let changes = changes(law, before.state, now, op);
            changes.iter().for_each(|change| self.observer.on_key_change(change, key));
        }
        settled
    }
}

/// Takes a step once more, and returns what changes by it.
fn changes(
    law: &CircuitBreaker,
    mut state: CircuitBreakerState,
    now: Tick,
    op: Op<'_>,
) -> SmallVec<[Change; 1]> {
    let mut changes = SmallVec::new();
    let mut tell = |change| changes.push(change);
    match op {
        Op::Take | Op::Draw => {
            let _ = law.enter_in_place(&mut state, Ask::allow(now, Cost::ONE), &mut tell);
        }
        Op::Finish([Ending::Finish { receipt, finish, .. }]) => {
            law.leave_in_place(&mut state, now, receipt, finish.outcome, &mut tell);
        }
        Op::Breaker(Handling::Force(forced)) => {
            law.force_in_place(&mut state, now, Some(forced.clone()), &mut tell);
        }
        Op::Breaker(Handling::Release) => law.force_in_place(&mut state, now, None, &mut tell),
        _ => {}
    }
    changes
}
