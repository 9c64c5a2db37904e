//! The background work of a server: signals, watched files and periodic tasks.

use std::convert::Infallible;
use std::path::Path;

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::ServerHandle;
use crate::engine::{LEASES_EVERY, WATCHED_EVERY};
use crate::file_watch::FileWatch;
use crate::signals::{Signal, Signals};
use crate::systemd;

/// Signals and file watches, active from the moment that a server is bound.
#[derive(Debug)]
pub(super) struct Background {
    signals: Option<Signals>,
    /// The config file.
    config: Option<FileWatch>,
    /// Files with secrets that are read again when they change.
    secrets: Vec<FileWatch>,
}

impl Background {
    /// Begins to watch these files. A file that cannot be watched is logged: signals and requests can reload as well.
    pub(super) async fn new(
        signals: Option<Signals>,
        config: Option<&Path>,
        secrets: impl IntoIterator<Item = &Path>,
    ) -> Self {
        let config = match config {
            Some(file) => watch(file).await,
            None => None,
        };
        let mut watches = Vec::new();
        for file in secrets {
            watches.extend(watch(file).await);
        }
        Self { signals, config, secrets: watches }
    }

    /// Follows signals, watched files and published policies, returns leases and reservations that have ended, and tells
    /// of conditions, switches and breakers, as long as the server runs.
    ///
    /// A stop takes effect whatever a reload waits for, since all of these run concurrently. Reloads that are requested
    /// during another one are merged into one.
    pub(super) async fn run(self, handle: &ServerHandle) -> Infallible {
        let Self { signals, config, secrets } = self;
        let (wanted, renewed) = (Notify::new(), Notify::new());
        let signals = async {
            let Some(mut signals) = signals else { return std::future::pending().await };
            loop {
                match signals.next().await {
                    Signal::Stop(name) => {
                        tracing::info!(signal = name, "stopping");
                        handle.stop();
                    }
                    Signal::Reload => wanted.notify_one(),
                }
            }
        };
        let config = async {
            let Some(mut config) = config else { return std::future::pending().await };
            loop {
                config.changed().await;
                tracing::info!("the config file changed");
                wanted.notify_one();
            }
        };
        let secrets = async {
            // Each file has its own loop: cancelling a wait may lose a change.
            let each = secrets.into_iter().map(async |mut file| -> Infallible {
                loop {
                    file.changed().await;
                    renewed.notify_one();
                }
            });
            join_all(each).await;
            std::future::pending().await
        };
        let renewals = async {
            loop {
                renewed.notified().await;
                handle.app.renew_secrets().await;
            }
        };
        let reloads = async {
            loop {
                wanted.notified().await;
                // The reload logs its own result.
                let _ = handle.reload().await;
            }
        };
        let leases = async {
            let mut every = tokio::time::interval(LEASES_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                handle.app.engine.storage.tell_membership();
                handle.app.engine.storage.tidy_leases().await;
            }
        };
        let conditions = async {
            let mut every = tokio::time::interval(WATCHED_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                handle.app.engine.conditions.tell();
                handle.app.engine.breakers.note_refusers().await;
            }
        };
        #[cfg(feature = "grpc")]
        let reservations = async {
            loop {
                let next = handle.app.engine.tickets.give_back_reservations().await;
                tokio::time::sleep(next).await;
            }
        };
        #[cfg(not(feature = "grpc"))]
        let reservations = std::future::pending();
        tokio::select! {
            never = reservations => never,
            never = handle.app.reload.follow_cluster(&handle.app.engine) => never,
            never = signals => never,
            never = leases => never,
            never = conditions => never,
            never = config => never,
            never = secrets => never,
            never = renewals => never,
            never = reloads => never,
            never = systemd::watchdog() => never,
        }
    }
}

/// Begins to watch a file.
async fn watch(file: &Path) -> Option<FileWatch> {
    let watch = FileWatch::new(file).await;
    watch.inspect_err(|error| tracing::warn!(%error, path = %file.display(), "the file is not watched")).ok()
}
