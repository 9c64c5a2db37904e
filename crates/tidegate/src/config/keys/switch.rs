//! The keys of what turns a degrade switch off.

use super::policy::LEVELS;
use crate::config::kind::{Kind, Table, key};

/// The shortest time off, as [`Trigger::HOLD`](crate::policy::Trigger::HOLD).
const HOLD: &str = "10s";
/// The time off after the last reading, as [`Trigger::LASTING`](crate::policy::Trigger::LASTING).
const LASTING: &str = "10min";

pub(in crate::config) const SWITCH: Table = Table {
    name: "switch",
    keys: &[
        key(
            "off_when",
            Kind::Condition,
            None,
            "The condition under which the switch is off, as cpu above 80%, until 70%; not on a switch, without stale after",
        ),
        key(
            "below",
            Kind::Word(&LEVELS, &[]),
            None,
            "The switch is off only for requests below this priority; default: for all",
        ),
        key(
            "hold",
            Kind::Span,
            Some(HOLD),
            "The shortest time that the switch is off, up to 30 days; longer than the number takes to follow",
        ),
        key(
            "for",
            Kind::Span,
            Some(LASTING),
            "How long the switch stays off after the last reading that said so, if the number is not known any more; 1s to 30 days",
        ),
    ],
    required: &["off_when"],
};

#[cfg(test)]
mod tests {
    use super::{HOLD, LASTING};
    use crate::policy::{Trigger, span};

    #[test]
    fn the_defaults_are_those_of_a_trigger() {
        assert_eq!((span(HOLD), span(LASTING)), (Ok(Trigger::HOLD), Ok(Trigger::LASTING)));
    }
}
