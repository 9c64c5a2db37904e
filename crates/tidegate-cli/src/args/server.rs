//! The flags of the verbs that use a running server, and those verbs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use tidegate::priority::Criticality;
use tidegate_sim::traffic::KeyChoice;

use super::PolicyFile;
use super::values::{
    Most, PerSecond, at_once, changes_up_to, duration, keys_up_to, lasting, level, most, pair, per_second,
    refresh, refreshes, waiting, whole, written_duration,
};

/// Which running server a verb asks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub(crate) struct WhichServer {
    /// The running server; if it needs a token, set TIDEGATE_TOKEN [default: that of tidegate.yaml, else http://127.0.0.1:8080]
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

/// A policy and one of its keys; a policy without `by` has one key, which has no attributes.
#[derive(Args, Debug)]
pub(crate) struct PolicyKey {
    /// The policy
    #[arg(value_name = "POLICY")]
    pub(crate) policy: String,
    /// The key, such as client.ip=203.0.113.9, for each attribute of the policy's `by`; may be repeated
    #[arg(long = "key", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) key: Vec<(String, String)>,
}

/// A key of one policy, or a caller for all policies.
#[derive(Args, Debug)]
pub(crate) struct KeyOrCaller {
    /// The policy; or for all policies at once the caller, such as client.ip=203.0.113.9, without --key
    #[arg(value_name = "POLICY|CALLER")]
    pub(crate) policy: String,
    /// The key of that policy, such as client.ip=203.0.113.9, for each attribute of the policy's `by`; may be repeated
    #[arg(long = "key", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) key: Vec<(String, String)>,
}

impl KeyOrCaller {
    /// Returns the attribute of a caller for all policies; `None` if a policy is named.
    pub(crate) fn caller(&self) -> Option<(&str, &str)> {
        self.policy.split_once('=').filter(|(name, _)| self.key.is_empty() && !name.is_empty())
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        let caller = self.caller().map(|(_, value)| value);
        self.key.iter().map(|(_, value)| &**value).chain(caller)
    }

    pub(crate) fn of_policy(&self) -> PolicyKey {
        PolicyKey { policy: self.policy.clone(), key: self.key.clone() }
    }
}

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

/// The most keys that the server lists in one answer.
const MOST: usize = 100;

#[derive(Args, Debug)]
pub(crate) struct Keys {
    #[command(flatten)]
    pub(crate) server: WhichServer,
    #[command(subcommand)]
    pub(crate) does: Key,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// List the keys of a policy that are blocked, were refused or came near their limit; without a policy, the callers
    /// that are blocked for all policies
    List {
        /// The policy
        policy: Option<String>,
        /// How many keys to list, up to 100
        #[arg(short = 'n', long, value_name = "N", default_value = "20", value_parser = keys_up_to::<MOST>, allow_negative_numbers = true)]
        count: usize,
        /// How many keys to skip
        #[arg(long, value_name = "N", default_value = "0", value_parser = whole, allow_negative_numbers = true)]
        from: u64,
        /// Show keys instead of their digests
        #[arg(long)]
        reveal: bool,
    },
    /// Show the units that a key has left, how often it was refused, and its block
    Get(KeyOrCaller),
    /// Forget the units that a key has spent and its places in use, close its breakers except forced ones, and end its block
    Reset(PolicyKey),
    /// Refuse every request of a key for a while, under one policy or under all
    Block(Blocking),
    /// End the block of a key; the units that it has spent stay spent; exit 1 if there was none
    Unblock(KeyOrCaller),
}

#[derive(Args, Debug)]
pub(crate) struct Blocking {
    #[command(flatten)]
    pub(crate) which: KeyOrCaller,
    /// For how long, up to 30d
    #[arg(long = "for", value_name = "TIME", value_parser = written_duration, allow_hyphen_values = true)]
    pub(crate) lasts: String,
    /// Reason, shown by `tidegate key list` and `tidegate explain`
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policies {
    /// Check policies, and put them in force on every node; -c names the node's own file
    Put {
        /// Policies, YAML or TOML, without `server`, `store` and `tickets`, which each node has in its own file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Put them only if this version is in force; 0: only if none is [default: replace any version]
        #[arg(long, value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
        replacing: Option<u64>,
        #[command(flatten)]
        own: PolicyFile,
    },
    /// Print the text of the policies, as it was put; exit 1 if it is not kept
    Show {
        /// A version listed by `history` [default: the one in force]
        #[arg(value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
        which: Option<u64>,
        #[command(flatten)]
        own: PolicyFile,
    },
    /// List the version in force and the last sixteen before it
    History {
        #[command(flatten)]
        own: PolicyFile,
    },
    /// Put the text of an earlier version in force again, as a new version; exit 1 if it is not kept
    Rollback {
        /// A version listed by `history`
        #[arg(value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
        which: u64,
        #[command(flatten)]
        own: PolicyFile,
    },
    /// List the nodes, with the version that each uses or refuses, and why; exit 1 if any node refuses one
    Nodes {
        #[command(flatten)]
        own: PolicyFile,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Switches {
    #[command(flatten)]
    pub(crate) server: WhichServer,
    #[command(subcommand)]
    pub(crate) does: Switch,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Switch {
    /// List the degrade switches of a running server
    List,
    /// Turn a switch off
    Off(TurnedOff),
    /// End what was set by hand, or keep the switch on; exit 1 if a signal keeps it off
    On(TurnedOn),
}

#[derive(Args, Debug)]
pub(crate) struct TurnedOff {
    /// The switch
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Leave the switch on for requests of this priority and above: critical-plus, critical or sheddable-plus [default: off for all]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    pub(crate) below: Option<Criticality>,
    /// For how long, up to 30d [default: until `tidegate switch on`]
    #[arg(long = "for", value_name = "TIME", value_parser = written_duration, allow_hyphen_values = true)]
    pub(crate) lasts: Option<String>,
    /// Reason, shown in the list of switches
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct TurnedOn {
    /// The switch
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Keep the switch on for this long, up to 30d, whatever signals say [default: as signals say]
    #[arg(long = "for", value_name = "TIME", value_parser = written_duration, allow_hyphen_values = true)]
    pub(crate) lasts: Option<String>,
    /// Reason, shown in the list of switches
    #[arg(long, value_name = "TEXT", requires = "lasts")]
    pub(crate) reason: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Drain {
    /// Make the server ready again
    #[arg(long)]
    pub(crate) undo: bool,
    /// How long to wait until it may be stopped, 1s to 24h
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = lasting, allow_hyphen_values = true)]
    pub(crate) within: Duration,
    #[command(flatten)]
    pub(crate) server: WhichServer,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// List only keys of this policy
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// What is counted
    #[arg(long, value_enum, default_value_t = TopBy::Denied, value_name = "COUNT")]
    pub(crate) by: TopBy,
    /// How many keys to list, up to 512
    #[arg(short = 'n', long, value_name = "N", default_value = "20", value_parser = keys_up_to::<{ Top::MOST }>, allow_negative_numbers = true)]
    pub(crate) count: usize,
    /// Show keys instead of their digests
    #[arg(long)]
    pub(crate) reveal: bool,
    /// List again and again until Ctrl-C, first those keys that were counted most since the list before
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// The time between two lists, from 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = refresh, allow_hyphen_values = true, requires = "watch")]
    pub(crate) every: Duration,
    /// End after this many lists [default: at Ctrl-C]
    #[arg(long, value_name = "N", value_parser = refreshes, allow_negative_numbers = true, requires = "watch")]
    pub(crate) times: Option<u64>,
    /// Print the list once on a terminal too, instead of the live view
    #[arg(long)]
    pub(crate) plain: bool,
    #[command(flatten)]
    pub(crate) server: WhichServer,
}

impl Top {
    /// The most keys that the server lists in one answer.
    pub(crate) const MOST: usize = 512;
}

/// What the keys are listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopBy {
    /// Requests refused
    Denied,
    /// Requests that passed near the limit
    Near,
}

#[derive(Args, Debug)]
pub(crate) struct Stat {
    /// The time between two lines, from 1s to 1h
    #[arg(value_name = "EVERY", default_value = "1s", value_parser = refresh, allow_hyphen_values = true)]
    pub(crate) every: Duration,
    /// End after this many lines [default: at Ctrl-C]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = refreshes, allow_negative_numbers = true)]
    pub(crate) count: Option<u64>,
    /// Exit 3 if this condition holds for the last line, such as 'denied > 5%' or 'p99 > 2ms'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(crate) fail_if: Vec<String>,
    #[command(flatten)]
    pub(crate) server: WhichServer,
}

#[derive(Args, Debug)]
pub(crate) struct Tail {
    /// Show only refusals by this policy
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// Show keys instead of their digests, where the server still knows the refusal
    #[arg(long)]
    pub(crate) reveal: bool,
    #[command(flatten)]
    pub(crate) server: WhichServer,
}

#[derive(Args, Debug)]
pub(crate) struct Why {
    /// A decision id, or a log line or an answer that has one; `-` reads standard input
    #[arg(value_name = "ID")]
    pub(crate) text: String,
    #[command(flatten)]
    pub(crate) server: WhichServer,
}

#[derive(Args, Debug)]
pub(crate) struct Changes {
    /// How many changes to list, up to 200
    #[arg(short = 'n', long, value_name = "N", default_value = "20", value_parser = changes_up_to, allow_negative_numbers = true)]
    pub(crate) count: usize,
    #[command(flatten)]
    pub(crate) server: WhichServer,
}

// The flags of `bench`, which puts a server under load.

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
