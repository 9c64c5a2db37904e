//! The highest recent utilization of any key's limit.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Tick;

/// The largest share of a limit that was in use, one cell each for the current minute and the previous one.
#[derive(Debug, Default)]
pub(crate) struct Peak([AtomicU64; 2]);

impl Peak {
    /// The number of bits of a share. The minute is stored above them, so that a newer minute is always larger.
    const SHARE_BITS: u32 = 20;
    /// The whole, in the unit of shares: parts per million.
    const WHOLE: u64 = 1_000_000;

    fn minute(now: Tick) -> u64 {
        now.as_nanos() / 60_000_000_000
    }

    /// Records that `used` of `limit` are in use.
    pub(crate) fn note(&self, now: Tick, used: u64, limit: u64) {
        let share = u128::from(used) * u128::from(Self::WHOLE) / u128::from(limit.max(1));
        let share = u64::try_from(share).unwrap_or(Self::WHOLE).min(Self::WHOLE);
        let minute = Self::minute(now);
        // Relaxed: the number stands alone, and only people read it. Read before writing, because most checks are below
        // the peak and need no write.
        let (cell, noted) = (&self.0[minute as usize % 2], minute << Self::SHARE_BITS | share);
        if cell.load(Ordering::Relaxed) < noted {
            cell.fetch_max(noted, Ordering::Relaxed);
        }
    }

    pub(crate) fn ratio(&self, now: Tick) -> f64 {
        let minute = Self::minute(now);
        let share = |cell: &AtomicU64| {
            let noted = cell.load(Ordering::Relaxed);
            let recent = minute.saturating_sub(noted >> Self::SHARE_BITS) <= 1;
            if recent { noted & ((1 << Self::SHARE_BITS) - 1) } else { 0 }
        };
        self.0.iter().map(share).max().unwrap_or(0) as f64 / Self::WHOLE as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_lasts_until_the_minute_after_the_next_begins() {
        let peak = Peak::default();
        peak.note(Tick::from_secs(60), 9, 10);
        peak.note(Tick::from_secs(119), 1, 10);
        assert_eq!(peak.ratio(Tick::from_secs(119)), 0.9);
        peak.note(Tick::from_secs(125), 2, 10);
        assert_eq!(peak.ratio(Tick::from_secs(179)), 0.9);
        assert_eq!(peak.ratio(Tick::from_secs(180)), 0.2);
        assert_eq!(peak.ratio(Tick::from_secs(900)), 0.0);
        peak.note(Tick::from_secs(900), u64::MAX, 1);
        assert_eq!(peak.ratio(Tick::from_secs(900)), 1.0);
    }
}
