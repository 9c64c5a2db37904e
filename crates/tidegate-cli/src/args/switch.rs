//! The subcommands of `switch`.

use clap::{Args, Subcommand};
use tidegate::Criticality;

use super::server::WhichServer;
use super::values::{level, written_duration};

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
