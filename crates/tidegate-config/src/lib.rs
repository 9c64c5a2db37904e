//! Reads the configuration file: server settings and policies, in YAML or TOML, with all mistakes reported at once.
//!
//! A text in either format is parsed into one tree whose values know their places in the text. The tree is checked
//! against the table of keys; then settings and policies are built from it. A file with an error yields no
//! configuration, so the running one stays in effect.
//!
//! A part of [`tidegate`](https://docs.rs/tidegate), which shows it as `tidegate::config` with the feature `config`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod adaptive;
mod added;
mod breaker;
mod budget;
mod canary;
mod conditions;
mod costs;
mod diagnostic;
mod envoy;
mod file;
mod foreign_words;
mod forward_auth;
mod grammars;
mod import;
mod keys;
mod limit_spec;
mod limits;
mod lint;
mod names;
mod node;
mod policies;
mod preset;
mod read;
mod removed_keys;
#[cfg(feature = "cel")]
mod sample_costs;
mod schema;
mod server;
mod shape;
mod share;
mod show;
mod store;

pub use added::{AddedPolicy, Written};
pub use diagnostic::{Diagnostic, Severity, report};
pub use envoy::Envoy;
pub use file::{Format, ReadError, read_file, read_text};
pub use forward_auth::{ForwardAuth, OriginalHeaders};
pub use import::{Imported, Peer};
pub use names::{canonical_attribute, unknown_attribute};
pub use preset::{Preset, QUICKSTART};
pub use schema::schema;
pub use server::{
    Address, AlertReceiver, AlertSettings, DoorName, NoAddress, OtlpProtocol, OtlpSettings, TlsSettings,
};
pub use show::Effective;
pub use store::{
    DiskSettings, EngineKind, EngineSettings, RegionSettings, StoreKind, StoreSettings, Topology,
};
pub use tidegate_gate::HeaderForm;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::diagnostic::Findings;
use self::keys::{FILE, Kind};
use self::node::{Node, Spot, Value};
use tidegate_gate::policy::{ClientIp, ForwardHeader, PolicySet, span};

/// The addresses where a server listens, and how it encrypts and traces.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Server {
    /// The address for checks over HTTP.
    pub http: Address,
    /// The address for metrics and administration over HTTP; `None`: the same as `http`.
    pub admin: Option<Address>,
    /// The address for Envoy's rate limit service; `None`: not served.
    pub grpc: Option<Address>,
    /// The address for the Redis protocol; `None`: not served.
    pub resp: Option<Address>,
    /// The encryption of these addresses; `None`: nothing is encrypted.
    pub tls: Option<TlsSettings>,
    /// Where spans of decisions are sent; `None`: where the environment variables say, if anywhere.
    pub otlp: Option<OtlpSettings>,
    /// Whether the server keeps what it sees, and shows it to operators.
    pub sight: bool,
    /// Whom the server tells that something is wrong.
    pub alerts: AlertSettings,
}

impl Default for Server {
    fn default() -> Self {
        // Loopback, so that other machines cannot reach a fresh installation.
        let http = SocketAddr::from(([127, 0, 0, 1], 8080)).into();
        let alerts = AlertSettings::default();
        Self { http, admin: None, grpc: None, resp: None, tls: None, otlp: None, sight: true, alerts }
    }
}

/// How decisions are settled later, by means of tickets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TicketSettings {
    /// The file with the keys that seal tickets; not read here. `None`: the environment names keys, or the server
    /// makes a random one.
    pub key_file: Option<PathBuf>,
    /// How long a ticket can be settled after its decision: more than zero, at most 30 days; `None`: the server's
    /// default.
    pub ttl: Option<Duration>,
    /// The name of this node; `None`: the address that the server listens on.
    pub issuer: Option<String>,
}

/// The largest file, in bytes.
pub const MAX_BYTES: usize = budget::TEXT;

/// A whole validated file.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// Where the server listens.
    pub server: Server,
    /// How the client's address is found.
    pub client_ip: ClientIp,
    /// The proxy that uses the forward-auth door; `None`: no proxy, and the door is closed.
    pub forward_auth: Option<ForwardAuth>,
    /// How Envoy's calls say which priority their requests have.
    pub envoy: Envoy,
    /// Where counters are stored.
    pub store: StoreSettings,
    /// How decisions are settled later.
    pub tickets: TicketSettings,
    /// The rate limit headers of answers.
    pub headers: HeaderForm,
    /// The header, in lower case, in which answers tell the lowered priority of a request that a policy demotes;
    /// `None`: `x-tidegate-priority`.
    pub priority_header: Option<String>,
    /// The policies.
    pub policies: Arc<PolicySet>,
    /// The values in effect, and where each comes from.
    pub effective: Effective,
    places: Vec<Spot>,
    written: Written,
}

/// The sections about the node itself. They stay in each node's file even if nodes share their policies.
const OWN_SECTIONS: [&str; 3] = ["server", "store", "tickets"];

impl Config {
    /// Reads and validates a file. The extension of its name decides the format, see [`Format::of`].
    ///
    /// Returns the configuration and the warnings.
    ///
    /// # Errors
    /// All mistakes in the order of the file, including warnings; or the one reason why the file cannot be read.
    pub fn read(path: &Path) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        Self::read_into(path, Findings::of(&path.display().to_string()))
    }

    /// Reads and validates a file like [`Config::read`], for a server. Also warns about what only concerns a server's
    /// doors: addresses behind proxies that are not named, and names of attributes that no door sets.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn read_to_serve(path: &Path) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        Self::read_into(path, Findings::served(&path.display().to_string()))
    }

    fn read_into(path: &Path, mut findings: Findings) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        match read_text(path, MAX_BYTES as u64) {
            Ok(text) => Self::parse_into(&text, Format::of(path), findings),
            Err(error) => {
                findings.error(Spot::default(), format_args!("the file {error}"));
                Err(findings.finish())
            }
        }
    }

    /// Validates a text; diagnostics call it `name`.
    ///
    /// Returns the configuration and the warnings. Never panics, whatever the text, and does a bounded amount of work.
    ///
    /// # Errors
    /// As [`Config::read`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::{Config, Format};
    /// let text = "version: 1\npolicies:\n  - name: all\n    limit: { rate: 60/M }\n";
    /// let mistakes = Config::parse(text, "tidegate.yaml", Format::Yaml).unwrap_err();
    /// assert_eq!(
    ///     mistakes[0].to_string(),
    ///     "tidegate.yaml:4:20  error  policy \"all\": rate: \"M\" could be minute or month; write min or month"
    /// );
    /// ```
    pub fn parse(text: &str, name: &str, format: Format) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        Self::parse_into(text, format, Findings::of(name))
    }

    /// Validates a text like [`Config::parse`], for a server, with the warnings of [`Config::read_to_serve`].
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse_to_serve(
        text: &str,
        name: &str,
        format: Format,
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        Self::parse_into(text, format, Findings::served(name))
    }

    fn parse_into(
        text: &str,
        format: Format,
        mut findings: Findings,
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let Some(file) = read::read(text, format, &mut findings) else { return Err(findings.finish()) };
        Self::build(file, findings)
    }

    /// Validates a text of policies that all nodes share, for the node with this configuration. `server`, `store` and
    /// `tickets` come from the node's own file and may not be in the text; everything else comes from the text. The
    /// content of the text decides whether it is YAML or TOML ([`Format::of_text`]).
    ///
    /// Returns the configuration and the warnings. The work is bounded as in [`Config::parse`].
    ///
    /// # Errors
    /// As [`Config::read`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::{Config, Format};
    /// let node = "version: 1\nserver: { http: 127.0.0.1:9000 }\npolicies: []\n";
    /// let (node, _) = Config::parse(node, "tidegate.yaml", Format::Yaml).unwrap();
    /// let shared = "version: 1\npolicies:\n  - { name: all, limit: { rate: 60/min } }\n";
    /// let (whole, _) = node.with_policies(shared, "policies@7").unwrap();
    /// assert_eq!((whole.server.http.tcp().map(|addr| addr.port()), whole.policies.len()), (Some(9000), 1));
    /// let mistakes = node.with_policies("version: 1\nserver: {}\npolicies: []\n", "policies@8").unwrap_err();
    /// assert!(mistakes[0].to_string().starts_with("policies@8:2:1  error  `server` is each node's own"));
    /// ```
    pub fn with_policies(&self, text: &str, name: &str) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let mut findings = Findings::served(name);
        let Some(mut file) = read::read(text, Format::of_text(text), &mut findings) else {
            return Err(findings.finish());
        };
        if let Value::Map(entries) = &mut file.value {
            for (name, _) in entries.iter().filter(|(name, _)| OWN_SECTIONS.contains(&&*name.text)) {
                findings.error(
                    name.spot,
                    format_args!(
                        "`{}` is each node's own; leave it out of policies that all nodes share",
                        name.text
                    ),
                );
            }
            if findings.refused() {
                return Err(findings.finish());
            }
            let own = self.written.tree().entries().iter();
            entries.extend(own.filter(|(name, _)| OWN_SECTIONS.contains(&&*name.text)).cloned());
        }
        Self::build(file, findings)
    }

    /// Builds a configuration from a tree.
    fn build(tree: Node, mut findings: Findings) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let file = &tree;
        shape::check(file, &Kind::Table(&FILE), "file", &mut findings);
        findings.check_patterns();
        if findings.beyond {
            return Err(findings.finish());
        }
        let built = policies::policies(file, &mut findings);
        let triggers = conditions::triggers(file, &mut findings);
        let client_ip = client_ip(file.get("client_ip"));
        let forward_auth = forward_auth::forward_auth(file, &mut findings);
        let envoy = envoy::envoy(file, &mut findings);
        let access = policies::access(file.get("access"));
        let priority_header = forward_auth::told_in_answers(file.get("defaults"), &mut findings);
        policies::check_references(file, &mut findings);
        store::check(file, &mut findings);
        check_ttl(file.get("tickets"), &mut findings);
        server::check_alerts(file.get("server").and_then(server::alerts_of), &mut findings);
        lint::lint(file, &built, &mut findings);
        if findings.refused() {
            return Err(findings.finish());
        }
        let built = built.into_iter().map(|one| one.policy).collect();
        let set = PolicySet::with(built, access, client_ip.ipv6_prefix);
        let policies = match set.and_then(|set| set.with_triggers(triggers)) {
            Ok(set) => Arc::new(set),
            Err(error) => {
                findings.error(policies::place(file, &error).unwrap_or(file.spot), error);
                return Err(findings.finish());
            }
        };
        if forward_auth.is_some()
            && let Some(mistake) = forward_auth::never_of_the_caller(&policies.named())
        {
            findings.error(file.get("forward_auth").map_or(file.spot, |section| section.spot), mistake);
            return Err(findings.finish());
        }
        let list = file.each_of("policies");
        let places = list.iter().map(|node| node.spot).collect();
        let config = Self {
            server: read_server(file.get("server")),
            client_ip,
            forward_auth,
            envoy,
            store: store::read(file),
            tickets: tickets(file.get("tickets")),
            headers: headers(file.get("defaults")),
            priority_header,
            policies,
            effective: Effective::of(file, findings.paths()),
            places,
            written: Written::of(tree, findings.paths()),
        };
        Ok((config, findings.finish()))
    }

    /// Returns the validated file as it was written, as the base for added policies.
    #[must_use]
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// Returns the line and column of a policy in the file, both from 1, by its index in the set; `None` if there is no
    /// such policy.
    #[must_use]
    pub fn place(&self, policy: usize) -> Option<(usize, usize)> {
        self.places.get(policy).map(|spot| (spot.line, spot.column))
    }
}

fn word<'n>(node: Option<&'n Node>, key: &str) -> Option<&'n str> {
    node?.get(key)?.text()
}

fn read_server(node: Option<&Node>) -> Server {
    let address = |key: &str| word(node, key).and_then(|text| text.parse().ok());
    let http = address("http").unwrap_or_else(|| Server::default().http);
    let tls = node.and_then(|node| node.get("tls")).and_then(server::read_tls);
    let otlp = node.and_then(|node| node.get("otlp")).map(server::read_otlp);
    let sight = word(node, "sight") != Some("off");
    let alerts = node.and_then(server::alerts_of).map(server::read_alerts).unwrap_or_default();
    Server {
        http,
        admin: address("admin"),
        grpc: address("grpc"),
        resp: address("resp"),
        tls,
        otlp,
        sight,
        alerts,
    }
}

fn client_ip(node: Option<&Node>) -> ClientIp {
    let default = ClientIp::default();
    let proxies = node.and_then(|node| node.get("trusted_proxies")).map_or(&[][..], Node::each);
    ClientIp {
        trusted_proxies: proxies.iter().filter_map(|proxy| shape::network(proxy.text()?)).collect(),
        header: word(node, "header").map_or(default.header, ForwardHeader::named),
        ipv6_prefix: word(node, "ipv6_prefix")
            .and_then(|text| text.parse().ok())
            .unwrap_or(default.ipv6_prefix),
    }
}

/// The longest life of a ticket, as the library defines it.
const LONGEST_TTL: Duration = Duration::from_secs(30 * 86_400);

fn tickets(node: Option<&Node>) -> TicketSettings {
    TicketSettings {
        key_file: word(node, "key_file").map(PathBuf::from),
        ttl: word(node, "ttl").and_then(|text| span(text).ok()),
        issuer: word(node, "name").map(str::to_owned),
    }
}

fn check_ttl(node: Option<&Node>, findings: &mut Findings) {
    let Some(ttl) = node.and_then(|node| node.get("ttl")) else { return };
    if let Some(Ok(span)) = ttl.text().map(span)
        && (span.is_zero() || span > LONGEST_TTL)
    {
        findings.error(ttl.spot, "tickets.ttl: a ticket lives for more than nothing and at most 30 days");
    }
}

fn headers(defaults: Option<&Node>) -> HeaderForm {
    match word(defaults, "headers") {
        Some("draft-03") => HeaderForm::Draft03,
        Some("x-ratelimit") => HeaderForm::XRateLimit,
        Some("none") => HeaderForm::None,
        _ => HeaderForm::Draft11,
    }
}
