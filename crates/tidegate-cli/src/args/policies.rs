//! The subcommands of `policies`.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

use super::limit::PolicyFile;
use super::values::whole;

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
