//! The flags of the verbs that read logs: `replay` and `suggest`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::limit::{LIMIT, LimitArgs, PolicyFile};
use super::reading::Reading;
use super::values::{Speed, hold, keys, listed, period, share, speed};

#[derive(Args, Debug)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) policies: PolicyFile,
    /// Attributes that make the key, such as client.ip, when the limit is given here
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "client.ip", help_heading = LIMIT)]
    pub(crate) by: Vec<String>,
    /// What a request costs, when the limit is given here: a number, an attribute or an expression
    #[arg(long, value_name = "COST", help_heading = LIMIT, allow_negative_numbers = true)]
    pub(crate) cost: Option<String>,
    /// Other limits to run on the same log: algorithms by name, with the same rate and burst, or limits as --limit has them
    #[arg(long, value_name = "LIMITS")]
    pub(crate) compare: Vec<String>,
    /// Write pictures and a report.html into this folder, or one picture: the load, as .svg or .png
    #[arg(long, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath)]
    pub(crate) plot: Option<PathBuf>,
    /// Write the pictures of the folder as PNG instead of SVG
    #[arg(long, requires = "plot")]
    pub(crate) png: bool,
    /// List the keys hit, the N denied most of each policy; 20 without a number
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", value_parser = listed, allow_negative_numbers = true)]
    pub(crate) hit: Option<usize>,
    /// Exit 3 when this holds, such as 'denied{policy=per-ip} > 0.5%'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(crate) fail_if: Vec<String>,
    /// Exit 2, without a verdict, when more of the lines than this are malformed
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_malformed: f64,
    /// Exit 2, without a verdict, when more of the requests than this came too late to be put in order
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_late: f64,
    /// How fast to play the log: max, as it happened (1x), or faster by a factor (60x)
    #[arg(long, value_name = "SPEED", default_value = "max", value_parser = speed, allow_hyphen_values = true)]
    pub(crate) speed: Speed,
    /// How long each request is in flight, for concurrency limits, breakers and conditions on what is in flight, where the log does not say; such as 200ms
    #[arg(long, value_name = "TIME", value_parser = hold, allow_hyphen_values = true)]
    pub(crate) hold: Option<Duration>,
    /// How many keys to remember at once
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = keys, allow_negative_numbers = true)]
    pub(crate) keys: usize,
    #[command(flatten)]
    pub(crate) limit: LimitArgs,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Args, Debug)]
#[command(mut_arg("logs", |arg| arg.help("Access logs, plain, gzip or zstd: files, since each is read several times")))]
pub(crate) struct Suggest {
    /// Attributes that make the key, such as client.ip
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "client.ip")]
    pub(crate) by: Vec<String>,
    /// What a request costs: a number, an attribute or an expression, such as 'int(total_tokens)'
    #[arg(long, value_name = "COST", allow_negative_numbers = true)]
    pub(crate) cost: Option<String>,
    /// Period of the rate to propose; of limits that spare the same keys, the one that grants least in this period is proposed
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = period, allow_hyphen_values = true)]
    pub(crate) per: Duration,
    /// Share of the keys that must not be denied at all, such as 99% [default: all below the gap, where there is one]
    #[arg(long, value_name = "SHARE", value_parser = share, allow_hyphen_values = true)]
    pub(crate) keep: Option<f64>,
    /// Refused, with a word on what took its place.
    #[arg(long, hide = true)]
    pub(crate) of_requests: bool,
    /// Exit 2, without a proposal, when more of the lines than this are malformed
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_malformed: f64,
    /// Exit 2, without a proposal, when more of the requests than this came too late to be put in order
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_late: f64,
    /// How many keys to remember at once
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = keys, allow_negative_numbers = true)]
    pub(crate) keys: usize,
    #[command(flatten)]
    pub(crate) reading: Reading,
}
