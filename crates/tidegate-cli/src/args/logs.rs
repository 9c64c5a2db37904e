//! The flags of `replay` and `suggest`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use tidegate_sim::log::LogFormat;

use super::values::{Speed, duration, hold, keys, listed, pair, period, share, speed};
use super::{LIMIT, LimitArgs, PolicyFile};

#[derive(Args, Debug)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) policies: PolicyFile,
    /// Attributes that make the key, if the limit is given by flags; '' for one key of all requests
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "client.ip", help_heading = LIMIT)]
    pub(crate) by: Vec<String>,
    /// Cost of a request, if the limit is given by flags: a number, an attribute, or an expression, such as 'int(total_tokens)' for a column without a dot
    #[arg(long, value_name = "COST", help_heading = LIMIT, allow_negative_numbers = true)]
    pub(crate) cost: Option<String>,
    /// Other limits to run on the same log: names of algorithms, with the same rate and burst, or limits in the form of --limit
    #[arg(long, value_name = "LIMITS")]
    pub(crate) compare: Vec<String>,
    /// Write report.html and pictures into this folder, or one picture into this file: .svg or .png
    #[arg(long, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath)]
    pub(crate) plot: Option<PathBuf>,
    /// Write the pictures of the folder as PNG instead of SVG
    #[arg(long, requires = "plot")]
    pub(crate) png: bool,
    /// List the keys hit: for each policy, the N with most denied requests; 20 without a number; write it after the log
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", value_parser = listed, allow_negative_numbers = true)]
    pub(crate) hit: Option<usize>,
    /// Exit 3 if this condition holds, such as 'denied{policy=per-ip} > 0.5%'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(crate) fail_if: Vec<String>,
    /// Exit 2, without a verdict, if a larger share of the lines is malformed
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_malformed: f64,
    /// Exit 2, without a verdict, if a larger share of the requests came too late to be put in order
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_late: f64,
    /// How fast to replay the log: max, in real time (1x), or faster by a factor (60x)
    #[arg(long, value_name = "SPEED", default_value = "max", value_parser = speed, allow_hyphen_values = true)]
    pub(crate) speed: Speed,
    /// How long each request is in flight if the log does not say, such as 200ms; for concurrency limits, breakers and conditions on requests in flight
    #[arg(long, value_name = "TIME", value_parser = hold, allow_hyphen_values = true)]
    pub(crate) hold: Option<Duration>,
    /// Take this degrade switch of the file as off for all requests, from the first to the last; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) switch_off: Vec<String>,
    /// How many keys to remember at once
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = keys, allow_negative_numbers = true)]
    pub(crate) keys: usize,
    #[command(flatten)]
    pub(crate) limit: LimitArgs,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Args, Debug)]
#[command(mut_arg("logs", |arg| arg.help("Access logs, plain, gzip or zstd; files only, since each is read several times")))]
pub(crate) struct Suggest {
    /// Attributes that make the key, such as client.ip
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "client.ip")]
    pub(crate) by: Vec<String>,
    /// Cost of a request: a number, an attribute or an expression, such as 'int(total_tokens)'
    #[arg(long, value_name = "COST", allow_negative_numbers = true)]
    pub(crate) cost: Option<String>,
    /// Period of the proposed rate, at least 1ms; of all limits that spare the same keys, the one that grants the least in this period is proposed
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = period, allow_hyphen_values = true)]
    pub(crate) per: Duration,
    /// Share of the keys that must never be denied, such as 99% [default: all keys below the gap, if there is one]
    #[arg(long, value_name = "SHARE", value_parser = share, allow_hyphen_values = true)]
    pub(crate) keep: Option<f64>,
    /// Refused, with a word on what took its place.
    #[arg(long, hide = true)]
    pub(crate) of_requests: bool,
    /// Exit 2, without a proposal, if a larger share of the lines is malformed
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_malformed: f64,
    /// Exit 2, without a proposal, if a larger share of the requests came too late to be put in order
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share, allow_hyphen_values = true)]
    pub(crate) max_late: f64,
    /// How many keys to remember at once, some 700 bytes each
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = keys, allow_negative_numbers = true)]
    pub(crate) keys: usize,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// How to read logs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Reading")]
pub(crate) struct Reading {
    /// Access logs, plain, gzip or zstd; `-` or nothing reads standard input
    #[arg(value_name = "LOG", value_hint = ValueHint::FilePath, help_heading = None)]
    pub(crate) logs: Vec<PathBuf>,
    /// Format of the lines
    #[arg(long, value_enum, default_value_t = LineFormat::Auto)]
    pub(crate) format: LineFormat,
    /// Format of the lines in the notation of nginx's log_format, such as '$time_iso8601 $remote_addr "$request" $status'
    #[arg(long, value_name = "LOG_FORMAT", value_parser = str::parse::<LogFormat>, conflicts_with = "format")]
    pub(crate) log_format: Option<LogFormat>,
    /// What to do with lines that go back in time
    #[arg(long, value_enum, default_value_t = Order::Sort)]
    pub(crate) order: Order,
    /// How far back in time a line may be and still be put in order
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) reorder: Duration,
    /// Attribute to read from a column, such as client.ip=host; may be repeated
    #[arg(long, value_name = "NAME=COLUMN", value_parser = pair)]
    pub(crate) column: Vec<(String, String)>,
    /// Read only requests that match, in the form of a policy's `match`, such as path=/api/**; may be repeated
    #[arg(long = "match", value_name = "NAME=PATTERN", value_parser = pair)]
    pub(crate) matching: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LineFormat {
    /// Recognised from the first lines
    Auto,
    /// Combined log format of Apache and nginx
    Combined,
    /// Common log format
    Common,
    /// Combined with `host:port` in front, as in Debian's other_vhosts_access.log
    Vhost,
    /// One JSON object a line
    Json,
    /// Comma- or tab-separated with a header line
    Csv,
    /// Access logs of AWS Application Load Balancers
    Alb,
    /// Standard logs of Amazon CloudFront
    #[value(name = "cloudfront")]
    CloudFront,
    /// W3C extended logs with a #Fields line, such as those of IIS
    W3c,
    /// Default text logs of Envoy
    Envoy,
    /// Default text logs of Istio
    Istio,
    /// HTTP logs of HAProxy
    #[value(name = "haproxy")]
    HaProxy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Put them in order within --reorder; further back as `clamp`
    Sort,
    /// Give them the latest time seen
    Clamp,
}
