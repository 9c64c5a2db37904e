//! The state that the clones of a breaker share, behind its lock.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::breaker::{Change, CircuitBreaker, CircuitBreakerState};
use tidegate_core::decision::Ruling;
use tidegate_core::{Decision, Guard, Retry, Standing, Tick};

use crate::answer::{Answer, Denied};
use crate::clock::Time;
use crate::observer::Observer;
use crate::sync::Mutex;

/// A breaker's law and state.
pub(super) struct Shared {
    pub(super) law: CircuitBreaker,
    pub(super) time: Time,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Not held while the clock or an observer is called.
    state: Mutex<CircuitBreakerState>,
}

impl Shared {
    pub(super) fn new(law: CircuitBreaker, time: Time, observer: Option<Arc<dyn Observer>>) -> Self {
        let state = Mutex::new(law.fresh(time.now()));
        Self { law, time, observer, state }
    }

    /// Changes the state, and then reports the changes to the observer.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&CircuitBreaker, &mut CircuitBreakerState, Tick, &mut dyn FnMut(Change)) -> R,
    ) -> R {
        let now = self.time.now();
        let mut changes: SmallVec<[Change; 1]> = SmallVec::new();
        let mut tell = |change| {
            if self.observer.is_some() {
                changes.push(change);
            }
        };
        let result = change(&self.law, &mut self.state.lock(), now, &mut tell);
        if let Some(observer) = &self.observer {
            changes.iter().for_each(|change| observer.on_change(change));
        }
        result
    }

    /// Reads the state as of now.
    pub(super) fn with_state<R>(
        &self,
        read: impl FnOnce(&CircuitBreaker, &CircuitBreakerState, Tick) -> R,
    ) -> R {
        let now = self.time.now();
        read(&self.law, &self.state.lock(), now)
    }
}

/// Makes the denial of a breaker. A breaker has no units, so the limit is 1: one call may enter or none.
pub(super) fn refused(retry: Retry) -> Denied {
    let reset_after = retry.after().unwrap_or(Duration::MAX);
    let standing = Standing { limit: 1, remaining: 0, debt: 0, reset_after };
    Answer::settled(Decision { ruling: Ruling::Denied { retry }, standing }, 0).into()
}
