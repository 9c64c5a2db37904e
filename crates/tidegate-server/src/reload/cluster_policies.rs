//! Policies published for all nodes: reads them, checks them and puts them in force, like those of a file.
//!
//! They replace those of the node's file. If none were published, the file's apply. A refused version changes nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::policies::{self, UNREADABLE, Version};

use super::Reload;
use super::published_state::Taken;
use crate::engine::{ClusterPolicies, Engine};
use crate::settings::{Refused, SharedPolicies};

/// How long a starting node waits for the published policies: as long as an exchange with an engine takes at most.
/// After that it begins with the policies of its file.
const FIRST_WITHIN: Duration = Duration::from_secs(5);

impl Reload {
    /// Returns the state of the published policies.
    pub(crate) fn taken(&self) -> Taken {
        self.shared.lock().clone()
    }

    /// Takes over policies that were published before this node started, so that it serves nobody under others. Waits
    /// at most [`FIRST_WITHIN`]. If they are not available or are refused, the file's policies stay in force.
    pub(crate) async fn take_first(&self, engine: &Engine) {
        let Some(through) = engine.storage.cluster_policies() else { return };
        let why = match tokio::time::timeout(FIRST_WITHIN, policies::current(&*through.coordinator)).await {
            Ok(Ok(Some(version))) => {
                // The result is logged, and `follow_cluster` reports it to the other nodes.
                let _ = self.take_over(engine, Some(version)).await;
                return;
            }
            Ok(Ok(None)) => "none were put so far".to_owned(),
            // `follow_cluster` reports a document that cannot be read.
            Ok(Err(policies::PutError::Foreign(_))) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the engine did not send them within {} s", FIRST_WITHIN.as_secs()),
        };
        let own = engine.live().set.len();
        tracing::warn!(reason = why, policies = own, "this node begins with the policies of its file");
    }

    /// Follows the published policies, if this node uses them, for as long as it is polled.
    pub(crate) async fn follow_cluster(&self, engine: &Engine) -> Infallible {
        if let Some(ClusterPolicies { coordinator, clock, report }) = engine.storage.cluster_policies() {
            policies::follow(coordinator, clock, report, |version| self.take_over(engine, version)).await;
        }
        std::future::pending().await
    }

    /// Puts a version in force; `None` stands for a document in an unknown format. A version that is already in force
    /// or was refused is not read again.
    ///
    /// # Errors
    /// The first mistake; all of them are logged.
    ///
    /// # Cancel safety
    /// If dropped while reading, nothing is put in force.
    async fn take_over(&self, engine: &Engine, put: Option<Version>) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let Some(Version { version, bytes }) = put else {
            tracing::error!(
                reason = UNREADABLE,
                "the policies put for all nodes are refused; the old ones stay in force"
            );
            return self.refuse(engine, 0, UNREADABLE);
        };
        let taken = self.taken();
        if taken.in_force.is_some_and(|in_force| in_force.version == version) {
            self.shared.lock().refused = None;
            return Ok(());
        }
        if let Some((_, why)) = taken.refused.filter(|(refused, _)| *refused == version) {
            return Err(why.to_string());
        }
        tracing::info!(version, "policies were put for all nodes");
        let read = match String::from_utf8(bytes) {
            Ok(text) => {
                let shared = Arc::new(SharedPolicies { version, text });
                self.read_with(Some(Arc::clone(&shared))).await.map(|settings| (settings, shared))
            }
            Err(_) => Err(Refused::from(format!("policies@{version}: the file is not text in UTF-8"))),
        };
        let (settings, shared) = match read {
            Ok((settings, shared)) => (Ok(settings), Some(shared)),
            Err(refused) => (Err(refused), None),
        };
        match self.put_in_force(engine, settings) {
            Ok(in_force) => {
                engine.metrics.reloaded(true);
                *self.shared.lock() = Taken { in_force: shared, refused: None };
                in_force.start_anew(engine).await;
                Ok(())
            }
            Err(refused) => {
                let why = refused.diagnostics.first().map_or("refused without a reason", String::as_str);
                self.refuse(engine, version, why)
            }
        }
    }

    fn refuse(&self, engine: &Engine, version: u64, why: &str) -> Result<(), String> {
        engine.metrics.reloaded(false);
        self.shared.lock().refused = Some((version, why.into()));
        Err(why.to_owned())
    }
}
