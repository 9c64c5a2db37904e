//! The settings that the server takes from a configuration, and the source that provides them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::config::{
    self, AddedPolicy, Config, Diagnostic, Envoy, ForwardAuth, HeaderForm, Severity, StoreSettings,
    TicketSettings, Written,
};
use tidegate::policy::{ClientIp, PolicySet};

use crate::api_policies::ApiPolicies;

/// The part of a configuration that can change while the server runs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The policies.
    pub policies: Arc<PolicySet>,
    /// How a caller's address is found behind proxies.
    pub client_ip: ClientIp,
    /// The proxy that asks `/v1/forward-auth`; `None`: that door refuses all requests, and says why.
    pub forward_auth: Option<ForwardAuth>,
    /// How calls of Envoy's rate limit service say which priority their requests have.
    pub envoy: Envoy,
    /// The rate-limit headers of answers.
    pub headers: HeaderForm,
    /// The header with the lowered priority of a demoted request. `None` or an invalid name: `x-tidegate-priority`.
    pub priority_header: Option<String>,
    /// Warnings about settings that work but are probably not intended, logged when they come into force.
    pub warnings: Vec<String>,
    /// The file as it was written, to add policies to; `None` without a file.
    pub(crate) written: Option<Written>,
    /// The policies that were put through the API, which [`Settings::policies`] includes.
    pub(crate) api: Arc<ApiPolicies>,
    /// The file's settings that cannot change while the server runs; `None` without a file.
    pub(crate) at_start: Option<AtStart>,
}

/// The part of a file that is read only at the start; kept so that a reload can detect changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AtStart {
    pub(crate) server: config::Server,
    pub(crate) store: StoreSettings,
    pub(crate) tickets: TicketSettings,
}

impl Settings {
    /// Makes settings from policies, with no trusted proxies, no forward-auth and the default headers.
    #[must_use]
    pub fn new(policies: impl Into<Arc<PolicySet>>) -> Self {
        Self { policies: policies.into(), ..Self::default() }
    }

    /// Warns of a file without policies, unless they come from elsewhere or lists or switches refuse without them.
    pub(crate) fn without_policies(&self) -> Option<String> {
        let store = &self.at_start.as_ref()?.store;
        let is_meant = store.takes_cluster_policies() || !limits_nothing(&self.policies);
        (!is_meant).then(|| {
            "no policy: nothing is limited; write policies: [{ name: api, by: [client.ip], limit: { rate: 10/s } }] in the \
             file, or PUT /v1/policies/NAME"
                .to_owned()
        })
    }
}

/// Reports whether nothing in a set refuses.
pub(crate) fn limits_nothing(set: &PolicySet) -> bool {
    set.is_empty() && set.shared_access().deny.is_empty() && set.triggers().is_empty()
}

impl From<Config> for Settings {
    fn from(config: Config) -> Self {
        let written = Some(config.written().clone());
        let Config {
            policies,
            client_ip,
            forward_auth,
            envoy,
            headers,
            priority_header,
            server,
            store,
            tickets,
            ..
        } = config;
        let at_start = Some(AtStart { server, store, tickets });
        Self {
            policies,
            client_ip,
            forward_auth,
            envoy,
            headers,
            priority_header,
            warnings: Vec::new(),
            written,
            api: Arc::default(),
            at_start,
        }
    }
}

/// A configuration that was refused, with every mistake in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", diagnostics.join("\n"))]
pub struct Refused {
    /// One line per mistake: file, line, column, what was found and what would work.
    pub diagnostics: Vec<String>,
}

impl Refused {
    pub(crate) fn of(mistakes: &[Diagnostic]) -> Self {
        Self { diagnostics: lines(mistakes) }
    }
}

fn lines(found: &[Diagnostic]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

impl From<String> for Refused {
    fn from(diagnostic: String) -> Self {
        Self { diagnostics: vec![diagnostic] }
    }
}

/// The source of a configuration; read at start and at every reload.
///
/// # Examples
/// ```
/// use tidegate::policy::PolicySet;
/// use tidegate_server::{Settings, Source};
/// let source = Source::new(|| Ok(Settings::new(PolicySet::new(Vec::new())?))).watching("tidegate.yaml");
/// # let _ = source;
/// ```
#[derive(Clone)]
pub struct Source {
    load: Arc<LoadSettings>,
    watched: Option<PathBuf>,
}

type LoadSettings = dyn Fn(Option<&SharedPolicies>) -> Result<Settings, Refused> + Send + Sync;

/// Policies that were published for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedPolicies {
    /// Their version.
    pub version: u64,
    /// The text as it was published.
    pub text: String,
}

impl SharedPolicies {
    /// Replaces the policies of a node's own file by these. Returns the configuration and the warnings.
    ///
    /// # Errors
    /// [`Refused`] with every mistake in them. Positions refer to a file named `policies@` and the version.
    pub fn over(&self, own: &Config) -> Result<(Config, Vec<String>), Refused> {
        let (config, warnings) = own
            .with_policies(&self.text, &format!("policies@{}", self.version))
            .map_err(|mistakes| Refused::of(&mistakes))?;
        Ok((config, lines(&warnings)))
    }
}

impl Source {
    /// Makes a source from a function that reads and checks the whole configuration.
    ///
    /// It may block: it runs on its own thread, and after 10 s counts as a refusal. It is not called again until it
    /// returns.
    pub fn new(load: impl Fn() -> Result<Settings, Refused> + Send + Sync + 'static) -> Self {
        Self::sharing(move |_| load())
    }

    /// As [`Source::new`], for a function that replaces this node's policies by those of all nodes, if given
    /// ([`SharedPolicies::over`]).
    pub fn sharing(
        load: impl Fn(Option<&SharedPolicies>) -> Result<Settings, Refused> + Send + Sync + 'static,
    ) -> Self {
        Self { load: Arc::new(load), watched: None }
    }

    /// Makes a source from a config file, YAML or TOML, that reloads whenever its content changes.
    ///
    /// Addresses and the store are read by the program that starts the server
    /// ([`ServerOptions::of`](crate::ServerOptions::of)); changing them needs a restart.
    pub fn file(path: impl AsRef<Path>) -> Self {
        let watched = path.as_ref().to_owned();
        let load = {
            let path = watched.clone();
            move |shared: Option<&SharedPolicies>| {
                let (own, warnings) =
                    Config::read_to_serve(&path).map_err(|mistakes| Refused::of(&mistakes))?;
                let (config, warnings) = match shared {
                    Some(shared) => shared.over(&own)?,
                    None => (own, lines(&warnings)),
                };
                Ok(Settings { warnings, ..config.into() })
            }
        };
        Self::sharing(load).watching(watched)
    }

    /// Also reloads whenever the content of this file changes.
    #[must_use]
    pub fn watching(mut self, file: impl AsRef<Path>) -> Self {
        self.watched = Some(file.as_ref().to_owned());
        self
    }

    pub(crate) fn load(&self, shared: Option<&SharedPolicies>) -> Result<Settings, Refused> {
        (self.load)(shared)
    }

    pub(crate) fn watched(&self) -> Option<&Path> {
        self.watched.as_deref()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("watched", &self.watched).finish_non_exhaustive()
    }
}

impl From<tidegate::policy::PolicySetError> for Refused {
    fn from(error: tidegate::policy::PolicySetError) -> Self {
        error.to_string().into()
    }
}

// Combines the settings of a file with the policies that were put through the API.

impl Settings {
    /// Adds policies after those of the file, in place of those added before. Takes as long as validating the file.
    ///
    /// # Errors
    /// Every mistake, with its position in the policy's own text; duplicate names have positions in the file.
    pub(crate) fn with_api(mut self, api: &ApiPolicies) -> Result<Self, Vec<Diagnostic>> {
        if api.is_empty() && self.api.is_empty() {
            return Ok(self);
        }
        let Some(written) = &self.written else {
            let none = "policies can be put through the API only if the others are from a file, and here a program has made them";
            return Err(vec![Diagnostic::of_file("policies", Severity::Error, none.to_owned())]);
        };
        let taken = api.each().filter_map(|(name, _)| {
            let place = written.place(name)?;
            let message = format!(
                "policy {name:?} is owned by the API, which keeps its name: give this one another, or DELETE /v1/policies/{name} first"
            );
            Some(Diagnostic::of_file(&place, Severity::Error, message))
        });
        let taken: Vec<Diagnostic> = taken.collect();
        if !taken.is_empty() {
            return Err(taken);
        }
        let added: Vec<AddedPolicy<'_>> = api.each().map(|(name, text)| AddedPolicy { name, text }).collect();
        let (config, found) = Config::with_added(written, &added)?;
        // The file's warnings are among its settings already.
        let found = found.iter().filter(|warning| warning.path != config.written().name());
        self.warnings.extend(found.map(ToString::to_string));
        (self.policies, self.api) = (config.policies, Arc::new(api.clone()));
        Ok(self)
    }
}
