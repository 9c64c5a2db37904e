//! Counts a limiter's decisions, in the format of a metrics page.
//!
//! ```sh
//! cargo run -p tidegate --example metrics
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::observer::{Event, Observer};
use tidegate::{KeyedLimiter, Quota};

/// Counters for any exporter. Relaxed throughout: nothing else is ordered by them.
#[derive(Debug, Default)]
struct Metrics {
    allowed: AtomicU64,
    delayed: AtomicU64,
    denied: AtomicU64,
    cancelled: AtomicU64,
    used_up: AtomicU64,
    units: AtomicU64,
}

impl Observer for Metrics {
    fn on_decision(&self, event: &Event) {
        let outcome = match event.decision.is_allowed() {
            false => &self.denied,
            true if event.decision.wait().is_zero() => &self.allowed,
            true => &self.delayed,
        };
        outcome.fetch_add(1, Ordering::Relaxed);
        if event.decision.is_allowed() {
            self.units.fetch_add(event.cost.units(), Ordering::Relaxed);
        }
        if event.decision.used_up() {
            self.used_up.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn on_cancel(&self, _: &Event) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, counter) in [
            ("decisions_total{outcome=\"allowed\"}", &self.allowed),
            ("decisions_total{outcome=\"delayed\"}", &self.delayed),
            ("decisions_total{outcome=\"denied\"}", &self.denied),
            ("cancelled_total", &self.cancelled),
            ("used_up_total", &self.used_up),
            ("units_total", &self.units),
        ] {
            writeln!(f, "{name} {}", counter.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let metrics = Arc::new(Metrics::default());
    let clock = ManualClock::default();
    let limiter = KeyedLimiter::new(Quota::per_second(10), 1000)?
        .with_clock(clock.clone())
        .with_observer(Arc::clone(&metrics));

    // Three callers, ten seconds; the third asks twice as often as it may.
    for _ in 0..100 {
        for (caller, checks) in [("ann", 1), ("bob", 1), ("eve", 2)] {
            for _ in 0..checks {
                let _ = limiter.allow(caller);
            }
        }
        clock.advance(Duration::from_millis(100));
    }
    limiter.reserve("eve", 1, Duration::from_secs(60))?.cancel();
    print!("{metrics}");
    Ok(())
}
