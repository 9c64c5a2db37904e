//! How much a request matters: for which requests a limit keeps a part back, and which are shed first under overload.

mod cohorts;

use core::cmp::Reverse;
use core::fmt;
use core::str::FromStr;

pub use self::cohorts::Cohorts;

/// How harmful it is to refuse a request. Ordered: the least important first.
///
/// # Source
/// The four levels of "Handling Overload" in Google's *Site Reliability Engineering*, 2016, chapter 21.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Criticality {
    /// May fail often: work that is tried again later, such as a batch job.
    Sheddable,
    /// May fail now and then: work whose users expect that, such as a batch of reports.
    SheddablePlus,
    /// Users notice when it fails: the default.
    #[default]
    Critical,
    /// Users are harmed when it fails: nothing is more important.
    CriticalPlus,
}

impl Criticality {
    /// Every level, the least important first.
    pub const ALL: [Self; 4] = [Self::Sheddable, Self::SheddablePlus, Self::Critical, Self::CriticalPlus];

    /// Returns its name: `critical-plus`, `critical`, `sheddable-plus` or `sheddable`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sheddable => "sheddable",
            Self::SheddablePlus => "sheddable-plus",
            Self::Critical => "critical",
            Self::CriticalPlus => "critical-plus",
        }
    }
}

impl fmt::Display for Criticality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The priority of a request: a level, and a cohort within it. Ordered: the first to be shed comes first.
///
/// The cohort, 0 to 127, divides the requests of one level, usually by user ([`Priority::for_user`]): under overload, some
/// users are then served well, instead of all of them badly. Cohort 0 is shed last.
///
/// Written as `sheddable`, or with a cohort as `sheddable/17`.
///
/// # Examples
/// ```
/// use tidegate_core::{Criticality, Priority};
///
/// let report: Priority = "sheddable/17".parse()?;
/// assert_eq!((report.level(), report.cohort()), (Criticality::Sheddable, 17));
/// assert!(report < Priority::of(Criticality::Sheddable), "cohort 0 is shed later");
/// assert!(Priority::of(Criticality::Sheddable) < Priority::default());
/// assert_eq!(Priority::default().to_string(), "critical");
/// # Ok::<(), tidegate_core::priority::ParsePriorityError>(())
/// ```
///
/// # Source
/// Cohorts: the user priorities of H. Zhou et al., "Overload Control for Scaling WeChat Microservices" (DAGOR), 2018, section 4.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority {
    level: Criticality,
    cohort: Reverse<u8>,
}

impl Priority {
    /// How many cohorts a level has.
    pub const COHORTS: u8 = 128;

    /// Makes the priority of a level; its cohort is 0.
    #[must_use]
    pub const fn of(level: Criticality) -> Self {
        Self { level, cohort: Reverse(0) }
    }

    /// Chooses the cohort, 0 to 127; `None` for another number.
    #[must_use]
    pub const fn in_cohort(self, cohort: u8) -> Option<Self> {
        if cohort < Self::COHORTS { Some(Self { level: self.level, cohort: Reverse(cohort) }) } else { None }
    }

    /// Returns the level.
    #[must_use]
    pub const fn level(self) -> Criticality {
        self.level
    }

    /// Returns the cohort, 0 to 127; 0 is shed last.
    #[must_use]
    pub const fn cohort(self) -> u8 {
        self.cohort.0
    }
}

impl From<Criticality> for Priority {
    fn from(level: Criticality) -> Self {
        Self::of(level)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cohort() {
            0 => self.level.fmt(f),
            cohort => write!(f, "{}/{cohort}", self.level),
        }
    }
}

/// Why a text is not a priority. Displays as the end of a sentence that begins with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePriorityError {
    /// The level is not known.
    #[error("is not a priority; use critical-plus, critical, sheddable-plus or sheddable")]
    Level,
    /// The text after the slash is not a cohort.
    #[error("names no cohort after its slash; use a whole number from 0 to 127, as sheddable/17")]
    Cohort,
}

impl FromStr for Criticality {
    type Err = ParsePriorityError;

    fn from_str(text: &str) -> Result<Self, ParsePriorityError> {
        let known = Self::ALL.into_iter().find(|level| level.as_str() == text);
        known.ok_or(ParsePriorityError::Level)
    }
}

impl FromStr for Priority {
    type Err = ParsePriorityError;

    /// Reads the displayed form: lower-case words, no spaces, and only digits for the cohort.
    fn from_str(text: &str) -> Result<Self, ParsePriorityError> {
        let Some((level, cohort)) = text.split_once('/') else { return text.parse().map(Self::of) };
        let level = Self::of(level.parse()?);
        let digits = !cohort.is_empty() && cohort.bytes().all(|byte| byte.is_ascii_digit());
        let cohort = cohort.parse().ok().filter(|_| digits);
        cohort.and_then(|cohort| level.in_cohort(cohort)).ok_or(ParsePriorityError::Cohort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_priority_is_read_as_it_is_shown_and_stands_in_order() {
        let all = Criticality::ALL
            .into_iter()
            .flat_map(|level| (0..128).rev().filter_map(move |cohort| Priority::of(level).in_cohort(cohort)));
        let all: Vec<Priority> = all.collect();
        assert_eq!(all.len(), 512);
        assert!(all.is_sorted_by(|one, next| one < next), "the last cohort of the lowest level goes first");
        for priority in all {
            assert_eq!(priority.to_string().parse(), Ok(priority));
        }
        assert_eq!(size_of::<Priority>(), 2);
    }

    #[test]
    fn what_is_no_priority_is_told_apart() {
        for text in ["", "Critical", "critical ", "important", "critical_plus", "/3", "sheddableplus"] {
            assert_eq!(text.parse::<Priority>(), Err(ParsePriorityError::Level), "{text:?}");
        }
        for text in ["critical/", "critical/128", "critical/-1", "critical/+1", "critical/1/2", "sheddable/x"]
        {
            assert_eq!(text.parse::<Priority>(), Err(ParsePriorityError::Cohort), "{text:?}");
        }
        assert_eq!("critical/000".parse(), Ok(Priority::default()));
    }
}
