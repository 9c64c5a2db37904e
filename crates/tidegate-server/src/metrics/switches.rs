//! Metrics of degrade switches.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::labels::{SwitchChangeLabels, SwitchLabel, SwitchedByLabel};

/// The series of the switches that the policy file names.
#[derive(Debug, Default)]
pub(crate) struct SwitchSeries {
    off: Family<SwitchLabel, Gauge>,
    changes: Family<SwitchChangeLabels, Counter>,
}

impl SwitchSeries {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let made = Self::default();
        registry.register(
            "switch_off",
            "1 while a degrade switch is off, also if only below a level, else 0",
            made.off.clone(),
        );
        registry.register(
            "switch_changes",
            "How often a degrade switch was set by hand, or by a signal or trigger, or a setting ended in time",
            made.changes.clone(),
        );
        made
    }

    /// Makes the series of a switch, so that its first change is visible as an increase.
    pub(crate) fn add(&self, switch: &str) {
        drop(self.off.get_or_create(&SwitchLabel { switch: switch.to_owned() }));
        for by in SwitchedByLabel::ALL {
            drop(self.changes.get_or_create(&SwitchChangeLabels { switch: switch.to_owned(), by }));
        }
    }

    /// Drops the series of a switch that the file no longer names.
    pub(crate) fn forget(&self, switch: &str) {
        self.off.remove(&SwitchLabel { switch: switch.to_owned() });
        for by in SwitchedByLabel::ALL {
            self.changes.remove(&SwitchChangeLabels { switch: switch.to_owned(), by });
        }
    }

    /// Sets whether a switch is off.
    pub(crate) fn show(&self, switch: &str, off: bool) {
        self.off.get_or_create(&SwitchLabel { switch: switch.to_owned() }).set(i64::from(off));
    }

    /// Counts a change.
    pub(crate) fn changed(&self, switch: &str, by: SwitchedByLabel) {
        self.changes.get_or_create(&SwitchChangeLabels { switch: switch.to_owned(), by }).inc();
    }
}
