//! Degrade switches: turns and lists them, and tells when they are turned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::clock::Clock;
use tidegate::gate::switches::{Off, Standing, Switches, UnknownSwitch};
use tidegate::policy::PolicySet;
use tidegate::priority::Criticality;
use tidegate::{Tick, visible};

use super::Conditions;
use crate::metrics::{Metrics, SwitchedByLabel};
use crate::text::moment;

/// Who turns a switch. A switch that one has turned off is not turned on by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwitchedBy {
    /// An operator.
    Hand,
    /// A monitor that watches a number and reports it repeatedly.
    Signal,
}

/// What a switch is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Off.
    Off(Off),
    /// On for so long, whatever signals say, and why.
    KeptOn(Duration, String),
    /// On, unless the other of the two turned it off.
    On,
}

/// Makes all switches, turned on, and their series.
pub(crate) fn make_switches(policies: &PolicySet, clock: &Arc<dyn Clock>, metrics: &Metrics) -> Switches {
    policies.switches().for_each(|name| metrics.switches.add(name));
    Switches::of(policies).expect(FEW).with_clock(Arc::clone(clock))
}

impl Conditions {
    /// Returns the state of all switches, by name.
    pub(crate) fn switches(&self) -> Vec<Standing> {
        self.switches.standing()
    }

    /// Turns a switch. Policies follow at once. A signal cannot keep a switch on: that is `On`.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if neither a policy nor the section `switches` has that name.
    pub(crate) fn turn_switch(
        &self,
        name: &str,
        by: SwitchedBy,
        setting: Setting,
    ) -> Result<(), UnknownSwitch> {
        match (by, setting) {
            (SwitchedBy::Hand, Setting::Off(off)) => self.switches.turn_off(name, off)?,
            (SwitchedBy::Hand, Setting::KeptOn(time, reason)) => {
                self.switches.keep_on(name, &reason, time)?;
            }
            (SwitchedBy::Hand, Setting::On) => self.switches.turn_on(name)?,
            (SwitchedBy::Signal, Setting::Off(off)) => self.switches.signal(name, Some(off))?,
            (SwitchedBy::Signal, Setting::KeptOn(..) | Setting::On) => self.switches.signal(name, None)?,
        }
        self.base.gate.signals().notice_switches();
        self.tell();
        Ok(())
    }

    /// Follows new policies before they are in force. Switches that remain keep their state.
    pub(crate) fn follow(&self, policies: &PolicySet) {
        // The lock keeps whoever tells of switches from making series of one that is gone.
        let _seen = self.seen.switches.lock();
        let before = self.switches.standing();
        self.switches.follow(policies).expect(FEW);
        let names: BTreeSet<&str> = policies.switches().collect();
        let gone = before.iter().filter(|one| !names.contains(&*one.name));
        gone.for_each(|one| self.base.metrics.switches.forget(&one.name));
        names.iter().for_each(|name| self.base.metrics.switches.add(name));
    }

    /// Tells which switches were turned since the last look.
    pub(super) fn tell_switches(&self) {
        let now = self.base.now();
        let mut seen = self.seen.switches.lock();
        let standing = self.switches.standing();
        seen.retain(|name, _| standing.iter().any(|one| one.name == *name));
        for one in standing {
            let before = seen.get(&one.name);
            let hand = turned(before.and_then(|before| before.by_hand.as_ref()), one.by_hand.as_ref(), now);
            // A signal is repeated all the time, and moves its end each time.
            let level = |part: &Option<(Off, Option<Tick>)>| part.as_ref().map(|(off, _)| off.on_from());
            let of_signal = before.and_then(|before| before.by_signal.as_ref());
            let signal = match before.map_or(level(&one.by_signal).is_none(), |before| {
                level(&before.by_signal) == level(&one.by_signal)
            }) {
                true => None,
                false => turned(of_signal, one.by_signal.as_ref(), now),
            };
            let is_off = one.off().is_some();
            self.base.metrics.switches.show(&one.name, is_off);
            let state = if is_off { "off" } else { "on" };
            let parts = [
                (SwitchedByLabel::hand, hand, &one.by_hand),
                (SwitchedByLabel::signal, signal, &one.by_signal),
            ];
            for (by, turned, part) in parts {
                let Some(turned) = turned else { continue };
                let by = if turned == Turned::Over { SwitchedByLabel::time } else { by };
                self.base.metrics.switches.changed(&one.name, by);
                if turned == Turned::Over {
                    tracing::info!(switch = one.name, state, "the time for which a switch was set is over");
                }
                let (off, until) = part.as_ref().map_or((None, None), |(off, until)| (Some(off), *until));
                let until = until.and_then(|until| moment(until, Duration::ZERO));
                self.base.events.publish("switch", || {
                    json!({
                        "switch": one.name,
                        "state": state,
                        "by": by.as_str(),
                        "below": below(off),
                        "until": until,
                        "reason": off.map(|off| visible::line(off.reason()).to_string()),
                    })
                });
            }
            if one.by_hand.is_some() || one.by_signal.is_some() {
                seen.insert(one.name.clone(), one);
            } else {
                seen.remove(&one.name);
            }
        }
    }
}

/// Why a policy set of a file always makes switches.
const FEW: &str = "a set has fewer switches than there may be, and triggers of those alone";

/// How a part of a switch changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turned {
    /// Somebody turned it.
    By,
    /// Its time was over.
    Over,
}

/// Returns how a part of a switch changed between two looks; `None` if it did not.
fn turned(
    before: Option<&(Off, Option<Tick>)>,
    after: Option<&(Off, Option<Tick>)>,
    now: Tick,
) -> Option<Turned> {
    match (before, after) {
        (before, after) if before == after => None,
        (Some((_, Some(until))), None) if *until <= now => Some(Turned::Over),
        _ => Some(Turned::By),
    }
}

/// Returns the level below which a switch is off; `None` for all levels and for none.
fn below(off: Option<&Off>) -> Option<&'static str> {
    off.filter(|off| !off.is_for_nobody()).and_then(Off::on_from).map(Criticality::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_has_come_is_told_apart_from_a_hand() {
        let off = |until: Option<u64>| (Off::for_all("moved"), until.map(Tick::from_secs));
        let (now, ends, stays) = (Tick::from_secs(10), off(Some(10)), off(None));
        assert_eq!(turned(None, None, now), None);
        assert_eq!(turned(Some(&ends), Some(&ends), now), None);
        assert_eq!(turned(None, Some(&ends), now), Some(Turned::By));
        assert_eq!(turned(Some(&ends), None, now), Some(Turned::Over));
        assert_eq!(turned(Some(&ends), None, Tick::from_secs(9)), Some(Turned::By));
        assert_eq!(turned(Some(&stays), None, now), Some(Turned::By));
        assert_eq!(turned(Some(&stays), Some(&ends), now), Some(Turned::By));
    }
}
