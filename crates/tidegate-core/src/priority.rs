//! How much a request matters: for which requests a limit keeps a part back, and which are shed first under overload.

use core::cmp::Reverse;
use core::fmt;
use core::hash::Hasher;
use core::str::FromStr;
use core::time::Duration;

use crate::error::QuotaError;
use crate::time::{Tick, nanos};

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

/// The priority of a request: a level, and a cohort within it. Ordered: the first to be shed comes first. Written as
/// `sheddable`, or with a cohort as `sheddable/17`.
///
/// The cohort, 0 to 127, divides the requests of one level, usually by user ([`Priority::for_user`]): under overload,
/// some users are then served well, instead of all of them badly. Cohort 0 is shed last.
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

/// How users are divided into the cohorts of a level, and for how long a division holds: with a random number per
/// request, every user would lose some requests, and a page that needs ten of them would hardly ever be complete; with
/// a fixed hash, the same users would lose in each overload.
///
/// Each user is in each cohort with a chance of 1 in 128. The divisions of two periods are independent of each other.
/// The hash has to be the same in all processes and versions, and to stand users who choose their own ids: hence a
/// keyed one, under a secret of the deployment and not a seed of the process. All processes with the same period and
/// secret agree, if they read the time from 1970 on, as `SystemClock` does; where two clocks differ, they disagree for
/// that time at each end of a period; so choose the cohort once, at the edge, and send it on with the priority.
///
/// **A user who chooses his own id** can try ids until one is in a good cohort: 128 tries on average for one period,
/// and each further period multiplies them by 128. Where ids cost nothing, so that somebody may take a new one each
/// hour, use [`Cohorts::with_secret`]. Nothing here protects against a user with many ids.
///
/// # Examples
/// ```
/// use tidegate_core::priority::Cohorts;
/// use tidegate_core::{Criticality, Priority, Tick};
///
/// let cohorts = Cohorts::default().with_secret(*b"of all our nodes");
/// let (noon, one_o_clock) = (Tick::from_secs(1_767_268_800), Tick::from_secs(1_767_272_400));
/// let priority = Priority::of(Criticality::Sheddable);
///
/// assert_eq!(priority.for_user("alice", &cohorts, noon).to_string(), "sheddable/21");
/// assert_eq!(priority.for_user("alice", &cohorts, one_o_clock).to_string(), "sheddable/10");
/// ```
///
/// # Source
/// A hash of the user that changes each hour: H. Zhou et al., "Overload Control for Scaling WeChat Microservices"
/// (DAGOR), 2018, section 4.2.3. The hash: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012.
#[derive(Clone, Copy)]
pub struct Cohorts {
    period_ns: u64,
    secret: [u64; 2],
}

impl Default for Cohorts {
    /// Divides anew each hour, as DAGOR does: longer than a user's visit usually lasts, so that a visit succeeds or
    /// fails as a whole. Without a secret.
    fn default() -> Self {
        Self { period_ns: 3600 * 1_000_000_000, secret: [0, 0] }
    }
}

impl Cohorts {
    /// Divides anew in each period, 1 ns or more, counted from the epoch of the clock. A period above 584 years counts as
    /// that: the division then never changes. Without a secret.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] if the period is zero.
    pub fn every(period: Duration) -> Result<Self, QuotaError> {
        match nanos(period) {
            0 => {
                let want = "is no time for which users keep their cohorts; use 1 ns or more";
                Err(QuotaError::Parameter { name: "period", value: format!("{period:?}"), want })
            }
            period_ns => Ok(Self { period_ns, ..Self::default() }),
        }
    }

    /// Computes the cohorts under a secret, which all processes of the deployment must have: 16 random bytes. A
    /// different secret gives independent cohorts.
    #[must_use]
    pub const fn with_secret(self, secret: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(secret);
        Self { secret: [both as u64, (both >> 64) as u64], ..self }
    }

    /// Returns the user's cohort, 0 to 127: the highest 7 bits of SipHash-2-4, under the secret, of the number of the
    /// period (8 bytes, little-endian) and the user's bytes.
    #[expect(
        deprecated,
        reason = "the successor may become another algorithm in another version of Rust; this one is named and stays"
    )]
    fn cohort(&self, user: &[u8], now: Tick) -> u8 {
        let mut hasher = core::hash::SipHasher::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write(&(now.as_nanos() / self.period_ns).to_le_bytes());
        hasher.write(user);
        (hasher.finish() >> 57) as u8
    }
}

impl fmt::Debug for Cohorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = Duration::from_nanos(self.period_ns);
        f.debug_struct("Cohorts").field("period", &period).finish_non_exhaustive()
    }
}

impl Priority {
    /// Puts the request into the cohort of its user, in place of the one that it has; the level stays. Take as `user`
    /// what the user has proved, such as the subject of a token, and the client's address where nobody is signed in:
    /// a request without a cohort is shed last, so whoever could leave out his id would be better off than all users.
    ///
    /// Costs a hash of the id, some tens of nanoseconds for a short one; never allocates.
    #[must_use]
    pub fn for_user(self, user: impl AsRef<[u8]>, cohorts: &Cohorts, now: Tick) -> Self {
        let cohort = cohorts.cohort(user.as_ref(), now);
        self.in_cohort(cohort).expect("7 bits are a cohort")
    }
}

#[cfg(test)]
mod tests {
    use std::array;

    use proptest::prelude::*;

    use super::*;
    use crate::priority::Criticality;

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

    const HOUR: u64 = 3600;

    fn cohort(user: impl AsRef<[u8]>, cohorts: &Cohorts, secs: u64) -> usize {
        Priority::default().for_user(user, cohorts, Tick::from_secs(secs)).cohort().into()
    }

    /// Pearson's statistic of counts that should be equal: about the number of counts, and rarely far from it.
    fn chi_squared(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
    }

    /// Two test vectors of the reference implementation: the key is the bytes 0 to 15, the messages are the first 8 and
    /// the first 15 bytes of 0, 1, 2 .... The number of the period is the first 8.
    #[test]
    fn the_hash_is_the_published_one() {
        let cohorts =
            Cohorts::every(Duration::from_nanos(1)).unwrap().with_secret(array::from_fn(|at| at as u8));
        let period = u64::from_le_bytes(array::from_fn(|at| at as u8));
        let message: [u8; 7] = array::from_fn(|at| at as u8 + 8);
        let found =
            |user: &[u8]| Priority::default().for_user(user, &cohorts, Tick::from_nanos(period)).cohort();
        assert_eq!(u64::from(found(&[])), 0x93f5_f579_9a93_2462_u64 >> 57);
        assert_eq!(u64::from(found(&message)), 0xa129_ca61_49be_45e5_u64 >> 57);
    }

    /// Nodes of different versions stand side by side while a fleet is updated, so a change here is a breaking one. The
    /// numbers come from another implementation of SipHash.
    #[test]
    fn cohorts_are_the_same_in_every_version() {
        let secret = Cohorts::default().with_secret(*b"of all our nodes");
        let found = ["", "alice", "bob", "user-4711"].map(|user| {
            [0, HOUR - 1, HOUR, 490_908 * HOUR]
                .map(|secs| (cohort(user, &Cohorts::default(), secs), cohort(user, &secret, secs)))
        });
        let expected = [
            [(116, 12), (116, 12), (64, 100), (92, 3)],
            [(34, 65), (34, 65), (86, 97), (54, 21)],
            [(50, 70), (50, 70), (120, 100), (125, 42)],
            [(108, 101), (108, 101), (43, 28), (61, 117)],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_cohort_holds_for_one_period_and_the_level_stays() {
        let cohorts = Cohorts::default();
        for level in Criticality::ALL {
            let priority = Priority::of(level).for_user("alice", &cohorts, Tick::EPOCH);
            assert_eq!(
                (priority.level(), usize::from(priority.cohort())),
                (level, cohort("alice", &cohorts, HOUR - 1))
            );
            assert_eq!(priority.in_cohort(3).unwrap().for_user("alice", &cohorts, Tick::EPOCH), priority);
        }
        let hours: Vec<_> = (0..100).map(|hour| cohort("alice", &cohorts, hour * HOUR)).collect();
        let stayed = hours.windows(2).filter(|two| two[0] == two[1]).count();
        assert!(stayed < 6, "1 in 128 stays by chance: {hours:?}");
    }

    #[test]
    fn any_period_but_zero_divides() {
        let nanosecond = Cohorts::every(Duration::from_nanos(1)).unwrap();
        let at = |cohorts: &Cohorts, nanos| {
            Priority::default().for_user("alice", cohorts, Tick::from_nanos(nanos))
        };
        assert!((0..100).any(|nanos| at(&nanosecond, nanos) != at(&nanosecond, nanos + 1)));
        // The last tick is the end of the first of the longest periods, and begins another.
        for longest in
            [Duration::from_nanos(u64::MAX), Duration::MAX].map(|period| Cohorts::every(period).unwrap())
        {
            assert_eq!(at(&longest, 0), at(&longest, u64::MAX - 1));
        }
        let refused = Cohorts::every(Duration::ZERO).unwrap_err().to_string();
        assert_eq!(refused, "period 0ns is no time for which users keep their cohorts; use 1 ns or more");
    }

    #[test]
    fn the_secret_is_not_shown() {
        let shown = format!("{:?}", Cohorts::default().with_secret([7; 16]));
        assert_eq!(shown, "Cohorts { period: 3600s, .. }");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// 64,000 users with consecutive ids, as databases give them. With 127 degrees of freedom, chi squared is above 220
        /// once in a million times.
        #[test]
        fn users_are_spread_evenly(secret: Option<[u8; 16]>, first in 0..u64::MAX / 2, hour in 0..5_000_000_u64) {
            let cohorts = secret.map_or_else(Cohorts::default, |secret| Cohorts::default().with_secret(secret));
            let mut counts = [0_u32; 128];
            for user in first..first + 64_000 {
                counts[cohort(user.to_string(), &cohorts, hour * HOUR)] += 1;
            }
            prop_assert!(chi_squared(&counts) < 220.0, "{counts:?}");
        }

        /// Whoever was in one quarter in this hour is in each quarter of the next one equally often, and so with another
        /// secret. With 15 degrees of freedom, chi squared is above 57 once in a million times.
        #[test]
        fn the_next_period_and_another_secret_are_independent(first in 0..u64::MAX / 2, hour in 0..5_000_000_u64, secret: [u8; 16]) {
            let (open, sealed) = (Cohorts::default(), Cohorts::default().with_secret(secret));
            let (mut next, mut other) = ([0_u32; 16], [0_u32; 16]);
            for user in first..first + 16_000 {
                let user = user.to_string();
                let now = cohort(&user, &open, hour * HOUR) / 32 * 4;
                next[now + cohort(&user, &open, (hour + 1) * HOUR) / 32] += 1;
                other[now + cohort(&user, &sealed, hour * HOUR) / 32] += 1;
            }
            prop_assert!(chi_squared(&next) < 57.0, "{next:?}");
            prop_assert!(chi_squared(&other) < 57.0, "{other:?}");
        }
    }
}
