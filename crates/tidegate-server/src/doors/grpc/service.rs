//! The state that all calls of the door share.

use std::sync::Arc;

use super::quota::pools::{Budget, Pools};
use crate::app::App;
use crate::requests::InlineQuotas;

/// Answers calls.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) app: Arc<App>,
    /// Quotas for the limits that callers bring along.
    pub(super) quotas: InlineQuotas,
    /// The limits that are divided over proxies.
    pub(super) pools: Pools,
    /// The memory budget for the pairs of the proxies' buckets.
    pub(super) pairs: Budget,
}

impl Service {
    pub(super) fn new(app: Arc<App>) -> Self {
        Self { app, quotas: InlineQuotas::default(), pools: Pools::default(), pairs: Budget::default() }
    }
}
