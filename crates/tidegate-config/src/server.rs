//! Reads the settings of `server`: its addresses, TLS on its doors, and where it sends spans.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::diagnostic::Findings;
use super::node::Node;

/// A door of a server, as named in the file and in flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DoorName {
    /// Checks over HTTP.
    Http,
    /// Metrics and administration over HTTP, if they have an address of their own.
    Admin,
    /// Envoy's rate limit service.
    Grpc,
    /// Redis clients.
    Resp,
}

/// TLS settings for the doors of a server. The files are read again whenever they change.
///
/// Doors on Unix sockets are never encrypted: the file mode of the socket decides who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The file with the server's certificate chain in PEM, the server's own certificate first.
    pub cert: PathBuf,
    /// The file with the certificate's private key in PEM. May be the same file as `cert`.
    pub key: PathBuf,
    /// The file with the certificates, in PEM, that issue client certificates; `None`: callers need no certificate.
    pub client_ca: Option<PathBuf>,
    /// Doors that stay unencrypted.
    pub plain: Vec<DoorName>,
}

impl TlsSettings {
    /// Creates settings from the two files that are always needed. Callers need no certificate, and all doors are
    /// encrypted.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { cert: cert.into(), key: key.into(), client_ca: None, plain: Vec::new() }
    }
}

impl DoorName {
    pub(super) const WORDS: [&'static str; 4] = ["http", "admin", "grpc", "resp"];
    const ALL: [Self; 4] = [Self::Http, Self::Admin, Self::Grpc, Self::Resp];

    const fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

impl fmt::Display for DoorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The error is the end of a sentence that begins with the word.
impl FromStr for DoorName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|door| door.word() == text);
        found.ok_or("is not a door; write http, admin, grpc or resp")
    }
}

pub(super) fn read_tls(node: &Node) -> Option<TlsSettings> {
    let file = |key: &str| node.text_of(key).map(PathBuf::from);
    let plain = node.each_of("plain");
    Some(TlsSettings {
        cert: file("cert_file")?,
        key: file("key_file")?,
        client_ca: file("ca_file"),
        plain: plain.iter().filter_map(|door| door.text()?.parse().ok()).collect(),
    })
}

/// The protocols for the collector.
const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];

/// How the keys of decisions are sent: as digests or in clear text.
pub(super) const OTLP_KEYS: [&str; 2] = ["digest", "revealed"];

/// Where a server sends spans of its decisions over OTLP, the protocol of OpenTelemetry. Read only when the server
/// starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtlpSettings {
    /// The collector, such as `http://127.0.0.1:4317`; `None`: the environment's, if any.
    pub endpoint: Option<String>,
    /// The protocol for the collector.
    pub protocol: OtlpProtocol,
    /// Whether keys are sent in clear text instead of as digests.
    pub reveal_keys: bool,
}

/// The protocol for a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtlpProtocol {
    /// Over gRPC.
    #[default]
    Grpc,
    /// As protobuf over HTTP/1.1.
    HttpProtobuf,
}

impl OtlpProtocol {
    /// Returns the protocol for its name in the environment; `None` for any other, such as `http/json`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Grpc, Self::HttpProtobuf];
        PROTOCOLS.into_iter().zip(all).find_map(|(known, protocol)| (known == name).then_some(protocol))
    }
}

/// The variables of OpenTelemetry say the rest.
pub(super) fn read_otlp(node: &Node) -> OtlpSettings {
    let keys = node.text_of("keys");
    OtlpSettings { reveal_keys: keys == Some("revealed"), ..OtlpSettings::default() }
}

/// Whom a server tells that something is wrong. Read only when the server starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlertSettings {
    /// The receivers; each gets all alerts.
    pub to: Vec<AlertReceiver>,
    /// Where people reach the pages of the server, for links in messages: a URL without a path's end; `None`: no links.
    pub link: Option<String>,
}

/// A receiver of alerts. URLs are `https`, or `http` to a loopback address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlertReceiver {
    /// An Alertmanager.
    Alertmanager {
        /// Its URL, to which the path of its API is appended.
        url: String,
    },
    /// A program that reads the JSON of Alertmanager's webhooks.
    Webhook {
        /// Its URL, which may be a secret.
        url: String,
        /// The file with the secret that signs messages; not read here.
        secret_file: PathBuf,
    },
}

/// The most receivers of alerts.
const MOST_RECEIVERS: usize = 8;

/// Returns the section with the receivers of alerts.
pub(super) fn alerts_of(server: &Node) -> Option<&Node> {
    server.get("sight")?.get("alerts")
}

/// Receivers that lack something were reported by [`check_alerts`].
pub(super) fn read_alerts(node: &Node) -> AlertSettings {
    let receiver = |node: &Node| {
        if let Some(url) = node.text_of("alertmanager") {
            return Some(AlertReceiver::Alertmanager { url: url.to_owned() });
        }
        let (url, secret_file) = (node.text_of("webhook")?, node.text_of("secret_file")?);
        Some(AlertReceiver::Webhook { url: url.to_owned(), secret_file: secret_file.into() })
    };
    AlertSettings {
        to: node.each_of("to").iter().filter_map(receiver).collect(),
        link: node.text_of("link").map(str::to_owned),
    }
}

pub(super) fn check_alerts(node: Option<&Node>, findings: &mut Findings) {
    let Some(node) = node else { return };
    if let Some((spot, link)) = node.get("link").and_then(|link| Some((link.spot, link.text()?)))
        && host_of(link).is_none()
    {
        findings.error(spot, "alerts.link is not a URL, such as https://tidegate-admin.example");
    }
    let receivers = node.each_of("to");
    if receivers.is_empty() || receivers.len() > MOST_RECEIVERS {
        let told = format!("alerts.to has {} receivers; name 1 to {MOST_RECEIVERS}", receivers.len());
        findings.error(node.spot, told);
    }
    for receiver in receivers {
        let (manager, webhook) = (receiver.get("alertmanager"), receiver.get("webhook"));
        let mistake = match (manager, webhook, receiver.get("secret_file")) {
            (Some(_), Some(_), _) => {
                Some("a receiver of alerts is an alertmanager or a webhook; list two receivers")
            }
            (None, None, _) => Some(
                "a receiver of alerts has neither alertmanager nor webhook; write { alertmanager: 'http://127.0.0.1:9093' }",
            ),
            (Some(_), None, Some(_)) => {
                Some("secret_file is for a webhook; an alertmanager checks no signatures, so leave it out")
            }
            (None, Some(_), None) => {
                Some("a webhook has no secret_file; name the file with the secret that signs its messages")
            }
            _ => None,
        };
        if let Some(mistake) = mistake {
            findings.error(receiver.spot, mistake);
        }
        for url in [manager, webhook].into_iter().flatten() {
            // The URL may be a secret, so it is not repeated.
            if let Some(text) = url.text()
                && !may_be_told(text)
            {
                let told = "a receiver of alerts needs a URL that begins with https://, or with http:// and a loopback \
                            address, such as http://127.0.0.1:9093, without a user name";
                findings.error(url.spot, told);
            }
        }
    }
}

/// Returns whether messages may be sent to a URL: others on the way cannot read them.
fn may_be_told(url: &str) -> bool {
    let Some(host) = host_of(url) else { return false };
    let is_of_this_machine = || {
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|host| host.to_canonical().is_loopback())
    };
    url.starts_with("https://") || is_of_this_machine()
}

/// Returns the host of a URL with `https` or `http`, without brackets; `None` for any other text, and for a URL with a
/// user name or a fragment.
fn host_of(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains(['#', '"', '<', '>', '\\']) {
        return None;
    }
    let authority = rest.split(['/', '?']).next()?;
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = |port: &str| port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    (!host.is_empty() && !host.contains('@') && (port.is_empty() || is_port(port))).then_some(host)
}

/// Where a server listens.
///
/// # Examples
/// ```
/// use tidegate::config::Address;
/// let address: Address = "unix:/run/tidegate.sock,mode=660".parse()?;
/// assert_eq!(address.to_string(), "unix:/run/tidegate.sock");
/// assert!(address.is_local());
/// # Ok::<(), tidegate::config::NoAddress>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A Unix socket in the file system.
    Unix {
        /// The path of the socket.
        path: PathBuf,
        /// The file mode, which decides who may connect: those with write permission. 0o600 unless the text says
        /// another.
        mode: u32,
    },
}

/// The longest path of a socket, in bytes, that every operating system accepts.
const LONGEST_PATH: usize = 100;

/// Why a text is not an address. Prints as the end of a sentence about the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAddress {
    /// Neither an address and port nor a path after `unix:`.
    #[error(
        "is not an address and port, such as 127.0.0.1:8080, or 8080 for this machine alone, nor a socket, such as unix:/run/tidegate.sock"
    )]
    Unknown,
    /// A port with no host, or with a star for it.
    #[error(
        "has no host; write 0.0.0.0:{0} for all addresses of this machine, or 127.0.0.1:{0} for itself alone"
    )]
    NoHost(u16),
    /// The path is relative: it would depend on the directory in which the server starts.
    #[error(
        "is a socket whose path does not begin with `/`; write the whole path, as unix:/run/tidegate.sock"
    )]
    Relative,
    /// The path is longer than the operating system accepts.
    #[error("is a socket whose path has more than {} bytes", LONGEST_PATH)]
    Long,
    /// The text after the path is not a file mode.
    #[error(
        "has something else than its mode behind the path; write three octal digits, as unix:/run/tidegate.sock,mode=660"
    )]
    Mode,
}

impl Address {
    /// Reports whether only this machine can reach the address: a loopback address or a Unix socket.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(addr) => addr.ip().to_canonical().is_loopback(),
            Self::Unix { .. } => true,
        }
    }

    /// Returns the IP address and port; `None` for a Unix socket.
    #[must_use]
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(addr) => Some(*addr),
            Self::Unix { .. } => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let Some(socket) = text.strip_prefix("unix:") else {
            let hostless = || text.strip_prefix("*:").or_else(|| text.strip_prefix(':'))?.parse().ok();
            return tcp(text)
                .map(Self::Tcp)
                .ok_or_else(|| hostless().map_or(NoAddress::Unknown, NoAddress::NoHost));
        };
        let (path, mode) = match socket.split_once(',') {
            None => (socket, 0o600),
            Some((path, said)) => {
                let octal = |digits: &&str| {
                    digits.len() == 3 && digits.bytes().all(|digit| (b'0'..b'8').contains(&digit))
                };
                let digits = said.strip_prefix("mode=").filter(octal);
                let mode = digits.and_then(|digits| u32::from_str_radix(digits, 8).ok());
                (path, mode.ok_or(NoAddress::Mode)?)
            }
        };
        if !path.starts_with('/') {
            return Err(NoAddress::Relative);
        }
        if path.len() > LONGEST_PATH {
            return Err(NoAddress::Long);
        }
        Ok(Self::Unix { path: path.into(), mode })
    }
}

/// Parses an address and port. A port alone and `localhost` mean 127.0.0.1; other host names are not resolved.
fn tcp(text: &str) -> Option<SocketAddr> {
    let of_this_machine = || {
        let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
        let port = port.parse().ok().filter(|_| host.eq_ignore_ascii_case("localhost"))?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    text.parse().ok().or_else(of_this_machine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Format};

    fn read(tls: &str) -> Result<TlsSettings, String> {
        let text = format!("version: 1\nserver: {{ tls: {tls} }}\npolicies: []\n");
        let read = Config::parse(&text, "t.yaml", Format::Yaml);
        let read = read.map_err(|found| found.iter().map(|one| format!("{one}\n")).collect::<String>());
        read.map(|(config, _)| config.server.tls.expect("settings"))
    }

    #[test]
    fn files_and_plain_doors_are_read() {
        let plain = TlsSettings::new("/c.pem", "/k.pem");
        assert_eq!(read("{ cert_file: /c.pem, key_file: /k.pem }"), Ok(plain.clone()));
        let mutual = TlsSettings {
            client_ca: Some("/ca.pem".into()),
            plain: vec![DoorName::Admin, DoorName::Resp],
            ..plain
        };
        let text = "{ cert_file: /c.pem, key_file: /k.pem, ca_file: /ca.pem, plain: [admin, resp] }";
        assert_eq!(read(text), Ok(mutual));
    }

    #[test]
    fn what_is_missing_or_unknown_is_told() {
        for (text, told) in [
            ("{ cert_file: /c.pem }", "key_file"),
            ("{ cert: /c.pem, key: /k.pem }", "it is called cert_file now: write cert_file: /c.pem"),
            ("{ key_file: /k.pem }", "cert_file"),
            ("{ cert_file: /c.pem, key_file: /k.pem, plain: [https] }", "https"),
            ("{ cert_file: /c.pem, key_file: /k.pem, ca: /ca.pem }", "ca_file"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(told), "{text}: {refused}");
        }
        assert!("https".parse::<DoorName>().is_err());
        assert!(DoorName::ALL.into_iter().all(|door| door.word().parse() == Ok(door)));
    }

    #[test]
    fn sight_is_on_unless_it_is_turned_off() {
        for (server, sight) in [("{}", true), ("{ sight: on }", true), ("{ sight: off }", false)] {
            let text = format!("version: 1\nserver: {server}\npolicies: []\n");
            let (config, _) = Config::parse(&text, "t", Format::Yaml).unwrap();
            assert_eq!(config.server.sight, sight, "{server}");
        }
    }

    fn alerts(alerts: &str) -> Result<AlertSettings, String> {
        let text = format!("version: 1\nserver: {{ sight: {{ alerts: {alerts} }} }}\npolicies: []\n");
        let read = Config::parse(&text, "t.yaml", Format::Yaml);
        let read = read.map_err(|found| found.iter().map(|one| format!("{one}\n")).collect::<String>());
        read.map(|(config, _)| {
            assert!(config.server.sight);
            config.server.alerts
        })
    }

    #[test]
    fn receivers_of_alerts_are_read() {
        let text = "{ to: [{ alertmanager: 'http://127.0.0.1:9093' }, { webhook: 'https://hooks.example/x?y=1', \
                    secret_file: /s }], link: 'https://gate.example' }";
        let to = vec![
            AlertReceiver::Alertmanager { url: "http://127.0.0.1:9093".to_owned() },
            AlertReceiver::Webhook {
                url: "https://hooks.example/x?y=1".to_owned(),
                secret_file: "/s".into(),
            },
        ];
        assert_eq!(alerts(text), Ok(AlertSettings { to, link: Some("https://gate.example".to_owned()) }));
        for url in
            ["http://localhost:9093/am", "http://[::1]:1", "http://127.3.2.1", "https://a.example:8443/"]
        {
            assert!(alerts(&format!("{{ to: [{{ alertmanager: '{url}' }}] }}")).is_ok(), "{url}");
        }
    }

    #[test]
    fn receivers_that_cannot_be_told_are_refused_without_their_urls() {
        for url in [
            "http://hooks.example/s3cret",
            "http://10.0.0.1/s3cret",
            "http://127.0.0.1@evil.example/s3cret",
            "http://127.0.0.1.evil.example/s3cret",
            "https://user@hooks.example/s3cret",
            "ftp://127.0.0.1/s3cret",
            "https:///s3cret",
            "https://a b/s3cret",
            "http://127.0.0.1:x/s3cret",
        ] {
            let refused = alerts(&format!("{{ to: [{{ alertmanager: '{url}' }}] }}")).unwrap_err();
            assert!(refused.contains("loopback"), "{url}: {refused}");
        }
        let webhook = "webhook: 'https://hooks.example/'";
        for (text, told) in [
            ("{ to: [] }".to_owned(), "name 1 to 8"),
            ("{ link: 'https://a.example' }".to_owned(), "alerts has no to"),
            (format!("{{ to: [{{ {webhook} }}] }}"), "no secret_file"),
            ("{ to: [{ secret_file: /s }] }".to_owned(), "neither alertmanager nor webhook"),
            (
                format!("{{ to: [{{ alertmanager: 'http://[::1]', {webhook}, secret_file: /s }}] }}"),
                "two receivers",
            ),
            ("{ to: [{ alertmanager: 'http://[::1]', secret_file: /s }] }".to_owned(), "leave it out"),
            ("{ to: [{ alertmanager: 'http://[::1]' }], link: gate.example }".to_owned(), "alerts.link"),
            ("{ to: [{ slack: 'https://a.example' }] }".to_owned(), "slack"),
        ] {
            let refused = alerts(&text).unwrap_err();
            assert!(refused.contains(told), "{text}: {refused}");
        }
    }

    fn otlp(otlp: &str) -> Result<OtlpSettings, String> {
        let text = format!("version: 1\nserver: {{ otlp: {otlp} }}\npolicies: []\n");
        let read = Config::parse(&text, "t.yaml", Format::Yaml);
        let read = read.map_err(|found| found.iter().map(|one| format!("{one}\n")).collect::<String>());
        read.map(|(config, _)| config.server.otlp.expect("settings"))
    }

    #[test]
    fn the_collector_and_what_it_is_sent_are_read() {
        assert_eq!(otlp("{}"), Ok(OtlpSettings::default()));
        assert!(otlp("{ keys: revealed }").unwrap().reveal_keys);
        assert_eq!(otlp("{ keys: digest }"), Ok(OtlpSettings::default()));
    }

    #[test]
    fn a_value_that_is_none_is_told() {
        for (text, told) in [
            (
                "{ endpoint: 'http://127.0.0.1:4317' }",
                "set OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317",
            ),
            ("{ sample: 10% }", "OTEL_TRACES_SAMPLER_ARG=0.1"),
            ("{ keys: all }", "revealed"),
            ("{ protocol: http/protobuf }", "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
            ("{ url: 'http://127.0.0.1:4317' }", "url"),
        ] {
            let refused = otlp(text).unwrap_err();
            assert!(refused.contains(told), "{text}: {refused}");
        }
    }

    #[test]
    fn an_address_is_one_of_the_network_or_a_socket() {
        let of = |text: &str| text.parse::<Address>();
        assert_eq!(of("127.0.0.1:80"), Ok(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 80)))));
        for here in ["80", "localhost:80"] {
            assert_eq!(of(here), of("127.0.0.1:80"), "{here}");
        }
        let socket = |mode| Address::Unix { path: "/run/t".into(), mode };
        assert_eq!(of("unix:/run/t"), Ok(socket(0o600)));
        assert_eq!(of("unix:/run/t,mode=666"), Ok(socket(0o666)));
        for (text, why) in [
            ("nowhere", NoAddress::Unknown),
            ("nowhere:80", NoAddress::Unknown),
            (":80", NoAddress::NoHost(80)),
            ("*:80", NoAddress::NoHost(80)),
            ("70000", NoAddress::Unknown),
            ("unix:run/t", NoAddress::Relative),
            ("unix:", NoAddress::Relative),
            ("unix:/run/t,mode=66", NoAddress::Mode),
            ("unix:/run/t,mode=668", NoAddress::Mode),
            ("unix:/run/t,660", NoAddress::Mode),
        ] {
            assert_eq!(of(text), Err(why), "{text}");
        }
        assert_eq!(of(&format!("unix:/{}", "x".repeat(100))), Err(NoAddress::Long));
    }
}
