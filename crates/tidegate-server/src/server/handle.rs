//! The handle that stops or reloads a server.

use std::sync::Arc;

use tokio::sync::watch;

use crate::app::App;
use crate::phase::Phase;
use crate::settings::Refused;
use crate::systemd;

/// Stops or reloads a server from elsewhere. All clones refer to the same server.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    pub(super) app: Arc<App>,
    pub(super) phase: Arc<watch::Sender<Phase>>,
}

impl ServerHandle {
    /// Begins to drain. Called again, cuts all connections at once.
    pub fn stop(&self) {
        self.phase.send_modify(|phase| {
            *phase = match phase {
                Phase::Serving => Phase::Draining,
                Phase::Draining | Phase::Leaving => Phase::Leaving,
            };
        });
        systemd::stopping();
    }

    /// Reads the configuration again and puts it in force.
    ///
    /// # Errors
    /// [`Refused`] with every mistake. The old configuration stays in force.
    ///
    /// # Cancel safety
    /// If the future is dropped while files are read, the old configuration stays in force.
    pub async fn reload(&self) -> Result<(), Refused> {
        self.app.read_again().await.map(drop)
    }
}
