//! Why spans cannot be sent.

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
    /// A certificate for the collector without its key, or a key without its certificate.
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
