//! Validates policies that are put or deleted through the API, stores them, and puts them in force: in this order,
//! so that an acknowledged change survives a crash. A change counts as a reload: only one runs at a time.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::cluster::policies::{self, UNREADABLE, Version};
use tidegate::config::Diagnostic;

use super::{Reload, Taken};
use crate::active_config::ActiveConfig;
use crate::api_policies::NoRoom;
use crate::decider::{ClusterPolicies, Decider};
use crate::settings::{Refused, SharedPolicies};

/// The result of a change.
#[derive(Debug)]
pub(crate) struct Changed {
    /// The configuration that is now in force.
    pub(crate) live: Arc<ActiveConfig>,
    /// Whether there was no policy of this name before.
    pub(crate) new: bool,
    /// Whether the change survives a restart.
    pub(crate) kept: bool,
    pub(crate) warnings: Vec<String>,
}

/// Why a policy was neither put nor deleted. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotChanged {
    #[error(
        "this node uses the policies of all nodes, which are in {0}: put them with `tidegate policies put FILE`"
    )]
    Cluster(&'static str),
    #[error("the policy is in the file, at {0}; change it there, and the server reads the file again")]
    File(String),
    #[error(
        "the policies of this server were set by the program that runs it, and only that program changes them"
    )]
    Program,
    #[error("there is no policy of this name")]
    NoPolicy,
    #[error("the policy does not meet the condition of If-Match or If-None-Match")]
    Condition,
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("the policies are refused")]
    Mistakes(Vec<Diagnostic>),
    #[error(transparent)]
    Unfit(Refused),
    #[error("the policy cannot be kept, and was not put in force: {0}")]
    NotSaved(String),
}

impl Reload {
    /// Puts a policy with this text, or deletes it without. `holds` checks the request's conditions against the
    /// configuration in force. `who`: the name of the caller's token.
    ///
    /// # Errors
    /// [`NotChanged`] if the API may not change this policy, `holds` is false, the result is not valid, or it cannot
    /// be stored.
    ///
    /// # Cancel safety
    /// Not cancel safe: if dropped while writing, a change may be stored but not in force until the next start. Run
    /// it to its end.
    pub(crate) async fn change(
        &self,
        decider: &Decider,
        name: &str,
        text: Option<&str>,
        who: &str,
        holds: impl FnOnce(&ActiveConfig) -> bool,
    ) -> Result<Changed, NotChanged> {
        let _turn = self.turn.lock().await;
        if decider.storage.cluster_policies().is_some() {
            return Err(NotChanged::Cluster(decider.storage.kind()));
        }
        let Some(settings) = self.settings.lock().clone() else { return Err(NotChanged::Program) };
        let before = Arc::clone(&settings.api);
        let Some(written) = &settings.written else { return Err(NotChanged::Program) };
        if let Some(place) = written.place(name) {
            return Err(NotChanged::File(place));
        }
        let new = before.text(name).is_none();
        if new && text.is_none() {
            return Err(NotChanged::NoPolicy);
        }
        if !holds(&decider.live()) {
            return Err(NotChanged::Condition);
        }
        let after = match text {
            Some(text) => before.with(name, text)?,
            None => before.without(name),
        };
        let joining = after.clone();
        let joined = self.jobs.run(move || settings.with_api(&joining)).await;
        let joined = joined.map_err(|none| NotChanged::NotSaved(format!("validating it {none}")))?;
        let joined = joined.map_err(NotChanged::Mistakes)?;
        decider.fits(&joined.policies).map_err(NotChanged::Unfit)?;
        if let Some(file) = self.kept.clone() {
            let writing = after.clone();
            let given_up = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&given_up);
            let written = self.jobs.run(move || file.write(&writing, &seen)).await;
            let written = written.unwrap_or_else(|none| {
                given_up.store(true, Ordering::Release);
                Err(format!("writing it {none}"))
            });
            written.map_err(NotChanged::NotSaved)?;
        }
        let in_force = self.put_in_force(decider, Ok(joined), who).map_err(NotChanged::Unfit)?;
        tracing::info!(policy = name, deleted = text.is_none(), "a policy was changed through the API");
        let warnings = in_force.start_anew(decider).await;
        Ok(Changed { live: Arc::clone(&decider.live()), new, kept: self.kept.is_some(), warnings })
    }
}

// Policies published for all nodes: reads them, checks them and puts them in force. They replace those of the
// node's file, if there are some. A refused version changes nothing.

/// How long a starting node waits for the published policies: as long as an exchange with an engine takes at most.
/// Then it begins with the policies of its file.
const FIRST_WITHIN: Duration = Duration::from_secs(5);

impl Reload {
    /// Returns the state of the published policies.
    pub(crate) fn taken(&self) -> Taken {
        self.shared.lock().clone()
    }

    /// Takes over published policies before this node serves, within [`FIRST_WITHIN`]. Otherwise the file's stay in
    /// force.
    pub(crate) async fn take_first(&self, decider: &Decider) {
        let Some(through) = decider.storage.cluster_policies() else { return };
        let why = match tokio::time::timeout(FIRST_WITHIN, policies::current(&*through.coordinator)).await {
            Ok(Ok(Some(version))) => {
                // The result is logged, and `follow_cluster` reports it to the other nodes.
                let _ = self.take_over(decider, Some(version)).await;
                return;
            }
            Ok(Ok(None)) => "none were put so far".to_owned(),
            // `follow_cluster` reports a document that cannot be read.
            Ok(Err(policies::PutError::Foreign(_))) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the engine did not send them within {} s", FIRST_WITHIN.as_secs()),
        };
        let own = decider.live().set.len();
        tracing::warn!(reason = why, policies = own, "this node begins with the policies of its file");
    }

    /// Follows published policies for as long as it is polled.
    pub(crate) async fn follow_cluster(&self, decider: &Decider) -> Infallible {
        if let Some(ClusterPolicies { coordinator, clock, report }) = decider.storage.cluster_policies() {
            policies::follow(coordinator, clock, report, |version| self.take_over(decider, version)).await;
        }
        std::future::pending().await
    }

    /// Puts a version in force; `None` is a document in an unknown format. One that is in force or was refused is not
    /// read again.
    ///
    /// # Errors
    /// The first mistake; all are logged.
    ///
    /// # Cancel safety
    /// If dropped while reading, nothing is put in force.
    async fn take_over(&self, decider: &Decider, put: Option<Version>) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let Some(Version { version, bytes }) = put else {
            tracing::error!(
                reason = UNREADABLE,
                "the policies put for all nodes are refused; the old ones stay in force"
            );
            return self.refuse(decider, 0, UNREADABLE);
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
        let shared = String::from_utf8(bytes).ok().map(|text| Arc::new(SharedPolicies { version, text }));
        let settings = match &shared {
            Some(shared) => self.read_with(Some(Arc::clone(shared))).await,
            None => Err(Refused::from(format!("policies@{version}: the file is not text in UTF-8"))),
        };
        match self.put_in_force(decider, settings, "cluster") {
            Ok(in_force) => {
                decider.metrics.reloaded(true);
                *self.shared.lock() = Taken { in_force: shared, refused: None };
                in_force.start_anew(decider).await;
                Ok(())
            }
            Err(refused) => {
                let why = refused.diagnostics.first().map_or("refused without a reason", String::as_str);
                self.refuse(decider, version, why)
            }
        }
    }

    fn refuse(&self, decider: &Decider, version: u64, why: &str) -> Result<(), String> {
        decider.metrics.reloaded(false);
        self.shared.lock().refused = Some((version, why.into()));
        Err(why.to_owned())
    }
}
