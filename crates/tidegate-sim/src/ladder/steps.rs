//! The limits of a ladder.

use std::time::Duration;

use tidegate::Rate;

use crate::what_if::Candidate;

/// Ten round steps per power of ten, in tenths; each is about a quarter more than the one before.
const TENTHS: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];

/// Rungs lie between a thousandth and a thousand times the limit. A limit further off was not meant for this
/// log.
const FAR: u64 = 1_000;

/// Below this count per period the steps would be coarse, and a longer period is used.
const FINE: u64 = 50;

/// Returns the limits of a ladder, lowest first, and the position of the limit that it is built around.
pub(super) fn steps(rate: Rate, burst: u64) -> (Vec<Candidate>, usize) {
    let (count, period) = longer(rate);
    let around = |to: u64| Candidate {
        rate: Rate::new(to, period).unwrap_or(rate),
        burst: u64::try_from((u128::from(burst) * u128::from(to)).div_ceil(u128::from(count)))
            .unwrap_or(Rate::MAX_COUNT)
            .clamp(1, Rate::MAX_COUNT),
    };
    let (least, most) = ((count / FAR).max(1), count.saturating_mul(FAR).min(Rate::MAX_COUNT));
    let mut counts: Vec<u64> = (0..=most.ilog10())
        .flat_map(|power| TENTHS.map(|tenth| u128::from(tenth) * 10u128.pow(power)))
        // Skip values that are not whole numbers.
        .filter(|tenths| tenths.is_multiple_of(10))
        .filter_map(|tenths| u64::try_from(tenths / 10).ok())
        .filter(|to| (least..=most).contains(to) && *to != count)
        .collect();
    let place = counts.partition_point(|to| *to < count);
    counts.insert(place, count);
    let mut rungs: Vec<Candidate> = counts.into_iter().map(around).collect();
    rungs[place] = Candidate { rate, burst };
    (rungs, place)
}

/// Returns the same rate as a count per longer period, of at most a day, if the count is small.
fn longer(rate: Rate) -> (u64, Duration) {
    let (mut count, mut period) = (rate.count(), rate.period());
    for times in [60u32, 60, 24] {
        let longer = period.saturating_mul(times);
        if count >= FINE || longer > Duration::from_secs(86_400) {
            break;
        }
        (count, period) = (count * u64::from(times), longer);
    }
    (count, period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(count: u64, secs: u64, burst: u64) -> (Vec<(u64, u64, u64)>, usize) {
        let (rungs, place) = steps(Rate::new(count, Duration::from_secs(secs)).unwrap(), burst);
        let each = rungs.iter().map(|rung| (rung.rate.count(), rung.rate.period().as_secs(), rung.burst));
        (each.collect(), place)
    }

    #[test]
    fn the_limit_itself_is_a_rung_and_the_others_keep_its_proportions() {
        let (rungs, place) = shown(2, 1, 20);
        assert_eq!(rungs[place], (2, 1, 20));
        assert_eq!((rungs[0], rungs[place + 1]), ((1, 60, 1), (150, 60, 25)));
        assert_eq!(rungs[place - 1], (100, 60, 17), "the burst is rounded up");
        assert_eq!(rungs.last(), Some(&(120_000, 60, 20_000)));
        assert!(rungs.len() < 60, "{}", rungs.len());
        let (rungs, place) = shown(60, 60, 20);
        assert_eq!(
            (rungs[place - 1], rungs[place], rungs[place + 1]),
            ((50, 60, 17), (60, 60, 20), (80, 60, 27))
        );
    }

    #[test]
    fn any_limit_has_a_ladder() {
        for (count, secs, burst) in
            [(1, 1, 1), (1, 86_400, 1), (Rate::MAX_COUNT, 1, Rate::MAX_COUNT), (7, 4_000_000_000, 9)]
        {
            let (rungs, place) = shown(count, secs, burst);
            assert_eq!(rungs[place], (count, secs, burst));
            assert!(rungs.len() < 120 && rungs.iter().all(|(count, _, burst)| *count >= 1 && *burst >= 1));
        }
    }
}
