//! Why a trigger of a switch is invalid.

use std::time::Duration;

use crate::policy::source::SourceError;

/// Why a trigger of a switch is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TriggerError {
    /// The name is not valid for a switch.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The condition is on a switch: switches that turn each other off would depend on the order in which they are
    /// looked at.
    #[error(
        "a switch goes by a number and by no other switch; write a condition such as cpu above 80% in place of \"{condition}\""
    )]
    OnSwitch {
        /// The condition.
        condition: String,
    },
    /// Below the lowest level.
    #[error(
        "no request is below sheddable, so the switch would be off for nobody; use sheddable-plus, critical or critical-plus"
    )]
    Nobody,
    /// A time out of range.
    #[error("{}s is out of range; use {}s to 30day", .time.as_secs_f64(), .least.as_secs())]
    Time {
        /// The time.
        time: Duration,
        /// The shortest possible.
        least: Duration,
    },
}
