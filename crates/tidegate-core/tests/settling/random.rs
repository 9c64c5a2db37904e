//! Random histories of random limits, shrunk when one breaks a law.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tidegate_core::rate::{
    Bandwidth, ColdFactor, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Refill, SlidingCounter, SlidingLog,
    SlidingWindow, TokenBucket, WarmUp,
};
use tidegate_core::{Quota, Rate, Tick};

use crate::settling::envelope::Envelope;
use crate::settling::history::{Done, Op, Run};
use crate::settling::laws;
use crate::settling::subjects::{Kind, START, Subject, small};

/// A step, as numbers that are valid in every history, so that shrinking keeps a history valid.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Which operation.
    what: u8,
    /// How far the clock moves, in sixteenths of a step; sometimes backwards.
    clock: u16,
    /// Which open charge, counted from the newest.
    which: u8,
    /// How many units, or how much of a charge was used.
    much: u8,
}

fn steps() -> impl Strategy<Value = Step> {
    (0u8..16, 0u16..64, 0u8..8, 0u8..16).prop_map(|(what, clock, which, much)| Step {
        what,
        clock,
        which,
        much,
    })
}

/// The numbers of a random limit: count, period in ns, burst, and one more.
type Numbers = (u64, u64, u64, u64);

fn numbers() -> impl Strategy<Value = Numbers> {
    let period = prop_oneof![Just(1_000_000_000u64), Just(7), Just(60), 1u64..1000, 1_000u64..1 << 40];
    (1u64..12, period, 1u64..12, 0u64..6)
}

/// Makes a limit of the named kind with these numbers, in the world of the small limit of that name.
fn subject(name: &str, (count, period, burst, more): Numbers) -> Option<Subject> {
    let like = small().into_iter().find(|subject| subject.name == name)?;
    let rate = Rate::new(count, Duration::from_nanos(period)).ok()?;
    let band = |rate, capacity| Bandwidth::new(rate, capacity).unwrap();
    let slower = Rate::new(count.div_ceil(2), Duration::from_nanos(period)).ok()?;
    let even = Envelope::Even { rate, burst };
    let interval = band(rate, burst).refill(Refill::Interval);
    // The time of one unit, and long enough to have a middle and neighbouring ticks.
    let unit = (period / count).clamp(4, 1 << 40);
    let window = (period / 2).max(4);
    let made = |quota: Quota, kind, envelope, step| Subject {
        parts: vec![quota.clone()],
        quota,
        kind,
        envelope,
        step,
        horizon: burst.max(count) + 40,
        ..like.clone()
    };
    Some(match name {
        "gcra" => made(Gcra::new(rate, burst).ok()?.into(), Kind::Even, even, unit),
        "bucket" => made(TokenBucket::new(band(rate, burst)).into(), Kind::Even, even, unit),
        "bucket-below-full" => {
            let band = band(rate, burst).initial(more.min(burst)).ok()?;
            made(TokenBucket::new(band).into(), Kind::Even, even, unit)
        }
        "bandwidths" => {
            let bands = [band(rate, burst), band(slower, burst + more)];
            let envelope = Envelope::Bands(bands.iter().map(|band| (band.rate(), band.capacity())).collect());
            let quota = TokenBucket::several(bands).ok()?.into();
            let parts = bands.iter().map(|band| TokenBucket::new(*band).into()).collect();
            Subject { parts, ..made(quota, Kind::Even, envelope, unit) }
        }
        "interval" => {
            let early = if count < burst { count } else { 0 };
            let envelope = Envelope::Interval { rate, capacity: burst };
            made(TokenBucket::new(interval).into(), Kind::Phase { early }, envelope, window)
        }
        "aligned" => {
            let envelope = Envelope::Ends { rate, capacity: burst };
            let aligned = band(rate, burst).refill(Refill::Aligned);
            made(TokenBucket::new(aligned).into(), Kind::Even, envelope, window)
        }
        "aligned-below-capacity" => {
            let envelope = Envelope::Ends { rate, capacity: burst };
            let aligned = band(rate, burst).refill(Refill::Aligned).initial(more.min(burst)).ok()?;
            made(TokenBucket::new(aligned).into(), Kind::Even, envelope, window)
        }
        "leaky-bucket" => made(LeakyBucket::new(rate, burst).ok()?.into(), Kind::Even, even, unit),
        "queue" => {
            let quota = LeakyQueue::new(rate, more, burst).ok()?.into();
            made(quota, Kind::Even, Envelope::Queue { rate, slack: more }, unit)
        }
        "window" => {
            let envelope = Envelope::Rolling { limit: count, window: period };
            made(FixedWindow::rolling(rate).into(), Kind::Phase { early: 0 }, envelope, window)
        }
        "sliding-window" => {
            let quota = SlidingWindow::new(rate, (more + 1).min(period)).ok()?.into();
            made(quota, Kind::Window, Envelope::Span { limit: count, window: period }, window)
        }
        "sliding-log" => {
            let quota = SlidingLog::new(rate).ok()?.into();
            made(quota, Kind::Window, Envelope::Span { limit: count, window: period }, window)
        }
        "sliding-counter" => {
            let envelope = Envelope::Counter { limit: count, window: period };
            made(SlidingCounter::new(rate).into(), Kind::Window, envelope, window)
        }
        "warm-up" => {
            let period = Duration::from_nanos(period.saturating_mul(more + 1).min(1 << 50));
            let quota = WarmUp::new(rate, period, ColdFactor::THREE).ok()?.burst(burst).ok()?.into();
            made(quota, Kind::Slope, Envelope::Paced { rate }, unit)
        }
        _ => like,
    })
}

/// Plays one history and checks the laws. Returns what is broken, with the line to replay.
fn play(subject: &Subject, steps: &[Step]) -> Result<(), String> {
    let mut run = Run::new(&subject.quota, START);
    let mut clock = START;
    for (left, step) in (0..steps.len()).rev().zip(steps) {
        let sixteenth = (subject.step / 16).max(1);
        clock = match step.clock {
            0..16 => clock,
            16..20 => Tick::from_nanos(clock.as_nanos() - sixteenth * u64::from(step.clock - 15)),
            20..24 => clock.after(Duration::from_nanos(u64::from(step.clock - 20))),
            24..60 => clock.after(Duration::from_nanos(sixteenth * u64::from(step.clock - 24))),
            _ => clock.after(Duration::from_nanos(subject.step * 3 * u64::from(step.clock - 59))),
        };
        let open: Vec<usize> = run.open().map(|(nth, _)| nth).collect();
        let op = if step.what < 7 || open.is_empty() {
            let limit = subject.most();
            let units = 1 + u64::from(step.much) % limit;
            let max_wait = if step.what % 3 == 0 { subject.step * 4 } else { 0 };
            Op::Charge { now: clock, units, max_wait }
        } else {
            let nth = open[open.len() - 1 - usize::from(step.which) % open.len()];
            let units = run.charges[nth].units();
            let used = match step.much {
                0..6 => 0,
                6..12 => u64::from(step.much) * units / 12,
                12 => units,
                // Debts are rare: a history with a debt is checked against fewer laws.
                13 if step.what == 15 => units + u64::from(step.which) + 1,
                _ => units - 1,
            };
            Op::Settle { now: clock, nth, used }
        };
        let mut law = one(subject, &mut run, op);
        if law.is_ok() && left == 0 {
            law = laws::forgetting(subject, &run);
        }
        law.map_err(|law| format!("{law}\n  replay: {}", run.line(None)))?;
    }
    Ok(())
}

/// Performs one operation and checks the laws.
pub(crate) fn one(subject: &Subject, run: &mut Run<'_>, op: Op) -> Result<(), String> {
    let before = run.state.clone();
    match (run.apply(op)?, op) {
        (Done::Allowed(receipt), _) => laws::undone(subject, &before, &run.state, &receipt)?,
        (Done::Settled, Op::Settle { nth, used, .. }) => {
            let receipt = run.charges[nth].receipt;
            laws::settlement(subject, &before, run, &receipt, used)?;
        }
        _ => return Ok(()),
    }
    laws::against_counterfactual(subject, run)?;
    laws::acts(subject, run)?;
    laws::retry(subject, &run.state, run.last)
}

/// The most operations of one history.
const LENGTH: usize = 24;

/// Plays about this many steps on one subject.
pub(crate) fn histories(name: &'static str, operations: u32) -> Result<(), String> {
    let cases = operations / (LENGTH as u32 / 2);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    // The same histories each time, so that a change that breaks a law fails in its own run.
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        .run(&(numbers(), vec(steps(), 1..LENGTH)), |(numbers, steps)| {
            let Some(subject) = subject(name, numbers) else { return Ok(()) };
            play(&subject, &steps).map_err(|law| TestCaseError::fail(format!("{:?}: {law}", subject.quota)))
        })
        .map_err(|error| format!("{name}: {error}"))
}

/// Returns the world of `like` for another limit of its kind, to replay a history.
pub(crate) fn like(like: Subject, quota: Quota) -> Subject {
    if like.quota == quota {
        return like;
    }
    let numbers = |rate: Rate| (rate.count(), rate.period_nanos());
    let ((count, period), burst, more) = match &quota {
        Quota::Gcra(limit) => (numbers(limit.rate()), limit.burst(), 0),
        Quota::LeakyBucket(limit) => (numbers(limit.rate()), limit.capacity(), 0),
        Quota::LeakyQueue(limit) => (numbers(limit.rate()), limit.places(), limit.slack()),
        Quota::FixedWindow(limit) => ((limit.limit(), limit.period().as_nanos() as u64), 1, 0),
        Quota::SlidingWindow(limit) => (numbers(limit.rate()), 1, limit.buckets() - 1),
        Quota::SlidingLog(limit) => (numbers(limit.rate()), 1, 0),
        Quota::SlidingCounter(limit) => (numbers(limit.rate()), 1, 0),
        Quota::TokenBucket(limit) => {
            let bands = limit.bandwidths();
            let more = bands.get(1).map_or(0, |other| other.capacity() - bands[0].capacity());
            (numbers(bands[0].rate()), bands[0].capacity(), more)
        }
        Quota::WarmUp(limit) => {
            let period = limit.period().as_nanos() as u64;
            (numbers(limit.rate()), 1, (period / limit.rate().period_nanos()).saturating_sub(1))
        }
        _ => return like,
    };
    let made = subject(like.name, (count, period, burst, more)).expect("numbers of a limit");
    Subject { quota, ..made }
}
