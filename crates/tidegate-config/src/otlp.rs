//! Settings for sending spans of decisions to an OpenTelemetry collector.

use super::node::Node;

/// The protocols for the collector.
const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];
/// How the keys of decisions are sent: as digests or in clear text.
pub(super) const KEYS: [&str; 2] = ["digest", "revealed"];

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
    /// Returns the protocol for the name used in the environment; `None` for any other name, such as
    /// `http/json`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Grpc, Self::HttpProtobuf];
        PROTOCOLS.into_iter().zip(all).find_map(|(known, protocol)| (known == name).then_some(protocol))
    }
}

/// Reads the settings from a table that passed the shape check. The variables of OpenTelemetry say the rest.
pub(super) fn read(node: &Node) -> OtlpSettings {
    let keys = node.get("keys").and_then(Node::text);
    OtlpSettings { reveal_keys: keys == Some("revealed"), ..OtlpSettings::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Format};

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
}
