//! State that the retries of one client share.

use std::sync::{Mutex, PoisonError};

use tidegate::retries::Retrier;

use crate::name::Name;

/// The settings of a retry layer: the retrier, the judge of results, and the observer.
#[derive(Clone, Debug)]
pub(super) struct Rules<C> {
    pub(super) retrier: Retrier,
    pub(super) classify: C,
    /// Whether requests of all methods are tried again.
    pub(super) all: bool,
    pub(super) name: Name,
}

/// The data that retries need. All calls share it, so a call that succeeds at once copies nothing.
#[derive(Debug)]
pub(super) struct Again<S, C> {
    /// Never polled for readiness, so it reserves nothing; cloned for each retry.
    service: Mutex<S>,
    pub(super) rules: Rules<C>,
}

impl<S: Clone, C> Again<S, C> {
    pub(super) const fn new(service: S, rules: Rules<C>) -> Self {
        Self { service: Mutex::new(service), rules }
    }

    pub(super) fn service(&self) -> S {
        // Only a clone that panicked can poison it, and that has changed nothing.
        self.service.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
