//! Floors: only the steps that every limiter needs.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use quanta::Clock;

use crate::measure::{Want, alone, wall};
use crate::workloads::One;
use crate::workloads::permits::{PLACES, Permits};

pub(crate) fn empty() -> Result<f64> {
    alone(Want::Permitted, || true)
}

pub(crate) fn counter() -> Result<f64> {
    let clock = Clock::new();
    alone(Want::Permitted, || clock.raw() > 0)
}

pub(crate) fn scaled_counter() -> Result<f64> {
    let clock = Clock::new();
    alone(Want::Permitted, || clock.delta_as_nanos(0, clock.raw()) > 0)
}

pub(crate) fn instant() -> Result<f64> {
    let start = wall();
    alone(Want::Permitted, || wall() >= start)
}

pub(crate) fn tick() -> Result<f64> {
    let tick = AtomicU64::new(1);
    // Relaxed: no other memory depends on the tick.
    alone(Want::Permitted, || black_box(&tick).load(Ordering::Relaxed) > 0)
}

/// The steps that every shared guard needs: one increment, one decrement.
pub(crate) fn permit(run: &mut Permits<'_>) -> Result<()> {
    let inside = AtomicU64::new(0);
    run.shared(|| pass(&inside))
}

/// The same with an owned permit, which holds a reference to its guard.
pub(crate) fn owned_permit(run: &mut Permits<'_>) -> Result<()> {
    let inside = Arc::new(AtomicU64::new(0));
    run.shared(|| pass(black_box(&Arc::clone(&inside))))
}

fn pass(inside: &AtomicU64) -> bool {
    let entered = inside.fetch_add(1, Ordering::Acquire) < PLACES;
    inside.fetch_sub(1, Ordering::Release);
    entered
}

/// The generic cell rate algorithm in one word: the time at which the limit is full.
pub(crate) struct Word {
    full_at: AtomicU64,
    unit: u64,
    depth: u64,
}

impl Word {
    fn new(run: &One<'_>) -> Self {
        let (count, period) = run.limit();
        let depth = period.as_nanos() as u64;
        Self { full_at: AtomicU64::new(0), unit: depth / u64::from(count), depth }
    }

    /// Takes `units`. Relaxed throughout: no other memory depends on the word. The loop ends, because a failed exchange
    /// means that another thread's has succeeded.
    fn take(&self, now: u64, units: u64) -> bool {
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let next = full_at.max(now) + self.unit * units;
            if next - now > self.depth {
                return false;
            }
            match self.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => full_at = seen,
            }
        }
    }
}

pub(crate) fn one_clock(run: &mut One<'_>) -> Result<()> {
    let (word, clock) = (Word::new(run), Clock::new());
    run.shared(|| word.take(clock.raw(), 1))
}

/// Uses a tick that stands still. If all checks are to pass, a unit has no weight, so that the burst lasts.
pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let mut word = Word::new(run);
    if run.want == Want::Permitted {
        word.unit = 0;
    }
    run.shared(|| word.take(black_box(1), 1))
}

/// The units that a thread draws from the shared word at once.
const LEASE: u64 = 64;

pub(crate) fn one_lease(run: &mut One<'_>) -> Result<()> {
    thread_local! {
        static LEFT: Cell<u64> = const { Cell::new(0) };
    }
    if run.want == Want::Denied {
        return Ok(());
    }
    let (word, clock) = (Word::new(run), Clock::new());
    run.shared(|| {
        LEFT.with(|left| match left.get() {
            0 => {
                word.take(clock.raw(), LEASE) && {
                    left.set(LEASE - 1);
                    true
                }
            }
            some => {
                left.set(some - 1);
                true
            }
        })
    })
}
