//! What the calls of a door share.

use std::sync::Arc;

use crate::app::App;
use crate::requests::BroughtQuotas;

/// What answers calls.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) app: Arc<App>,
    /// The limits that callers bring.
    pub(super) quotas: BroughtQuotas,
}

impl Service {
    pub(super) fn new(app: Arc<App>) -> Self {
        Self { app, quotas: BroughtQuotas::default() }
    }
}
