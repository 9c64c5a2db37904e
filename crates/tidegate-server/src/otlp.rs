//! Sends a span of each decision to a collector by OTLP, over gRPC or HTTP. The OpenTelemetry crates make spans and
//! batches, sample, and speak the protocol.
//!
//! A door asks [`Spans`] for a [`CallSpan`]; a call that is not sampled costs a look at two headers. Facts are noted
//! while it is answered ([`crate::span_attributes`]).
//!
//! No call waits for the collector: one thread sends from a bounded queue. If it is full, the span is dropped and
//! counted.
//!
//! Whether spans are sent, and where, is decided by variables of the environment and the file ([`otlp_of`]). The
//! OpenTelemetry crates read the other variables; of these, they ignore a protocol that they do not know, and take an
//! address without a scheme.
//!
//! # Source
//! The OpenTelemetry specification, "Environment variable specification" and "OpenTelemetry protocol exporter".

#[cfg(feature = "otel")]
mod exporter;
#[cfg(feature = "otel")]
mod spans;

use tidegate::config::{OtlpProtocol, OtlpSettings};

#[cfg(not(feature = "otel"))]
pub(crate) use self::absent::Spans;
#[cfg(feature = "otel")]
pub(crate) use self::spans::Spans;

/// The default addresses of collectors: for gRPC, and for HTTP.
const USUAL: [&str; 2] = ["http://127.0.0.1:4317", "http://127.0.0.1:4318"];

/// The path for spans over HTTP, below the collector's address.
const PATH: &str = "/v1/traces";

/// The collector for spans; over HTTP, the whole URL.
const FOR_SPANS: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// The collector for all signals.
const FOR_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The protocol variables. The most specific one comes first.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// Returns where spans are sent. The environment wins over the file. `None` if neither names a collector, or the
/// environment forbids it (`OTEL_SDK_DISABLED=true`, `OTEL_TRACES_EXPORTER=none`). Without the feature `otel` the
/// environment is ignored.
///
/// # Errors
/// [`OtlpError::NotBuilt`] if a file asks for spans without the feature, [`OtlpError::Variable`] for another protocol
/// or exporter, [`OtlpError::Collector`] for an address without `http://` or `https://`.
pub fn otlp_of(file: Option<&OtlpSettings>) -> Result<Option<OtlpSettings>, OtlpError> {
    if cfg!(not(feature = "otel")) {
        return file.map_or(Ok(None), |_| Err(OtlpError::NotBuilt));
    }
    resolve(file, variable)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn resolve(
    file: Option<&OtlpSettings>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<OtlpSettings>, OtlpError> {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let (for_spans, for_all) = (variable(FOR_SPANS), variable(FOR_ALL));
    if file.is_none() && for_spans.is_none() && for_all.is_none() {
        return Ok(None);
    }
    match variable("OTEL_TRACES_EXPORTER") {
        Some(value) if value == "none" => return Ok(None),
        Some(value) if value != "otlp" => {
            let (variable, use_this) = ("OTEL_TRACES_EXPORTER", "otlp or none");
            return Err(OtlpError::Variable { variable, value, use_this });
        }
        _ => {}
    }
    let mut settings = file.cloned().unwrap_or_default();
    let protocol = PROTOCOLS.into_iter().find_map(|name| Some((name, variable(name)?)));
    if let Some((variable, value)) = protocol {
        let Some(named) = OtlpProtocol::named(&value) else {
            return Err(OtlpError::Variable { variable, value, use_this: "grpc or http/protobuf" });
        };
        settings.protocol = named;
    }
    let over_http = settings.protocol == OtlpProtocol::HttpProtobuf;
    let of_all = for_all.or(settings.endpoint).unwrap_or_else(|| USUAL[usize::from(over_http)].to_owned());
    let endpoint = match for_spans {
        Some(endpoint) => endpoint,
        None if over_http && !of_all.ends_with(PATH) => of_all.trim_end_matches('/').to_owned() + PATH,
        None => of_all,
    };
    // The file's address always has a scheme. For a variable's without one, the client would only say that it
    // cannot connect.
    if !["http://", "https://"].into_iter().any(|scheme| endpoint.starts_with(scheme)) {
        return Err(OtlpError::Collector {
            endpoint,
            why: "there is neither http:// nor https://".to_owned(),
        });
    }
    settings.endpoint = Some(endpoint);
    Ok(Some(settings))
}

// Why spans cannot be sent.

/// Why spans of decisions cannot be sent to a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The program was built without the feature `otel`.
    #[error(
        "server.otlp: this build sends no spans; build it with the feature `otel`, or leave server.otlp out of the file"
    )]
    NotBuilt,
    /// A variable asks for something that is not supported.
    #[error("{variable}: {value:?} is not supported; use {use_this}, or leave it out")]
    Variable {
        /// The name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What would work.
        use_this: &'static str,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("{named} is set and {missing} is not; a client certificate needs both")]
    Pair {
        /// The variable that is set.
        named: &'static str,
        /// The one that is missing.
        missing: &'static str,
    },
    /// The system's trusted certificates cannot be read.
    #[error(
        "the certificates of this system cannot be used: {why}; name the collector's own in OTEL_EXPORTER_OTLP_CERTIFICATE"
    )]
    Roots {
        /// Why.
        why: String,
    },
    /// A file of certificates or of a key cannot be used.
    #[error("{variable}: the file {path} {why}")]
    Certificate {
        /// The name of the variable.
        variable: &'static str,
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// The collector's address cannot be used.
    #[error("the collector {endpoint}: {why}; write it as http://127.0.0.1:4317")]
    Collector {
        /// The address.
        endpoint: String,
        /// Why.
        why: String,
    },
}

// How calls end, and a build without spans.

/// How a call ended, in the terms of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "no span is told"))]
pub(crate) enum CallEnd {
    /// An HTTP status.
    Http(u16),
    /// A gRPC status by its name.
    #[cfg(feature = "grpc")]
    Grpc(&'static str),
    /// A reply to a Redis client.
    Resp {
        /// Whether the reply was an error.
        error: bool,
    },
}

#[cfg(not(feature = "otel"))]
mod absent {
    //! A build without OpenTelemetry makes no span, so no method here is ever called.

    use std::pin::Pin;
    use std::time::Duration;

    use http::Request;
    use prometheus_client::registry::Registry;
    use tidegate::config::OtlpSettings;

    use super::{CallEnd, OtlpError};

    /// Never made: no spans are sent.
    #[derive(Debug)]
    pub(crate) enum Spans {}

    /// Never made: a call has no span.
    #[derive(Debug)]
    pub(crate) enum CallSpan {}

    impl Spans {
        pub(crate) fn open(_: &OtlpSettings) -> Result<Self, OtlpError> {
            Err(OtlpError::NotBuilt)
        }

        pub(crate) fn http<B>(&self, _: &Request<B>) -> Option<CallSpan> {
            match *self {}
        }

        #[cfg(feature = "grpc")]
        pub(crate) fn grpc(&self, _: &str, _: &http::HeaderMap) -> Option<CallSpan> {
            match *self {}
        }

        pub(crate) fn resp(&self, _: &'static str) -> Option<CallSpan> {
            match *self {}
        }

        pub(crate) fn show(&self, _: &mut Registry) {
            match *self {}
        }

        pub(crate) async fn close(&self, _: Duration) {
            match *self {}
        }
    }

    impl CallSpan {
        pub(crate) fn around<'a, T: 'a>(
            self,
            _: Pin<&'a mut (dyn Future<Output = T> + Send + 'a)>,
            _: fn(&T) -> CallEnd,
        ) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
            match self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(
        file: Option<&OtlpSettings>,
        variables: &[(&str, &str)],
    ) -> Result<Option<OtlpSettings>, OtlpError> {
        resolve(file, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_goes_before_the_file() {
        let mut file = OtlpSettings::default();
        file.endpoint = Some("http://file:4317".to_owned());
        let endpoint = |found: Result<Option<OtlpSettings>, _>| found.unwrap().unwrap().endpoint.unwrap();
        assert_eq!(resolved(None, &[]), Ok(None));
        assert_eq!(resolved(Some(&file), &[]), Ok(Some(file.clone())));
        assert_eq!(endpoint(resolved(Some(&OtlpSettings::default()), &[])), USUAL[0]);
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4317");
        let spans = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://spans:4317");
        assert_eq!(endpoint(resolved(None, &[all])), all.1);
        assert_eq!(endpoint(resolved(Some(&file), &[all, spans])), spans.1);
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        // An address for all signals gets the path appended; one for spans is the URL itself.
        assert_eq!(endpoint(resolved(Some(&file), &[http])), "http://file:4317/v1/traces");
        assert_eq!(endpoint(resolved(None, &[all, http])), "http://all:4317/v1/traces");
        let slash = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/base/");
        assert_eq!(endpoint(resolved(None, &[slash, http])), "http://all:4318/base/v1/traces");
        assert_eq!(endpoint(resolved(None, &[all, spans, http])), spans.1);
        let usual = resolved(Some(&OtlpSettings::default()), &[http]);
        assert_eq!(endpoint(usual), "http://127.0.0.1:4318/v1/traces");
        (file.protocol, file.endpoint) =
            (OtlpProtocol::HttpProtobuf, Some("http://file:4318/v1/traces".to_owned()));
        assert_eq!(endpoint(resolved(Some(&file), &[])), "http://file:4318/v1/traces");
        let grpc = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc");
        assert_eq!(resolved(Some(&file), &[http, grpc]).unwrap().unwrap().protocol, OtlpProtocol::Grpc);
    }

    #[test]
    fn the_environment_can_forbid_it_and_ask_for_what_there_is_not() {
        let file = OtlpSettings::default();
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(resolved(Some(&file), &[off]), Ok(None));
        }
        for (name, value) in
            [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"), ("OTEL_TRACES_EXPORTER", "zipkin")]
        {
            let told = resolved(Some(&file), &[(name, value)]).unwrap_err().to_string();
            assert!(told.contains(name) && told.contains(value), "{told}");
            assert_eq!(resolved(None, &[(name, value)]), Ok(None), "nothing asks for spans");
        }
        let told = resolved(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317")]).unwrap_err();
        assert!(told.to_string().contains("the collector localhost:4317"), "{told}");
    }
}
