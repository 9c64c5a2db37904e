//! The flags for reading logs, shared by all verbs that read them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use tidegate_sim::log::LogFormat;

use super::values::{duration, pair};

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
