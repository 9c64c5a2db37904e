use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use tidegate_sim::traffic::KeyChoice;

use super::server::Trust;
use super::values::{Most, PerSecond, at_once, duration, lasting, most, pair, per_second, waiting, whole};

/// `-c` and `-q` are what other load generators call so, and not what the other verbs do: a policy file is `--config` here, and silence
/// `--quiet`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// The server: http://HOST:PORT, resp://HOST:PORT or grpc://HOST:PORT; with TLS https://, rediss:// or grpcs://, checked against --ca
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: String,
    /// How long to send requests, from 1s to 24h
    #[arg(short = 'z', long = "for", value_name = "TIME", default_value = "10s", value_parser = lasting, allow_hyphen_values = true)]
    pub(crate) lasts: Duration,
    /// Open loop: send requests at this rate even if answers are slow, such as 500 or 500/s [default: closed loop, each connection sends the next request after the answer]
    #[arg(short = 'q', long, value_name = "RATE", value_parser = per_second, allow_hyphen_values = true)]
    pub(crate) rate: Option<PerSecond>,
    /// Connections, each with one request at a time; at most 10,000
    #[arg(short = 'c', long, value_name = "N", default_value = "16", value_parser = at_once, allow_negative_numbers = true)]
    pub(crate) connections: usize,
    /// How long to wait for an answer before the request counts as failed, at most 60s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = waiting, allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
    /// Print only results and errors: no progress, no remarks
    // Replaces the global flag of the same name, without its short form.
    #[arg(id = "quiet", long = "quiet", help_heading = "Global options")]
    pub(crate) quiet_here: bool,
    #[command(flatten)]
    pub(crate) asks: Asks,
    #[command(flatten)]
    pub(crate) judging: Judging,
    #[command(flatten)]
    pub(crate) trust: Trust,
}

/// The requests to send.
#[derive(Args, Debug)]
#[command(next_help_heading = "Requests")]
pub(crate) struct Asks {
    /// Which keys the requests have: one, uniform:N, or zipf:S:N
    #[arg(long, value_name = "KEYS", default_value = "one")]
    pub(crate) keys: KeyChoice,
    /// The attributes that hold the key
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "client.ip")]
    pub(crate) by: Vec<String>,
    /// Another attribute of each request, such as request.path=/api/search; may be repeated
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) attributes: Vec<(String, String)>,
    /// Cost of each request [default: as the policies say]
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) cost: Option<u64>,
    /// Send CL.THROTTLE with these numbers to a resp:// server, such as '15 30 60'
    #[arg(long, value_name = "MAX_BURST COUNT PERIOD", conflicts_with_all = ["expect", "config", "attributes"])]
    pub(crate) throttle: Option<String>,
    /// Seed of the order and names of the keys [default: a new one each time, so that every key is new to the server]
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
}

/// Checks of the answers, and thresholds.
#[derive(Args, Debug)]
#[command(next_help_heading = "Checking")]
pub(crate) struct Judging {
    /// The server's policy file, to check the answers against
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Send requests for, and check, only this policy of the file
    #[arg(long, value_name = "POLICY", requires = "config")]
    pub(crate) expect: Option<String>,
    /// How far the server's clock and this one may differ: an answer is wrong only if it is wrong at every moment from this long
    /// before its request was sent until this long after it came
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) slack: Duration,
    /// Exit 3 if more answers than this are wrong: a number, or a share of the refused or of the allowed requests, such as 0 or 0.1%
    #[arg(long, value_name = "N|SHARE", value_parser = most, allow_hyphen_values = true)]
    pub(crate) max_wrong: Option<Most>,
    /// Exit 3 if the 99th percentile of latency is longer than this
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) max_p99: Option<Duration>,
    /// Exit 3 if more requests than this failed or were never sent: a number, or a share of all requests that were due
    #[arg(long, value_name = "N|SHARE", value_parser = most, allow_hyphen_values = true)]
    pub(crate) max_failed: Option<Most>,
}
