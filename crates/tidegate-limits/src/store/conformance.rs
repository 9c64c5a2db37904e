//! A conformance suite for every store, remote ones included.
//!
//! [`run`] takes a function that makes an empty store. It panics, naming the law and the seed, if the store breaks a
//! law. Most laws are checked by one differential trace: random steps run on the store and on
//! [`PlainStore`](super::PlainStore), and their answers must be equal line by line. Steps run one by one and many at
//! once ([`Store::settle_each`]), by the caller's clock, a fresh clock and the engine's clock.
//!
//! Answers that come later are awaited on the calling thread, so a store that needs a runtime must bring its own.

mod laws;
mod subject;
mod trace;

pub use trace::Random;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::{CircuitBreaker, SentinelRule, Window};
use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency, Bounds, Concurrency};
use tidegate_core::rate::{
    Bandwidth, CalendarUnit, ColdFactor, GuavaBursty, GuavaWarming, TokenBucket, UberPacer, XTime,
};
use tidegate_core::{Quota, QuotaError, Rate};

use self::subject::Subject;
use super::Store;
use crate::clock::ManualClock;

/// Runs the whole suite against stores that `make` returns, which must be empty.
///
/// `quotas` are the limits to try; [`quotas`] returns at least one of every algorithm. `steps` is the length of each of
/// five random traces: a thousand for an engine over the network, a hundred thousand in memory. If the store has a
/// clock of its own ([`super::Caps::own_clock`]), its answers are compared with those of a plain map at the ticks that
/// they name; [`run_by_clock`] also compares these ticks with the clock.
///
/// # Panics
/// When a law is broken; the message names law, seed and step.
///
/// # Examples
/// A store that counts its steps passes if the one behind it does:
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::store::{Home, Occupancy, PlainStore, Settled, Settling, Step, Store, conformance};
///
/// #[derive(Debug, Default)]
/// struct Counting(PlainStore, AtomicU64);
///
/// impl Store for Counting {
///     fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         self.0.settle_into(step, out)
///     }
///
///     fn occupancy(&self) -> Occupancy {
///         self.0.occupancy()
///     }
/// }
///
/// conformance::run(Counting::default, &conformance::quotas(), 200);
/// ```
pub fn run<S: Store>(make: impl Fn() -> S, quotas: &[Arc<Quota>], steps: u64) {
    suite(|_| make(), None, quotas, steps);
}

/// Runs the suite against stores that use the clock handed to `make` as their own: the suite makes it run fast, slow
/// and backwards.
///
/// # Panics
/// As [`run`].
pub fn run_by_clock<S: Store>(make: impl Fn(ManualClock) -> S, quotas: &[Arc<Quota>], steps: u64) {
    let clock = ManualClock::default();
    suite(|clock| make(clock.clone()), Some(&clock), quotas, steps);
}

fn suite<S: Store>(
    make: impl Fn(&ManualClock) -> S,
    clock: Option<&ManualClock>,
    quotas: &[Arc<Quota>],
    steps: u64,
) {
    let unused = ManualClock::default();
    let make = || make(clock.unwrap_or(&unused));
    laws::run(&make, quotas);
    for seed in 1..=5 {
        let store = make();
        let mut subject = Subject::new(&store, clock);
        match seed {
            1..=3 => trace::one_by_one(&mut subject, quotas, seed, steps),
            _ => trace::many_at_once(&mut subject, quotas, seed, steps),
        }
    }
}

/// Returns at least one limit of every algorithm, awkward rates among them.
///
/// # Panics
/// Never: the parameters are constants that the tests build.
#[must_use]
pub fn quotas() -> Vec<Arc<Quota>> {
    let all = [
        Quota::per_second(7).burst(5).gcra(),
        Quota::per_second(999_999_937).burst(1000).gcra(),
        Quota::per_day(3).gcra(),
        Quota::per_second(5).fixed_window(),
        Quota::per_day(5).calendar_window(CalendarUnit::Day, "Asia/Shanghai"),
        Quota::per_second(6).sliding_window(7),
        Quota::per_second(6).sliding_counter(),
        Quota::per_second(6).sliding_log(),
        Quota::per_second(7).burst(4).token_bucket(),
        Quota::per_second(3).burst(9).interval_bucket(),
        Quota::per_second(7).burst(4).leaky_bucket(),
        Quota::per_second(20).burst(2).leaky_queue(8),
        Quota::per_second(20).warm_up(Duration::from_secs(2), ColdFactor::THREE),
        XTime::new(3.7, 6).map(Quota::from),
        Rate::new(30, Duration::from_secs(1)).and_then(|rate| UberPacer::new(rate, 4)).map(Quota::from),
        GuavaBursty::new(5.5, 1.0).map(Quota::from),
        GuavaWarming::new(9.0, Duration::from_secs(1), 3.0).map(Quota::from),
        // Starts below the cost of some asks, so that keys that are denied when first seen have to be kept.
        Rate::new(3, Duration::from_secs(1))
            .and_then(|rate| Bandwidth::new(rate, 8)?.initial(1))
            .map(|bandwidth| TokenBucket::new(bandwidth).into()),
        Quota::concurrency(5, Duration::from_secs(2)),
        Concurrency::new(7).map(Quota::from),
        // Its limit moves, and its state is forgotten, within the span of a trace.
        adaptive("aimd", 5, |guard| guard.forget_after(Duration::from_secs(3))),
        adaptive("hill-climb", 3, |guard| Ok(guard.never_forget())),
        adaptive("min-latency", 4, Ok),
        // Trips, waits and recovers within the span of a trace.
        CircuitBreaker::builder()
            .window(Window::Time { span: Duration::from_secs(2), buckets: 4 })
            .min_calls(3)
            .open_for(Duration::from_millis(300))
            .ttl(Duration::from_secs(1))
            .probes(2)
            .forget_after(Duration::from_secs(5))
            .build()
            .map(Quota::from),
        CircuitBreaker::sentinel(SentinelRule::ErrorCount(1), Duration::from_millis(200))
            .build()
            .map(Quota::from),
        Quota::per_second(3).burst(7).aligned_bucket(),
    ];
    all.into_iter().map(|quota| Arc::new(quota.expect("constant parameters in range"))).collect()
}

/// Makes an adaptive limit of 1 to 8 places, each of which lapses after two seconds.
fn adaptive(
    law: &str,
    start: u64,
    with: impl Fn(AdaptiveConcurrency) -> Result<AdaptiveConcurrency, QuotaError>,
) -> Result<Quota, QuotaError> {
    let law: Adaptive = law.parse().expect("the name of a law");
    let law = law.with_bounds(Bounds::new(1, 8)?.start_at(start)?);
    with(AdaptiveConcurrency::new(law).ttl(Duration::from_secs(2))?).map(Quota::from)
}
