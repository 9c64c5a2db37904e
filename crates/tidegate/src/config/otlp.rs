//! Settings for sending spans of decisions to an OpenTelemetry collector.

use super::grammars::Grammar;
use super::node::Node;

/// The protocols for the collector.
pub(super) const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];
/// How the keys of decisions are sent: as digests or in clear text.
pub(super) const KEYS: [&str; 2] = ["digest", "revealed"];

pub(super) const ENDPOINT: Grammar = Grammar {
    reads: is_endpoint,
    expected: "is not the address of a collector; use http:// or https://, a host, and the port where it takes OTLP, such as http://127.0.0.1:4317",
    examples: &["http://127.0.0.1:4317"],
};
pub(super) const SAMPLE: Grammar = Grammar {
    reads: |text| sample(text).is_some(),
    expected: "is not a share of the calls; use 0% to 100%, as 0.1%",
    examples: &["10%", "0.1%"],
};

/// Where a server sends spans of its decisions over OTLP, the protocol of OpenTelemetry. Read only when the server
/// starts.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OtlpSettings {
    /// The collector, such as `http://127.0.0.1:4317`; `None`: the one that the environment variables name, if any.
    pub endpoint: Option<String>,
    /// The protocol for the collector.
    pub protocol: OtlpProtocol,
    /// The share of calls to send, 0 to 1, among calls whose caller does not decide about sampling; `None`: the share
    /// that the environment says, otherwise all.
    pub sample: Option<f64>,
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
    /// Returns the protocol for the name used in the file and the environment; `None` for any other name, such as
    /// `http/json`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Grpc, Self::HttpProtobuf];
        PROTOCOLS.into_iter().zip(all).find_map(|(known, protocol)| (known == name).then_some(protocol))
    }
}

/// Reads the settings from a table that passed the shape check.
pub(super) fn read(node: &Node) -> OtlpSettings {
    let text = |key: &str| node.get(key)?.text();
    OtlpSettings {
        endpoint: text("endpoint").map(str::to_owned),
        protocol: text("protocol").and_then(OtlpProtocol::named).unwrap_or_default(),
        sample: text("sample").and_then(sample),
        reveal_keys: text("keys") == Some("revealed"),
    }
}

/// Reports whether a text has a supported scheme and a host. Whether the address can be reached shows only in its
/// client.
fn is_endpoint(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        !rest.starts_with(['/', ':']) && !rest.is_empty() && !rest.contains(char::is_whitespace)
    })
}

/// Parses `10%` or `0.1%` into a fraction of 1.
fn sample(text: &str) -> Option<f64> {
    let digits = text.trim().strip_suffix('%')?.trim_end();
    // Only digits and a point: `parse` would also accept `inf` and exponents.
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let percent: f64 = digits.parse().ok().filter(|_| plain)?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Format};

    fn read(otlp: &str) -> Result<OtlpSettings, String> {
        let text = format!("version: 1\nserver: {{ otlp: {otlp} }}\npolicies: []\n");
        let read = Config::parse(&text, "t.yaml", Format::Yaml);
        let read = read.map_err(|found| found.iter().map(|one| format!("{one}\n")).collect::<String>());
        read.map(|(config, _)| config.server.otlp.expect("settings"))
    }

    #[test]
    fn the_collector_and_what_it_is_sent_are_read() {
        assert_eq!(read("{}"), Ok(OtlpSettings::default()));
        let all = OtlpSettings {
            endpoint: Some("https://otel.example:4317".to_owned()),
            protocol: OtlpProtocol::HttpProtobuf,
            sample: Some(0.001),
            reveal_keys: true,
        };
        assert_eq!(
            read(
                "{ endpoint: 'https://otel.example:4317', protocol: http/protobuf, sample: 0.1%, keys: revealed }"
            ),
            Ok(all)
        );
        assert_eq!(read("{ sample: 100%, keys: digest }").unwrap().sample, Some(1.0));
    }

    #[test]
    fn a_value_that_is_none_is_told() {
        for (text, told) in [
            ("{ endpoint: '127.0.0.1:4317' }", "http://127.0.0.1:4317"),
            ("{ endpoint: 'http://' }", "not the address of a collector"),
            ("{ endpoint: 'http://:4317' }", "not the address of a collector"),
            ("{ sample: 101% }", "0% to 100%"),
            ("{ sample: 1e1% }", "0% to 100%"),
            ("{ sample: '%' }", "0% to 100%"),
            ("{ keys: all }", "revealed"),
            ("{ protocol: http/json }", "http/protobuf"),
            ("{ url: 'http://127.0.0.1:4317' }", "url"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(told), "{text}: {refused}");
        }
    }
}
