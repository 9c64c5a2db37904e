//! The subcommands of `key`.

use clap::{Args, Subcommand};

use super::policy_key::{KeyOrCaller, PolicyKey};
use super::server::WhichServer;
use super::values::{keys_up_to, whole, written_duration};

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
