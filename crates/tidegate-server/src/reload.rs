//! Reads the configuration again and puts it in force, or keeps the old one and reports why.
//!
//! One reload runs at a time. Reading may block, so it runs apart from requests, and is given up after [`PATIENCE`].
//! A refusal changes only a gauge and `readyz?verbose`.

mod api_policies;
mod difference;
mod warnings;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tidegate::gate::KeyedView;
use tokio::sync::Mutex as Turn;

pub(crate) use self::api_policies::{Changed, NotChanged};
pub use self::warnings::unknown_numbers;
use crate::api_policies::{ApiPolicies, SavedPolicies};
use crate::decider::Decider;
use crate::files::BlockingJobs;
use crate::settings::{AtStart, Refused, Settings, SharedPolicies, Source};
use crate::systemd;

/// The longest wait for reading a configuration: far longer than a disk takes, and short for an operator who waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reloads the configuration from one source.
#[derive(Debug)]
pub(crate) struct Reload {
    source: Source,
    jobs: BlockingJobs,
    turn: Turn<()>,
    refused: Mutex<Option<Arc<Refused>>>,
    /// The state of the policies published for all nodes.
    shared: Mutex<Taken>,
    /// The settings in force, without warnings; `None` before the start.
    settings: Mutex<Option<Settings>>,
    /// The policies that were put through the API.
    api: Mutex<Arc<ApiPolicies>>,
    /// The file that keeps them across restarts, if there is one.
    kept: Option<SavedPolicies>,
    /// What the first configuration had that is read only at the start.
    at_start: OnceLock<Option<AtStart>>,
}

impl Reload {
    /// Keeps policies put through the API in `kept`.
    pub(crate) fn new(source: Source, kept: Option<SavedPolicies>) -> Self {
        Self {
            source,
            jobs: BlockingJobs::new(PATIENCE),
            turn: Turn::new(()),
            refused: Mutex::new(None),
            shared: Mutex::default(),
            settings: Mutex::default(),
            api: Mutex::default(),
            kept,
            at_start: OnceLock::new(),
        }
    }

    /// Reads the configuration and the kept policies of the API for the start.
    ///
    /// # Errors
    /// As [`Reload::read`]; also if the kept policies cannot be read.
    pub(crate) async fn first(&self) -> Result<Settings, Refused> {
        if let Some(kept) = self.kept.clone() {
            let read = self.jobs.run(move || kept.read()).await;
            let read = read
                .unwrap_or_else(|none| Err(format!("the policies put through the API: reading them {none}")));
            *self.api.lock() = Arc::new(read?);
        }
        let settings = self.read().await.map_err(|mut refused| {
            if let (Some(kept), false) = (&self.kept, self.api.lock().is_empty()) {
                refused.diagnostics.push(format!("policies put through the API are kept in {kept}: while no server runs, change or remove them there"));
            }
            refused
        })?;
        self.keep(&settings);
        Ok(settings)
    }

    /// Records the settings in force.
    fn keep(&self, settings: &Settings) {
        *self.api.lock() = Arc::clone(&settings.api);
        *self.settings.lock() = Some(Settings { warnings: Vec::new(), ..settings.clone() });
    }

    /// Reads the configuration, with the policies of all nodes that are in force, and puts nothing in force.
    ///
    /// # Errors
    /// [`Refused`] with every mistake, or why nothing could be read: it took longer than [`PATIENCE`], or an earlier
    /// read still hangs.
    pub(crate) async fn read(&self) -> Result<Settings, Refused> {
        let shared = self.shared.lock().in_force.clone();
        self.read_with(shared).await
    }

    /// Reads the configuration, with these policies of all nodes in place of the file's.
    async fn read_with(&self, shared: Option<Arc<SharedPolicies>>) -> Result<Settings, Refused> {
        let source = self.source.clone();
        // Policies of all nodes replace those of the API too.
        let api = if shared.is_some() { Arc::default() } else { Arc::clone(&self.api.lock()) };
        let load = move || {
            let settings = source.load(shared.as_deref())?;
            settings.with_api(&api).map_err(|mistakes| Refused::of(&mistakes))
        };
        let read = self.jobs.run(load).await;
        let settings = read.unwrap_or_else(|none| {
            let name = self.source.watched().map(|path| path.display().to_string());
            Err(format!("{}: reading it {none}", name.as_deref().unwrap_or("the configuration")).into())
        })?;
        self.at_start.get_or_init(|| settings.at_start.clone());
        Ok(settings)
    }

    /// Reads the configuration and puts it in force. Returns the warnings. `who`: as [`Changed::who`](crate::Changed::who).
    ///
    /// # Errors
    /// [`Refused`] as for [`Reload::read`]; the old configuration stays in force.
    ///
    /// # Cancel safety
    /// Dropped while reading, it puts nothing in force. Dropped later, while it waits for the store, the new
    /// configuration is in force, and some breakers that start anew do so at their next use.
    pub(crate) async fn now(&self, decider: &Decider, who: &str) -> Result<Vec<String>, Refused> {
        let _turn = self.turn.lock().await;
        systemd::reloading();
        let _announced = Announced;
        let read = self.read().await;
        let result = self.put_in_force(decider, read, who);
        *self.refused.lock() = result.as_ref().err().map(|refused| Arc::new(refused.clone()));
        let in_force = result?;
        decider.metrics.reloaded(true);
        tracing::info!("configuration reloaded");
        // Last: the caller may hang up while the store is asked.
        Ok(in_force.start_anew(decider).await)
    }

    fn put_in_force(
        &self,
        decider: &Decider,
        read: Result<Settings, Refused>,
        who: &str,
    ) -> Result<InForce, Refused> {
        match read.and_then(|settings| decider.fits(&settings.policies).map(|()| settings)) {
            Ok(mut settings) => {
                let mut warnings = std::mem::take(&mut settings.warnings);
                warnings.extend(unknown_numbers(&settings.policies));
                warnings.extend(settings.without_policies());
                let forced = |policy: &str| decider.breakers.forced_of(policy);
                warnings.extend(warnings::of_counters(&decider.live().set, &settings.policies, forced));
                warnings.extend(warnings::of_blocks(
                    &decider.live().set,
                    &settings.policies,
                    &decider.keys.blocked_keys(),
                ));
                let at_start = self.at_start.get().and_then(Option::as_ref);
                warnings.extend(restart_warnings(at_start, settings.at_start.as_ref()));
                for warning in &warnings {
                    tracing::warn!("{warning}");
                }
                let before = Arc::clone(&decider.live().set);
                let anew = decider.replace(&settings);
                self.keep(&settings);
                tell_in_force(decider);
                decider.tell_change("policies", who, "", || difference::between(&before, &settings.policies));
                Ok(InForce { warnings, anew })
            }
            Err(refused) => {
                for diagnostic in &refused.diagnostics {
                    tracing::error!("{diagnostic}");
                }
                tracing::error!("the configuration was refused; the old one stays in force");
                decider.metrics.reloaded(false);
                let mistakes = refused.diagnostics.len();
                decider.events.publish("policies", || json!({ "state": "refused", "mistakes": mistakes }));
                decider.tell_change("refused", who, "", || {
                    let first = refused.diagnostics.first().map_or("", String::as_str);
                    let more = mistakes.saturating_sub(1);
                    if more == 0 { first.to_owned() } else { format!("{first} (and {more} more)") }
                });
                Err(refused)
            }
        }
    }

    /// Returns the last refusal, unless a valid configuration followed.
    pub(crate) fn last(&self) -> Option<Arc<Refused>> {
        self.refused.lock().clone()
    }
}

#[derive(Debug)]
#[must_use = "breakers that start anew are still to be reset"]
struct InForce {
    warnings: Vec<String>,
    /// The breakers that start anew.
    anew: Vec<KeyedView>,
}

impl InForce {
    /// Resets the breakers that start anew.
    /// Returns the warnings.
    ///
    /// # Cancel safety
    /// If dropped, the breakers that are left are reset at their next use.
    async fn start_anew(mut self, decider: &Decider) -> Vec<String> {
        let left = decider.breakers.start_anew(&self.anew).await;
        if left > 0 {
            let warning = format!(
                "{left} breakers that start anew could not be reset, since the store did not answer; each is reset at its next call"
            );
            tracing::warn!("{warning}");
            self.warnings.push(warning);
        }
        self.warnings
    }
}

/// Warns of sections that are read only at the start. Otherwise who raises `store.keys` would believe that there is
/// room now. Not a refusal: the file may be prepared for the next start.
fn restart_warnings(before: Option<&AtStart>, after: Option<&AtStart>) -> Vec<String> {
    let (Some(before), Some(after)) = (before, after) else { return Vec::new() };
    let sections = [
        ("server", before.server != after.server),
        ("store", before.store != after.store),
        ("tickets", before.tickets != after.tickets),
    ];
    let changed = sections.into_iter().filter(|(_, changed)| *changed);
    changed
        .map(|(name, _)| {
            format!("`{name}` is read only at the start: its changes take effect after a restart")
        })
        .collect()
}

fn tell_in_force(decider: &Decider) {
    let live = decider.live();
    tracing::info!(config = live.number, policies = live.set.len(), "policies are in force");
    let told = || json!({ "state": "in-force", "config": live.number, "policies": live.set.len() });
    decider.events.publish("policies", told);
}

/// Tells the service manager on drop that a reload is over, also if a caller hangs up.
struct Announced;

impl Drop for Announced {
    fn drop(&mut self) {
        systemd::ready();
    }
}

// The state of the policies published for all nodes.

/// The state of the policies published for all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// The published policies in force; `None` if the file's are.
    pub(crate) in_force: Option<Arc<SharedPolicies>>,
    /// The version refused since then, and why; 0 for a document in an unknown format.
    pub(crate) refused: Option<(u64, Arc<str>)>,
}
