//! The flags for the source of limits: a file, or the command line.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::values::{pair, whole};

/// Where policies come from.
#[derive(Args, Clone, Debug)]
pub(crate) struct PolicyFile {
    /// Policy file, YAML or TOML
    #[arg(short = 'c', long = "config", env = "TIDEGATE_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

/// The help heading of the flags that define a limit.
pub(super) const LIMIT: &str = "Limit";

/// One limit given on the command line, in the words of the policy file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = LIMIT)]
pub(crate) struct LimitArgs {
    /// A limit in the form of the policy file, such as '{algorithm: gcra, rate: 100/s, burst: 200}'
    #[arg(long, value_name = "LIMIT")]
    pub(crate) limit: Option<String>,
    /// Algorithm or profile, such as gcra, token-bucket, sliding-log, x-time
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,
    /// Rate, such as 100/s, 60/min, 5/day
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub(crate) rate: Option<String>,
    /// The most units granted at once [default: the count of the rate]
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) burst: Option<u64>,
    /// Any other key of a limit, such as buckets=10 or calendar=Europe/Paris; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) set: Vec<(String, String)>,
}
