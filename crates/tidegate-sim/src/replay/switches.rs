//! The degrade switches of policies in a replay: turned by triggers on the numbers that requests tell, or off throughout
//! at the user's wish.

use tidegate::policy::Source;
use tidegate::switches::Off;

use super::Replay;
use crate::unknown::AssumedOn;

impl Replay {
    /// Turns a switch off for all requests and the whole replay, whatever its triggers say. Call it before the first
    /// request. It is turned off in each policy set that has it.
    ///
    /// # Errors
    /// The names of the switches of all sets, sorted, if none of them has this switch.
    pub fn turn_off(&mut self, name: &str) -> Result<(), Vec<String>> {
        let mut known = Vec::new();
        let mut is_known = false;
        for run in &mut self.runs {
            known.extend(run.policies.switches().map(str::to_owned));
            let off = Off::for_all("off throughout the replay");
            if run.switches.as_ref().is_some_and(|switches| switches.turn_off(name, off).is_ok()) {
                run.off.push(name.to_owned());
                is_known = true;
            }
        }
        known.sort();
        known.dedup();
        if is_known { Ok(()) } else { Err(known) }
    }

    /// Returns the switches that were taken as on because the requests do not tell what turns them off, without those
    /// that [`Replay::turn_off`] turned off.
    #[must_use]
    pub fn assumed_on(&self) -> Vec<AssumedOn> {
        let mut all = Vec::new();
        for run in &self.runs {
            let is_off = |switch: &str| run.off.iter().any(|off| off == switch);
            for assumed in AssumedOn::of(&run.policies, |source| self.why_unknown(source)) {
                if !is_off(&assumed.switch) && !all.contains(&assumed) {
                    all.push(assumed);
                }
            }
        }
        all
    }

    /// Returns why a number is not known; `None` if it is.
    pub(super) fn why_unknown(&self, source: &Source) -> Option<String> {
        let teller = if self.is_recorded { "the log" } else { "the traffic" };
        match source {
            Source::InFlight | Source::Latency if !self.is_timed => {
                Some(format!("{teller} does not say how long requests took"))
            }
            // What turns a switch is reported of the switch.
            Source::InFlight | Source::Latency | Source::Rate | Source::Policy(_) | Source::Switch(_) => None,
            other => Some(format!("{teller} does not say what `{other}` was")),
        }
    }
}
