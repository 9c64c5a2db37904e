//! The fast ways through a limiter against plain ones: words, leases, the table, clocks that lag.
//!
//! `TIDEGATE_MODEL_STEPS` sets the number of calls per trace, and the capacity of the tables that are flooded; the default keeps each test under two seconds in a debug build.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod bounds;
mod floods;
mod schedules;
mod twins;

use tidegate::Cost;

/// Returns the number of steps per trace.
fn steps(usual: u64) -> u64 {
    std::env::var("TIDEGATE_MODEL_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// A small generator (xorshift64*, Vigna 2016): the traces need repeatability, not quality.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % bound
    }
}
