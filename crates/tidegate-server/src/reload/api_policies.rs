//! Validates policies that are put or deleted through the API, stores them, and puts them in force.
//!
//! The steps have this order so that an acknowledged change survives a crash: validate, write, put in force. A change
//! counts as a reload: only one runs at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::config::Diagnostic;

use super::Reload;
use crate::active_config::ActiveConfig;
use crate::api_policies::NoRoom;
use crate::engine::Engine;
use crate::settings::Refused;

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
    /// Puts a policy with this text, or deletes it if there is none. `holds` says whether the conditions of the request
    /// hold for the configuration in force.
    ///
    /// # Errors
    /// [`NotChanged`] if the API may not change this policy, `holds` returns `false`, the result is not a valid
    /// configuration, or it cannot be stored.
    ///
    /// # Cancel safety
    /// Not cancel safe: if dropped while writing, a change may be stored but not in force until the next start. Run it
    /// to its end.
    pub(crate) async fn change(
        &self,
        engine: &Engine,
        name: &str,
        text: Option<&str>,
        holds: impl FnOnce(&ActiveConfig) -> bool,
    ) -> Result<Changed, NotChanged> {
        let _turn = self.turn.lock().await;
        if engine.storage.cluster_policies().is_some() {
            return Err(NotChanged::Cluster(engine.storage.kind()));
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
        if !holds(&engine.live()) {
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
        engine.fits(&joined.policies).map_err(NotChanged::Unfit)?;
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
        let in_force = self.put_in_force(engine, Ok(joined)).map_err(NotChanged::Unfit)?;
        tracing::info!(policy = name, deleted = text.is_none(), "a policy was changed through the API");
        let loaded = in_force.start_anew(engine).await;
        Ok(Changed {
            live: Arc::clone(&engine.live()),
            new,
            kept: self.kept.is_some(),
            warnings: loaded.warnings,
        })
    }
}
