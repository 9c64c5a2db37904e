//! Random quotas and random clocks, the same in every run.

use core::time::Duration;

use tidegate_core::Rate;

/// SplitMix64: a few instructions, so that the models and not the dice take the time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `max`, both included.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        let any = self.any();
        max.checked_add(1).map_or(any, |count| any % count)
    }

    /// From 1 to `max`, small ones as often as large ones.
    pub(crate) fn from_one(&mut self, max: u64) -> u64 {
        let bits = self.up_to(u64::from(max.ilog2()));
        (1 + self.up_to((2u64 << bits.min(62)) - 1)).min(max)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.any() as usize % from.len()]
    }

    /// From one per century to a billion per second, with numbers that divide nothing among them.
    pub(crate) fn rate(&mut self) -> Rate {
        const SECOND: u64 = 1_000_000_000;
        const CENTURY: u64 = 3_155_760_000 * SECOND;
        let (count, period) = match self.up_to(5) {
            0 => (1, CENTURY),
            1 => (1_000_000_000, SECOND),
            2 => (self.pick(&[1, 3, 7, 997, 7_919, 999_999_937]), self.pick(&[SECOND, 60 * SECOND, 86_400 * SECOND])),
            3 => (self.pick(&[2, 3, 101, 65_537]), self.pick(&[1, 2, 999_983, 999_999_937, 1 << 61])),
            4 => (self.from_one(Rate::MAX_COUNT), self.from_one(1 << 62)),
            _ => (self.from_one(1000), self.from_one(CENTURY)),
        };
        Rate::new(count, Duration::from_nanos(period)).unwrap()
    }

    /// A span that matters to a rate: nothing, next to nothing, some units, a capacity, a hundred years.
    pub(crate) fn span(&mut self, rate: Rate, capacity: u64) -> u64 {
        let interval = (rate.period_nanos() / rate.count()).max(1);
        match self.up_to(11) {
            0..=2 => 0,
            3 => self.up_to(3),
            4..=6 => self.up_to(interval.saturating_mul(2)),
            7 | 8 => {
                let units = self.from_one(capacity);
                self.up_to(interval.saturating_mul(units))
            }
            9 => rate.period_nanos(),
            10 => self.up_to(rate.period_nanos()),
            _ => self.pick(&[1, 1_000_000_000, 3_155_760_000_000_000_000]),
        }
    }
}

/// Steps that each model is compared for; more with `TIDEGATE_MODEL_STEPS`.
pub(crate) fn steps(default: u64) -> u64 {
    std::env::var("TIDEGATE_MODEL_STEPS").map_or(default, |steps| steps.parse().expect("a number of steps"))
}
