//! What the calls of one client that tries again share.

use std::sync::{Mutex, PoisonError};

use tidegate::retries::Retrier;

use crate::name::Name;

/// What is tried again, how often, and who is told.
#[derive(Clone, Debug)]
pub(super) struct Rules<C> {
    pub(super) retrier: Retrier,
    pub(super) classify: C,
    /// Whether requests of all methods are tried again.
    pub(super) all: bool,
    pub(super) name: Name,
}

/// What further tries need: shared by all calls, so that a call which succeeds copies none of it.
#[derive(Debug)]
pub(super) struct Again<S, C> {
    /// Never asked whether it is ready, so it holds nothing; cloned for each call that is tried again.
    service: Mutex<S>,
    pub(super) rules: Rules<C>,
}

impl<S: Clone, C> Again<S, C> {
    pub(super) const fn new(service: S, rules: Rules<C>) -> Self {
        Self { service: Mutex::new(service), rules }
    }

    pub(super) fn service(&self) -> S {
        // Poisoned by a clone that panicked, which has changed nothing.
        self.service.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
