//! What the server takes from a configuration, and where it gets it again.

mod with_api;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::config::{
    self, Config, Diagnostic, ForwardAuth, HeaderForm, StoreSettings, TicketSettings, Written,
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
    /// Which proxy asks `/v1/forward-auth`; with `None` that door refuses everyone, and says why.
    pub forward_auth: Option<ForwardAuth>,
    /// Which rate-limit headers answers carry.
    pub headers: HeaderForm,
    /// The header in which answers tell the priority that is left of a request which a policy demotes; with `None`, or where no header can have
    /// that name, `x-tidegate-priority`.
    pub priority_header: Option<String>,
    /// Warnings about what works and was hardly meant; logged when the settings are put in force.
    pub warnings: Vec<String>,
    /// The file as it was written, to add policies to; `None` of settings that come from no file.
    pub(crate) written: Option<Written>,
    /// The policies that were put through the API, which are among [`Settings::policies`].
    pub(crate) api: Arc<ApiPolicies>,
    /// What the file says of things that cannot change while the server runs; `None` of settings that come from no file.
    pub(crate) at_start: Option<AtStart>,
}

/// The part of a file that is read at the start only; kept so that a reload can tell that it has changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AtStart {
    pub(crate) server: config::Server,
    pub(crate) store: StoreSettings,
    pub(crate) tickets: TicketSettings,
}

impl Settings {
    /// Makes settings of policies, with nobody trusted as a proxy, no forward-auth and the default headers.
    #[must_use]
    pub fn new(policies: impl Into<Arc<PolicySet>>) -> Self {
        Self { policies: policies.into(), ..Self::default() }
    }
}

impl From<Config> for Settings {
    fn from(config: Config) -> Self {
        let written = Some(config.written().clone());
        let Config {
            policies,
            client_ip,
            forward_auth,
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
    /// Makes a refusal of its lines.
    #[must_use]
    pub fn new(diagnostics: Vec<String>) -> Self {
        Self { diagnostics }
    }

    pub(crate) fn of(mistakes: &[Diagnostic]) -> Self {
        Self::new(mistakes.iter().map(ToString::to_string).collect())
    }
}

impl From<String> for Refused {
    fn from(diagnostic: String) -> Self {
        Self { diagnostics: vec![diagnostic] }
    }
}

/// Where a configuration comes from: asked at start and at every reload.
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
    load: Arc<Load>,
    watched: Option<PathBuf>,
}

type Load = dyn Fn(Option<&SharedPolicies>) -> Result<Settings, Refused> + Send + Sync;

/// Policies that were put for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedPolicies {
    /// Their version.
    pub version: u64,
    /// What was put, as it stands.
    pub text: String,
}

impl SharedPolicies {
    /// Puts them in the place of those of a node's own file.
    ///
    /// # Errors
    /// [`Refused`] with every mistake in them; places are of `policies@` and the version.
    pub fn over(&self, own: &Config) -> Result<(Config, Vec<String>), Refused> {
        let lines = |found: Vec<Diagnostic>| found.iter().map(ToString::to_string).collect();
        match own.with_policies(&self.text, &format!("policies@{}", self.version)) {
            Ok((config, warnings)) => Ok((config, lines(warnings))),
            Err(mistakes) => Err(Refused::new(lines(mistakes))),
        }
    }
}

impl Source {
    /// Makes a source of a function that reads and checks the whole configuration.
    ///
    /// It may block: it runs on a thread of its own and is given up after 10 s, as a refusal. Until it returns it is not
    /// called again.
    pub fn new(load: impl Fn() -> Result<Settings, Refused> + Send + Sync + 'static) -> Self {
        Self::sharing(move |_| load())
    }

    /// Makes a source of a function that reads this node's own configuration, and takes the policies of all nodes over it where there
    /// are some ([`SharedPolicies::over`]). Otherwise as [`Source::new`].
    pub fn sharing(
        load: impl Fn(Option<&SharedPolicies>) -> Result<Settings, Refused> + Send + Sync + 'static,
    ) -> Self {
        Self { load: Arc::new(load), watched: None }
    }

    /// Makes a source of a config file, YAML or TOML, that reloads whenever the file holds something else.
    ///
    /// The server's address and its store are read by who starts it ([`crate::ServerOptions::of`]); they need a restart.
    pub fn file(path: impl AsRef<Path>) -> Self {
        let watched = path.as_ref().to_owned();
        let load = {
            let path = watched.clone();
            move |shared: Option<&SharedPolicies>| {
                let lines = |found: Vec<Diagnostic>| found.iter().map(ToString::to_string).collect();
                let (own, warnings) =
                    Config::read(&path).map_err(|mistakes| Refused::new(lines(mistakes)))?;
                let (config, warnings) = match shared {
                    Some(shared) => shared.over(&own)?,
                    None => (own, lines(warnings)),
                };
                Ok(Settings { warnings, ..config.into() })
            }
        };
        Self::sharing(load).watching(watched)
    }

    /// Reloads whenever this file holds something else.
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
