//! Why spans cannot be sent.

/// Why spans of decisions cannot be sent to a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The program was built without it.
    #[error(
        "server.otlp: this build sends no spans; build it with the feature `otel`, or leave server.otlp out of the file"
    )]
    NotBuilt,
    /// A variable asks for what there is not.
    #[error("{variable}: {value:?} is not spoken here; use {use_this}, or leave it out")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// What it is set to.
        value: String,
        /// What would work.
        use_this: &'static str,
    },
    /// A certificate for the collector without its key, or the other way round.
    #[error("{named} is set and {missing} is not; the collector is shown a certificate by both")]
    Pair {
        /// The variable that is set.
        named: &'static str,
        /// The one that is missing.
        missing: &'static str,
    },
    /// The certificates that the system trusts cannot be read.
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
        /// The variable.
        variable: &'static str,
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// The collector cannot be dialled as it is named.
    #[error("the collector {endpoint}: {why}; write it as http://127.0.0.1:4317")]
    Collector {
        /// The collector.
        endpoint: String,
        /// Why.
        why: String,
    },
}
