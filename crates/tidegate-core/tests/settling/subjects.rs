//! The limits under test: one small world for each kind of [`Quota`], and the laws that each kind is checked against.

use std::time::Duration;

use tidegate_core::rate::{
    Bandwidth, CalendarUnit, ColdFactor, FixedWindow, Gcra, GuavaBursty, GuavaWarming, LeakyBucket,
    LeakyQueue, Refill, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket, UberPacer, WarmUp, XTime,
};
use tidegate_core::{Quota, Rate, Tick};

use crate::settling::envelope::Envelope;

/// A zone with two clock changes a year; UTC in a build without time zones.
const ZONE: &str = if cfg!(feature = "tz") { "Europe/Berlin" } else { "UTC" };

/// Which laws a kind is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Charging less, or earlier, never leaves less at any later tick. All laws are checked, at every step.
    Even,
    /// The same, but a debt is kept by window: the sums are compared only without a debt.
    Window,
    /// A charge that finds the limit full decides when its windows or refills end, so a history without it may end
    /// fuller *or* emptier. *Never fuller* is checked at each settlement; see [`crate::settling::laws`].
    Phase {
        /// Units by which a limit may be ahead after the charge that began its period was undone: one refill if that is
        /// below the capacity, and otherwise zero.
        early: u64,
    },
    /// The price of a charge depends on earlier ones: checked at each settlement, also against the state before it.
    Slope,
    /// A real library's arithmetic, with its faults: sums and retries are not exact, and a used limit may end fuller
    /// than an unused one. Undoing the last charge is exact, and no settlement adds more than it gives back.
    Pacer,
    /// Like a pacer, but the library has its own way to cancel, which is kept, and gives back across changes. After a
    /// first settlement it can add more than was charged; see [`crate::settling::laws`].
    Peer,
}

impl Kind {
    /// Says whether the arithmetic is a real library's.
    pub(crate) const fn is_profile(self) -> bool {
        matches!(self, Self::Pacer | Self::Peer)
    }

    /// Says whether *never fuller* holds at every step, not only at a settlement.
    pub(crate) const fn is_monotone(self) -> bool {
        matches!(self, Self::Even | Self::Window)
    }
}

/// A limit with the world in which it is tested.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) quota: Quota,
    /// The same algorithm with other numbers, for changes to it and back.
    pub(crate) other: Quota,
    pub(crate) kind: Kind,
    pub(crate) envelope: Envelope,
    /// Limits that may each be full or not: the bandwidths of a bucket with several, otherwise the limit itself.
    pub(crate) parts: Vec<Quota>,
    /// One tick of the small world, in ns.
    pub(crate) step: u64,
    /// The number of steps after the last operation until every limit is full again, including debts of the small
    /// world.
    pub(crate) horizon: u64,
}

/// The start of every world: a multiple of two seconds, and twenty seconds into a minute.
pub(crate) const START: Tick = Tick::from_secs(1_700_000_000);

const SECOND: u64 = 1_000_000_000;

fn rate(count: u64, period_ns: u64) -> Rate {
    Rate::new(count, Duration::from_nanos(period_ns)).unwrap()
}

fn subject(
    name: &'static str,
    quota: impl Into<Quota>,
    other: impl Into<Quota>,
    kind: Kind,
    envelope: Envelope,
) -> Subject {
    let quota = quota.into();
    Subject {
        name,
        other: other.into(),
        kind,
        envelope,
        parts: vec![quota.clone()],
        quota,
        step: SECOND,
        horizon: 12,
    }
}

/// The small worlds: about four units, one a second, so that limits are empty, half full and full again within four
/// ticks.
pub(crate) fn small() -> Vec<Subject> {
    let one = rate(1, SECOND);
    let two_thirds = rate(3, 2 * SECOND);
    let window = rate(4, 2 * SECOND);
    let even = |rate: Rate, burst| Envelope::Even { rate, burst };
    let band = |rate, capacity| Bandwidth::new(rate, capacity).unwrap();
    let interval = |rate, capacity| TokenBucket::new(band(rate, capacity).refill(Refill::Interval));
    let several = [band(one, 4), band(rate(1, 2 * SECOND), 5)];
    let queue = |slack, places| LeakyQueue::new(one, slack, places).unwrap();
    let minute = |limit| FixedWindow::calendar(limit, CalendarUnit::Minute, ZONE).unwrap();
    let mixed = [band(one, 4), band(rate(6, 2 * SECOND), 6).refill(Refill::Interval)];
    let aligned = |rate, capacity| band(rate, capacity).refill(Refill::Aligned);
    let by_the_clock = [band(one, 4), aligned(rate(3, 2 * SECOND), 5)];
    let warm = |seconds| WarmUp::new(one, Duration::from_secs(seconds), ColdFactor::THREE).unwrap();
    vec![
        subject(
            "gcra",
            Gcra::new(one, 4).unwrap(),
            Gcra::new(two_thirds, 6).unwrap(),
            Kind::Even,
            even(one, 4),
        ),
        subject(
            "gcra-thirds",
            Gcra::new(two_thirds, 4).unwrap(),
            Gcra::new(one, 9).unwrap(),
            Kind::Even,
            even(two_thirds, 4),
        ),
        subject(
            "bucket",
            TokenBucket::new(band(one, 4)),
            TokenBucket::new(band(two_thirds, 6)),
            Kind::Even,
            even(one, 4),
        ),
        subject(
            "bucket-below-full",
            TokenBucket::new(band(one, 4).initial(1).unwrap()),
            TokenBucket::new(band(two_thirds, 6).initial(2).unwrap()),
            Kind::Even,
            even(one, 4),
        ),
        subject(
            "aligned",
            TokenBucket::new(aligned(window, 4)),
            TokenBucket::new(aligned(rate(6, 2 * SECOND), 6)),
            Kind::Even,
            Envelope::Ends { rate: window, capacity: 4 },
        ),
        subject(
            "aligned-below-capacity",
            TokenBucket::new(aligned(rate(2, 2 * SECOND), 5).initial(4).unwrap()),
            TokenBucket::new(aligned(rate(3, 3 * SECOND), 6)),
            Kind::Even,
            Envelope::Ends { rate: rate(2, 2 * SECOND), capacity: 5 },
        ),
        Subject {
            parts: by_the_clock.iter().map(|band| TokenBucket::new(*band).into()).collect(),
            horizon: 20,
            ..subject(
                "bandwidths-aligned",
                TokenBucket::several(by_the_clock).unwrap(),
                TokenBucket::several([band(one, 3), band(one, 9)]).unwrap(),
                Kind::Even,
                Envelope::Bands(vec![(one, 4)]),
            )
        },
        Subject {
            parts: several.iter().map(|band| TokenBucket::new(*band).into()).collect(),
            horizon: 20,
            ..subject(
                "bandwidths",
                TokenBucket::several(several).unwrap(),
                TokenBucket::several([band(one, 3), band(one, 9)]).unwrap(),
                Kind::Even,
                Envelope::Bands(several.iter().map(|band| (band.rate(), band.capacity())).collect()),
            )
        },
        subject(
            "interval",
            interval(window, 4),
            interval(rate(6, 2 * SECOND), 6),
            Kind::Phase { early: 0 },
            Envelope::Interval { rate: window, capacity: 4 },
        ),
        subject(
            "interval-below-capacity",
            interval(one, 4),
            interval(two_thirds, 6),
            Kind::Phase { early: 1 },
            Envelope::Interval { rate: one, capacity: 4 },
        ),
        subject(
            "bandwidths-mixed",
            TokenBucket::several(mixed).unwrap(),
            TokenBucket::several([band(one, 3), band(one, 9)]).unwrap(),
            Kind::Phase { early: 0 },
            Envelope::Bands(vec![(one, 4)]),
        ),
        subject(
            "leaky-bucket",
            LeakyBucket::new(one, 4).unwrap(),
            LeakyBucket::new(two_thirds, 6).unwrap(),
            Kind::Even,
            even(one, 4),
        ),
        subject("queue", queue(0, 10), queue(1, 5), Kind::Even, Envelope::Queue { rate: one, slack: 0 }),
        subject("queue-slack", queue(2, 4), queue(1, 5), Kind::Even, Envelope::Queue { rate: one, slack: 2 }),
        subject(
            "window",
            FixedWindow::rolling(window),
            FixedWindow::rolling(rate(6, 3 * SECOND)),
            Kind::Phase { early: 0 },
            Envelope::Rolling { limit: 4, window: 2 * SECOND },
        ),
        Subject {
            step: 20 * SECOND,
            ..subject(
                "calendar",
                minute(4),
                minute(6),
                Kind::Window,
                Envelope::Aligned { limit: 4, window: 60 * SECOND },
            )
        },
        subject(
            "sliding-window",
            SlidingWindow::new(window, 2).unwrap(),
            SlidingWindow::new(rate(6, 3 * SECOND), 3).unwrap(),
            Kind::Window,
            Envelope::Span { limit: 4, window: 2 * SECOND },
        ),
        subject(
            "sliding-log",
            SlidingLog::new(window).unwrap(),
            SlidingLog::new(rate(6, 3 * SECOND)).unwrap(),
            Kind::Window,
            Envelope::Span { limit: 4, window: 2 * SECOND },
        ),
        subject(
            "sliding-counter",
            SlidingCounter::new(window),
            SlidingCounter::new(rate(6, 3 * SECOND)),
            Kind::Window,
            Envelope::Counter { limit: 4, window: 2 * SECOND },
        ),
        Subject {
            horizon: 30,
            ..subject(
                "warm-up",
                warm(3).burst(4).unwrap(),
                warm(5).burst(6).unwrap(),
                Kind::Slope,
                Envelope::Paced { rate: one },
            )
        },
        profile("x-time", Kind::Peer, XTime::new(1.0, 4).unwrap(), XTime::new(2.0, 6).unwrap()),
        profile("uber", Kind::Pacer, UberPacer::new(one, 2).unwrap(), UberPacer::new(two_thirds, 2).unwrap()),
        profile(
            "guava",
            Kind::Pacer,
            GuavaBursty::new(1.0, 4.0).unwrap(),
            GuavaBursty::new(2.0, 4.0).unwrap(),
        ),
        profile("guava-warming", Kind::Pacer, warming(1.0), warming(2.0)),
    ]
}

fn warming(rate: f64) -> GuavaWarming {
    GuavaWarming::new(rate, Duration::from_secs(3), 3.0).unwrap()
}

fn profile(name: &'static str, kind: Kind, quota: impl Into<Quota>, other: impl Into<Quota>) -> Subject {
    subject(name, quota, other, kind, Envelope::None)
}

impl Subject {
    /// The largest cost worth charging.
    pub(crate) fn most(&self) -> u64 {
        use tidegate_core::Algorithm;
        let limit = self.quota.standing(&self.quota.fresh(START), START).limit;
        match &self.quota {
            Quota::LeakyQueue(queue) => limit + queue.places(),
            _ => limit.clamp(1, 1 << 40),
        }
    }
}
