//! Which cohort a user is in: a hash of the user that changes with time, so that the same users are not always refused
//! first.
//!
//! Shedding and full queues refuse the highest cohorts of a level. With a random number per request, every user would
//! lose some requests, and a page that needs ten of them would hardly ever be complete. With a fixed hash, the same users
//! would lose in each overload. So a cohort holds for one period, and the next period draws all cohorts anew.
//!
//! The hash has to be the same in all processes of a fleet and in all versions of this crate, and it has to stand users
//! who choose their own ids. So it is SipHash-2-4, a keyed hash that is made for input from strangers, under a secret of
//! the deployment instead of a seed of the process.

use core::fmt;
use core::hash::Hasher;
use core::time::Duration;

use super::Priority;
use crate::error::QuotaError;
use crate::time::{Tick, nanos};

/// How users are divided into the cohorts of a level, and for how long a division holds.
///
/// The division is even: each user is in each cohort with a chance of 1 in 128. The divisions of two periods are
/// independent of each other. All processes with the same period and secret agree, if they read the time from 1970 on, as
/// `SystemClock` does. Where two clocks differ, they disagree for that time at each end of a period; so choose the cohort
/// once, at the edge, and send it on with the priority.
///
/// **A user who chooses his own id** can try ids until one is in a good cohort. The period ends that advantage: an id that
/// is in the best cohort for one hour takes 128 tries on average, and each further hour multiplies them by 128. If
/// ids cost nothing, so that somebody may take a new one each hour, use [`Cohorts::with_secret`]: without the secret
/// nobody can compute a cohort. Nothing here protects against a user with many ids.
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
    /// Divides anew each hour, as DAGOR does: longer than a user's visit usually lasts, so that a visit succeeds or fails as
    /// a whole. Without a secret.
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
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = Duration::from_nanos(self.period_ns);
        f.debug_struct("Cohorts").field("period", &period).finish_non_exhaustive()
    }
}

impl Priority {
    /// Puts the request into the cohort of its user, in place of the one that it has; the level stays.
    ///
    /// `user` is what identifies the user, compared byte by byte. Take what the user has proved, such as the subject of a
    /// token, and the client's address where nobody is signed in: a request without a cohort is in cohort 0, which is
    /// shed last, so whoever could leave out his id would be better off than all users.
    ///
    /// Costs a hash of the id, some tens of nanoseconds for a short one; never allocates. See [`Cohorts`].
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
