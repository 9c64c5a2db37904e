//! The server to ask, parsed from its URL.

use std::fmt;

use hyper::Uri;

use crate::exit::Mistake;
use crate::features::Feature;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) protocol: Protocol,
    pub(super) encrypted: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// The path before the API's own paths, without a slash at its end.
    pub(super) prefix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Resp,
    /// Envoy's rate limit service.
    Grpc,
}

impl Target {
    /// Reads a URL.
    ///
    /// # Errors
    /// If the text is not a URL of a server that this command can ask; the message suggests one.
    pub(super) fn read(text: &str) -> Result<Self, Mistake> {
        let refuse = |why: &str| Err(Mistake(format!("the URL `{text}` {why}")));
        let works = match (cfg!(feature = "grpc"), cfg!(feature = "tls")) {
            (true, true) => {
                "write http://127.0.0.1:8080, resp://127.0.0.1:6380 or grpc://127.0.0.1:8081, over TLS https://, rediss:// or grpcs://"
            }
            (true, false) => "write http://127.0.0.1:8080, resp://127.0.0.1:6380 or grpc://127.0.0.1:8081",
            (false, true) => {
                "write http://127.0.0.1:8080 or resp://127.0.0.1:6380, over TLS https:// or rediss://"
            }
            (false, false) => "write http://127.0.0.1:8080 or resp://127.0.0.1:6380",
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return refuse(&format!("does not name a protocol; {works}"));
        };
        let scheme = scheme.to_ascii_lowercase();
        let encrypted = matches!(&*scheme, "https" | "rediss" | "grpcs");
        let protocol = match &*scheme {
            "http" | "https" => Protocol::Http,
            "resp" | "rediss" => Protocol::Resp,
            "redis" => return refuse(&format!("has the wrong scheme; write resp://{rest}")),
            "grpc" | "grpcs" if cfg!(feature = "grpc") => Protocol::Grpc,
            "grpc" | "grpcs" => {
                return refuse(&format!("uses gRPC; {}", Feature::Grpc.lacking()));
            }
            _ => return refuse(&format!("uses a protocol that this command does not support; {works}")),
        };
        let whole = || refuse(&format!("is not a URL of a server; {works}"));
        let Ok(uri) = text.parse::<Uri>() else { return whole() };
        let Some(host) = uri.host().filter(|host| !host.is_empty()) else { return whole() };
        if uri.query().is_some() || rest.contains(['#', '@']) {
            return whole();
        }
        let prefix = uri.path().trim_end_matches('/');
        let port = match (uri.port_u16(), protocol) {
            (Some(port), _) => port,
            // A port that is not a number stays in the authority unparsed.
            (None, _) if uri.authority().is_some_and(|authority| authority.as_str() != host) => {
                return whole();
            }
            (None, Protocol::Http) if encrypted => 443,
            (None, Protocol::Http) => 80,
            _ => return refuse("has no port; write one, as in resp://127.0.0.1:6380"),
        };
        if protocol == Protocol::Resp && !prefix.is_empty() {
            return refuse("has a path, which Redis clients do not use; write resp://127.0.0.1:6380");
        }
        let (host, prefix) = (host.trim_matches(['[', ']']).to_owned(), prefix.to_owned());
        Ok(Self { protocol, encrypted, host, port, prefix })
    }

    /// Returns host and port in the form of the `host` header.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.protocol, self.encrypted) {
            (Protocol::Http, false) => "http",
            (Protocol::Http, true) => "https",
            (Protocol::Resp, false) => "resp",
            (Protocol::Resp, true) => "rediss",
            (Protocol::Grpc, false) => "grpc",
            (Protocol::Grpc, true) => "grpcs",
        };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_they_are_printed() {
        for (text, shown) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("HTTP://localhost:8080/", "http://localhost:8080"),
            ("http://gate/limits/", "http://gate:80/limits"),
            ("resp://[::1]:6380", "resp://[::1]:6380"),
            ("https://gate", "https://gate:443"),
            ("rediss://gate:6380", "rediss://gate:6380"),
        ] {
            assert_eq!(Target::read(text).unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_asked_is_told_with_what_could() {
        for (text, says) in [
            ("127.0.0.1:8080", "does not name a protocol; write http://127.0.0.1:8080"),
            ("rediss://gate", "has no port"),
            ("grpc://gate", if cfg!(feature = "grpc") { "has no port" } else { "uses gRPC; this program" }),
            ("redis://gate:6380", "has the wrong scheme; write resp://gate:6380"),
            ("ftp://gate", "uses a protocol that this command does not support; write http://"),
            ("resp://gate", "has no port; write one, as in resp://127.0.0.1:6380"),
            ("resp://gate:6380/0", "has a path"),
            ("http://:8080", "is not a URL of a server"),
            ("http://gate:99999", "is not a URL of a server"),
            ("http://gate:80/?a", "is not a URL of a server"),
            ("http://user@gate:80", "is not a URL of a server"),
            ("http://", "is not a URL of a server"),
        ] {
            let told = Target::read(text).unwrap_err().to_string();
            assert!(told.starts_with(&format!("the URL `{text}` {says}")), "{text}: {told}");
            let is_listed = !told.contains("; write http://") || told.contains("https://");
            assert!(is_listed || !cfg!(feature = "tls"), "what is spoken over TLS is named too: {told}");
        }
    }
}
