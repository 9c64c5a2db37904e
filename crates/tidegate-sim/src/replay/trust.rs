//! Judges whether a log was read well enough for its replay to be trusted.

use std::fmt;

use super::outcome::share;
use crate::log::Tally;
use crate::units::{grouped, percent};

/// How much of a log may be faulty before its replay is not trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trust {
    /// The largest share of malformed lines, 0 to 1.
    pub max_malformed: f64,
    /// The largest share of late requests, 0 to 1: those given the latest time seen.
    pub max_late: f64,
}

impl Default for Trust {
    /// 5 % malformed, 1 % late. A line left out hides at most its own denial; a late request is moved next to others
    /// and causes false denials.
    fn default() -> Self {
        Self { max_malformed: 0.05, max_late: 0.01 }
    }
}

/// A reason not to trust a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Doubt {
    /// Too many lines are malformed.
    Malformed {
        /// The number of malformed lines.
        lines: u64,
        /// The number of all lines counted.
        of: u64,
        /// The allowed share.
        most: f64,
    },
    /// Too many requests came too late to be sorted.
    Late {
        /// The number of late requests.
        requests: u64,
        /// The number of all requests.
        of: u64,
        /// The allowed share.
        most: f64,
    },
}

impl Trust {
    /// Returns the reasons not to trust a log: none if its shares are within bounds, or it has no lines.
    ///
    /// # Examples
    /// ```
    /// use tidegate_sim::log::Tally;
    /// use tidegate_sim::replay::Trust;
    ///
    /// let mut log = Tally { records: 95, malformed: 5, ..Tally::default() };
    /// assert!(Trust::default().doubts(&log).is_empty());
    /// log.malformed = 6;
    /// let doubts = Trust::default().doubts(&log);
    /// assert_eq!(doubts[0].to_string(), "6 of 101 lines (5.94 %) are malformed, more than 5.00 %: the number of denials may be too low");
    /// ```
    #[must_use]
    pub fn doubts(&self, log: &Tally) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        let (lines, of) = malformed(log);
        if share(lines, of) > self.max_malformed {
            doubts.push(Doubt::Malformed { lines, of, most: self.max_malformed });
        }
        let (requests, of) = late(log);
        if share(requests, of) > self.max_late {
            doubts.push(Doubt::Late { requests, of, most: self.max_late });
        }
        doubts
    }
}

impl Doubt {
    /// Returns the measured share, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        match *self {
            Self::Malformed { lines, of, .. } => share(lines, of),
            Self::Late { requests, of, .. } => share(requests, of),
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = percent(self.share());
        match self {
            Self::Malformed { lines, of, most } => write!(
                f,
                "{} of {} lines ({found}) are malformed, more than {}: the number of denials may be too low",
                grouped(*lines),
                grouped(*of),
                percent(*most)
            ),
            Self::Late { requests, of, most } => write!(
                f,
                "{} of {} requests ({found}) came too late to be put in order, more than {}: denials may not be real",
                grouped(*requests),
                grouped(*of),
                percent(*most)
            ),
        }
    }
}

/// Returns the number of malformed lines, and that of malformed lines and requests together.
pub(super) fn malformed(log: &Tally) -> (u64, u64) {
    (log.malformed, log.malformed + log.records + log.unmatched)
}

/// Returns the number of requests that were given the latest time seen, and that of all requests, including unmatched
/// ones.
pub(super) fn late(log: &Tally) -> (u64, u64) {
    (log.order.clamped, log.records + log.unmatched)
}
