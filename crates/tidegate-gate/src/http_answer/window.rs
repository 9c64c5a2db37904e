//! The window of a limit in headers: the time after which a used-up limit is full again, or the length of its window.

use std::time::Duration;

use tidegate_core::{Algorithm, Ask, Cost, Quota, Tick, Transition};

use tidegate_limits::duration_text::seconds_up;

/// The time after which a used-up limit is full again; of a sliding window its length. Compute it once per quota, since it costs a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// Whole seconds, rounded up, at least one.
    Seconds(u64),
    /// The current period of a calendar, whose length varies with the month.
    Calendar,
    /// Time gives nothing back, as with places.
    Never,
}

impl Window {
    /// Computes the window of a quota. It is derived from the quota's own decisions, so that all algorithms are treated
    /// alike.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Quota, http_answer::server_parts::Window};
    /// assert_eq!(Window::of(&Quota::per_second(100).burst(200).gcra()?), Window::Seconds(2));
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn of(quota: &Quota) -> Self {
        if matches!(quota, Quota::FixedWindow(window) if window.calendar_parts().is_some()) {
            return Self::Calendar;
        }
        // Their buckets and windows begin at fixed ticks, so the time until a used-up limit is full again depends on
        // when it was used up. The window is what both sides agree on.
        match quota {
            Quota::SlidingWindow(window) => return Self::Seconds(seconds_up(window.rate().period()).max(1)),
            Quota::SlidingCounter(window) => return Self::Seconds(seconds_up(window.rate().period()).max(1)),
            quota if quota.is_guard() => return Self::Never,
            _ => {}
        }
        // A bucket that refills by the clock takes longest if it was used up at the end of a period, as it is at tick 0 of a
        // quota that follows no wall clock.
        let bucket = matches!(quota, Quota::TokenBucket(_)).then(|| quota.clone());
        let (quota, now) =
            bucket.as_ref().map_or((quota, Tick::from_secs(1 << 32)), |own| (own, Tick::EPOCH));
        let fresh = quota.fresh(now);
        let Some(all) = Cost::new(quota.standing(&fresh, now).limit) else { return Self::Never };
        match quota.decide(&fresh, Ask::within(now, all, Duration::MAX)) {
            Transition::Allowed { next, .. } => {
                Self::Seconds(seconds_up(quota.standing(&next, now).reset_after).max(1))
            }
            Transition::Denied { .. } => Self::Never,
        }
    }

    /// Returns the window, in seconds, of a quota that is asked at `now`; `None` if time gives nothing back.
    #[must_use]
    pub fn seconds(self, quota: &Quota, now: Tick) -> Option<u64> {
        match self {
            Self::Seconds(seconds) => Some(seconds),
            Self::Calendar => {
                let Quota::FixedWindow(window) = quota else { return None };
                let (start, end) = window.window_at(now);
                Some(seconds_up(end.since(start)))
            }
            Self::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_time_from_used_up_to_full() {
        let window = |quota: Result<Quota, _>| Window::of(&quota.unwrap());
        assert_eq!(window(Quota::per_second(100).burst(200).gcra()), Window::Seconds(2));
        assert_eq!(window(Quota::per_second(3).burst(10).gcra()), Window::Seconds(4));
        assert_eq!(window(Quota::per_minute(60).fixed_window()), Window::Seconds(60));
        assert_eq!(window(Quota::per_second(3).burst(10).token_bucket()), Window::Seconds(4));
        assert_eq!(window(Quota::per_hour(100).burst(250).interval_bucket()), Window::Seconds(3 * 3600));
        let aligned = || Quota::per(100, Duration::from_secs(7000)).burst(250).aligned_bucket();
        assert_eq!(window(aligned()), Window::Seconds(21_000), "not by the hour of the day");
        let followed = aligned().unwrap();
        let wall = tidegate_core::time::WallAhead::default();
        wall.set(1_234_567_890);
        followed.follow_wall(&wall);
        assert_eq!(Window::of(&followed), Window::Seconds(21_000));
        assert_eq!(window(Quota::per_hour(3).sliding_log()), Window::Seconds(3600));
        // Regression: these were 104 and 62 seconds, by where the buckets of an arbitrary tick begin.
        assert_eq!(window(Quota::per_minute(60).sliding_counter()), Window::Seconds(60));
        assert_eq!(window(Quota::per_minute(60).sliding_window(10)), Window::Seconds(60));
        assert_eq!(window(Quota::concurrency(50, Duration::from_secs(30))), Window::Never);
    }
}
