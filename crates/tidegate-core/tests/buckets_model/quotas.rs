//! Random rates, and spans that are relevant to them.

use core::time::Duration;

use tidegate_core::Rate;

use crate::random::Random;

impl Random {
    /// A rate from one per century to a billion per second, with numbers that do not divide evenly.
    pub(crate) fn rate(&mut self) -> Rate {
        const SECOND: u64 = 1_000_000_000;
        const CENTURY: u64 = 3_155_760_000 * SECOND;
        let (count, period) = match self.up_to(5) {
            0 => (1, CENTURY),
            1 => (1_000_000_000, SECOND),
            2 => (
                self.pick(&[1, 3, 7, 997, 7_919, 999_999_937]),
                self.pick(&[SECOND, 60 * SECOND, 86_400 * SECOND]),
            ),
            3 => (self.pick(&[2, 3, 101, 65_537]), self.pick(&[1, 2, 999_983, 999_999_937, 1 << 61])),
            4 => (self.one_to(Rate::MAX_COUNT), self.one_to(1 << 62)),
            _ => (self.one_to(1000), self.one_to(CENTURY)),
        };
        Rate::new(count, Duration::from_nanos(period)).unwrap()
    }

    /// A span relevant to a rate: zero, almost zero, some units, a capacity, or a hundred years.
    pub(crate) fn pause(&mut self, rate: Rate, capacity: u64) -> u64 {
        let interval = (rate.period_nanos() / rate.count()).max(1);
        match self.up_to(11) {
            0..=2 => 0,
            3 => self.up_to(3),
            4..=6 => self.up_to(interval.saturating_mul(2)),
            7 | 8 => {
                let units = self.one_to(capacity);
                self.up_to(interval.saturating_mul(units))
            }
            9 => rate.period_nanos(),
            10 => self.up_to(rate.period_nanos()),
            _ => self.pick(&[1, 1_000_000_000, 3_155_760_000_000_000_000]),
        }
    }
}
