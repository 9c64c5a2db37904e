//! Finds the end of the crowd: the gaps between the keys that need most and the others.
//!
//! In any crowd one key needs most, often twice as much as the next. A gap is only significant if it is wider than
//! the crowd's own spacing makes likely. For needs whose tail falls smoothly (by a power law, or faster), `i` times
//! the difference of the logarithms of the `i`-th and the next need has the same distribution for each `i`:
//! exponential, with a mean estimated from the crowd below the gap. The strength of a gap is its width in units of
//! that mean; a strength of `s` arises by chance with a probability of at most `e^−s`.
//!
//! # Source
//! A. Rényi, On the theory of order statistics, 1953; B. M. Hill, A simple general approach to inference about the
//! tail of a distribution, 1975. The mean is trimmed, since a second gap may be among the spacings that it is
//! estimated from.

/// Added to each need, in ordinary requests: a difference between 1 and 3 of them is chance, not a gap.
const BLUR: f64 = 5.0;
/// The most keys from which the crowd's spacing is estimated: its tail, not its middle.
const TAIL: usize = 200;
/// The fewest keys of a crowd. With fewer, it is unknown what is usual.
pub(super) const CROWD: usize = 10;
/// The largest share of the keys that can be above a gap: more keys are the crowd itself.
const MOST_ABOVE: f64 = 0.25;
/// The share of the widest spacings that are left out of the mean, and the mean of an exponential variate of mean 1
/// that is cut off there.
const TRIM: (f64, f64) = (0.2, 0.597_6);
/// The smallest spacing assumed of a crowd: smaller ones are rounding.
const LEAST_SPACING: f64 = 0.05;
/// The least strength of a clear gap: a probability of 1 in 3,000 by chance, since several gaps and rates are
/// examined.
const STRONG: f64 = 8.0;
/// The least factor of a clear gap, to leave room for a limit: keys above it need this many times the burst.
const WIDE: f64 = 2.0;

/// A gap among keys in descending order of need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gap {
    /// The number of keys above it.
    pub(super) above: usize,
    /// How unlikely it is by chance; see the module.
    pub(super) strength: f64,
    /// The least need above divided by the largest need below.
    pub(super) factor: f64,
}

impl Gap {
    /// Says whether it is distinguishable from chance and leaves room for a limit.
    pub(super) fn is_clear(&self) -> bool {
        self.strength >= STRONG && self.factor >= WIDE
    }
}

/// Finds the gaps, clear or not, among needs in descending order, of `keys` keys in all. An ordinary request costs
/// `scale` units.
pub(super) fn gaps(falling: &[u64], keys: u64, scale: u64) -> Vec<Gap> {
    let blur = BLUR * scale as f64;
    let logs: Vec<f64> = falling.iter().map(|need| (*need as f64 + blur).ln()).collect();
    let most = ((keys as f64 * MOST_ABOVE) as usize).min(falling.len().saturating_sub(CROWD));
    let mut out = Vec::new();
    for above in 1..=most {
        let wide = logs[above - 1] - logs[above];
        if wide <= 0.0 {
            continue;
        }
        let strength = above as f64 * wide / spacing(&logs[above..]);
        out.push(Gap { above, strength, factor: wide.exp() });
    }
    out
}

/// Returns the mean spacing of the tail of a crowd, whose logarithms are in descending order.
fn spacing(crowd: &[f64]) -> f64 {
    let tail = (crowd.len() / 10).clamp(CROWD, TAIL).min(crowd.len() - 1);
    let mut spacings: Vec<f64> = (1..=tail).map(|i| i as f64 * (crowd[i - 1] - crowd[i])).collect();
    spacings.sort_unstable_by(f64::total_cmp);
    let kept = (tail as f64 * (1.0 - TRIM.0)).ceil() as usize;
    let mean = spacings[..kept].iter().sum::<f64>() / kept as f64;
    (mean / TRIM.1).max(LEAST_SPACING)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clear(falling: &[u64]) -> Vec<usize> {
        let gaps = gaps(falling, falling.len() as u64, 1);
        gaps.into_iter().filter(Gap::is_clear).map(|gap| gap.above).collect()
    }

    #[test]
    fn a_gap_is_one_that_the_crowd_does_not_explain() {
        let crowd: Vec<u64> = (0..100).map(|rank| 30 - rank / 5).collect();
        let with = |above: &[u64]| [above, &crowd].concat();
        assert_eq!(clear(&with(&[900])), [1]);
        assert_eq!(clear(&with(&[900, 800, 700])), [3], "none among those who stand out");
        assert_eq!(clear(&with(&[45])), [0; 0], "half as much again is no gap");
        // By a power law the first needs twice as much as the second, which is not significant.
        let power_law: Vec<u64> = (1..200).map(|rank| 10_000 / rank).collect();
        assert_eq!(clear(&power_law), [0; 0]);
        let above: Vec<u64> = std::iter::once(10_000_000).chain(power_law).collect();
        assert_eq!(clear(&above), [0; 0], "a factor of a thousand is what such a crowd may show");
    }

    #[test]
    fn small_numbers_and_few_keys_have_no_gaps() {
        assert_eq!(clear(&[4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]), [0; 0]);
        assert_eq!(clear(&[900, 2, 1]), [0; 0]);
        assert_eq!(clear(&[]), [0; 0]);
    }
}
