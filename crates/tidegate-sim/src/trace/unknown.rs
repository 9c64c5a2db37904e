//! The numbers and switches that the policies of a trace use: a trace tells none of them.

use tidegate::policy::{PolicySet, Source};

use super::{Subject, Trace};
use crate::unknown::{AssumedOn, UnknownNumber};

impl Trace<'_> {
    /// Returns the numbers that policies use, with the effect on each policy: a trace contains none of these numbers. For
    /// switches see [`Trace::assumed_on`].
    #[must_use]
    pub fn unknown_numbers(&self) -> Vec<UnknownNumber> {
        self.set().map_or_else(Vec::new, |set| UnknownNumber::of(set, why_unknown))
    }

    /// Returns the switches of the policies: nothing in a trace turns one.
    #[must_use]
    pub fn assumed_on(&self) -> Vec<AssumedOn> {
        self.set().map_or_else(Vec::new, |set| AssumedOn::of(set, why_unknown))
    }

    fn set(&self) -> Option<&PolicySet> {
        match &self.subject {
            Subject::Limit(_) => None,
            Subject::Policies(policies) => Some(&policies.set),
        }
    }
}

fn why_unknown(source: &Source) -> Option<String> {
    // What turns a switch is reported of the switch.
    let is_switch = matches!(source, Source::Switch(_));
    (!is_switch).then(|| format!("a trace does not say what `{source}` is"))
}
