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
    /// The certificates that the collector's must come from cannot be used.
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
