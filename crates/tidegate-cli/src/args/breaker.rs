//! The subcommands of `breaker`.

use clap::{Args, Subcommand};

use super::policy_key::PolicyKey;
use super::server::WhichServer;
use super::values::written_duration;

#[derive(Args, Debug)]
pub(crate) struct Breakers {
    #[command(flatten)]
    pub(crate) server: WhichServer,
    #[command(subcommand)]
    pub(crate) does: Breaker,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Breaker {
    /// List the breakers of a running server: for policies without `by` all, for others those that have opened
    List {
        /// List only breakers of this policy
        policy: Option<String>,
        /// Show keys instead of their digests
        #[arg(long)]
        reveal: bool,
    },
    /// Refuse every call; when this ends, probes try the service
    ForceOpen(Forcing),
    /// Let every call through; outcomes are counted
    ForceClosed(Forcing),
    /// Let every call through, and count how often the breaker would have opened
    MetricsOnly(Forcing),
    /// Let every call through, and count nothing
    Disable(Forcing),
    /// End a forced state
    Auto(PolicyKey),
}

#[derive(Args, Debug)]
pub(crate) struct Forcing {
    #[command(flatten)]
    pub(crate) which: PolicyKey,
    /// For how long, up to 30d [default: until `tidegate breaker auto`]
    #[arg(long = "for", value_name = "TIME", value_parser = written_duration, allow_hyphen_values = true)]
    pub(crate) lasts: Option<String>,
    /// Reason, shown in the list of breakers
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}
