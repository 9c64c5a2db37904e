//! Settings for TLS on the doors of a server.

use std::fmt;
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

/// TLS settings for the doors of a server. The files are read at the start and again whenever they change.
///
/// Doors on Unix sockets are never encrypted: the file mode of the socket decides who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The file with the server's certificate chain in PEM, the server's own certificate first.
    pub cert: PathBuf,
    /// The file with the certificate's private key in PEM, not read here. May be the same file as `cert`.
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

    /// Returns the word for the door in the file.
    #[must_use]
    pub const fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

impl fmt::Display for DoorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The error if a word does not name a door. Prints as the end of a sentence that begins with the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a door; write http, admin, grpc or resp")]
pub struct UnknownDoor;

impl FromStr for DoorName {
    type Err = UnknownDoor;

    fn from_str(text: &str) -> Result<Self, UnknownDoor> {
        Self::ALL.into_iter().find(|door| door.word() == text).ok_or(UnknownDoor)
    }
}

/// Reads the settings from a table that passed the shape check.
pub(super) fn read(node: &Node) -> Option<TlsSettings> {
    let file = |key: &str| node.get(key)?.text().map(PathBuf::from);
    let plain = node.get("plain").map_or(&[][..], Node::each);
    Some(TlsSettings {
        cert: file("cert_file")?,
        key: file("key_file")?,
        client_ca: file("ca_file"),
        plain: plain.iter().filter_map(|door| door.text()?.parse().ok()).collect(),
    })
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
}
