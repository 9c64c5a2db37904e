//! The flags of `top`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::server::WhichServer;
use super::values::{keys_up_to, refresh, refreshes};

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
