//! The subcommands of `policies`.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

use super::limit::PolicyFile;
use super::values::whole;

#[derive(Debug, Subcommand)]
pub(crate) enum Policies {
    /// Check policies, and put them in force on every node; -c names a node's own file
    Put {
        /// Policies, YAML or TOML, without `server`, `store` and `tickets`, which are each node's own
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Only in place of this version; 0 for none [default: whichever is in force]
        #[arg(long, value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
        replacing: Option<u64>,
        #[command(flatten)]
        own: PolicyFile,
    },
    /// Print the policies that were put, as they were put
    Show {
        /// A version that is kept [default: the one in force]
        #[arg(value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
        which: Option<u64>,
        #[command(flatten)]
        own: PolicyFile,
    },
    /// List the version in force, and the last sixteen before it
    History {
        #[command(flatten)]
        own: PolicyFile,
    },
    /// Put a version that is kept in force again, as a new version
    Rollback {
        /// The version, as `history` lists it
        #[arg(value_name = "VERSION", value_parser = whole, allow_negative_numbers = true)]
        which: u64,
        #[command(flatten)]
        own: PolicyFile,
    },
    /// List the nodes: which version each uses, and which it refuses and why; exit 1 if any refuses one
    Nodes {
        #[command(flatten)]
        own: PolicyFile,
    },
}
