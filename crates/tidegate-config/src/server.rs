//! Reads the settings of `server`: its addresses, TLS on its doors, and where it sends spans.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

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
