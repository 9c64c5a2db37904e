//! The flags of the verbs that use a running server: which server, and the certificates of both sides.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Which running server a verb asks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub(crate) struct WhichServer {
    /// The running server; if it needs a token, set TIDEGATE_TOKEN [default: http://127.0.0.1:8080]
    // Global, so that subcommands such as those of `breaker` have it too; likewise in `Trust`.
    #[arg(long, global = true, env = "TIDEGATE_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) trust: Trust,
}

/// How a running server at an https:// URL and whoever asks it know each other.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub(crate) struct Trust {
    /// File of the only authorities, in PEM, for checking the certificate of a server at an https:// URL
    #[arg(long, global = true, env = "TIDEGATE_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) ca: Option<PathBuf>,
    /// File of the certificate, in PEM, to send to a server that asks for one
    #[arg(long, global = true, env = "TIDEGATE_CLIENT_CERT", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) client_cert: Option<PathBuf>,
    /// File of the private key of --client-cert, in PEM
    #[arg(long, global = true, env = "TIDEGATE_CLIENT_KEY", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) client_key: Option<PathBuf>,
}
