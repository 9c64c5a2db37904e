//! The keys of what turns a degrade switch off.

use super::policy::LEVELS;
use crate::kind::{Kind, Table, key};

/// The shortest time off, as [`Trigger::HOLD`](tidegate_gate::policy::Trigger::HOLD).
const HOLD: &str = "10s";

pub(crate) const SWITCH: Table = Table {
    name: "switch",
    keys: &[
        key(
            "off_when",
            Kind::Condition,
            None,
            "The condition under which the switch is off, as cpu above 80%, until 70%; not on a switch; stale after 10min (default, at most a day) says how long it stays off after the last reading",
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
    ],
    required: &["off_when"],
};

#[cfg(test)]
mod tests {
    use super::HOLD;
    use tidegate_gate::policy::{Trigger, span};

    #[test]
    fn the_default_is_that_of_a_trigger() {
        assert_eq!(span(HOLD), Ok(Trigger::HOLD));
    }
}
