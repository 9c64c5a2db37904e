//! Where the crowd ends: the gaps between the keys that need most and those behind them.
//!
//! In any crowd somebody needs most, and often twice as much as the next. A gap means something only where it is wider than the crowd's own
//! spacing makes likely. For needs whose tail falls smoothly (by a power law, or faster), `i` times the difference of the logarithms of the
//! `i`-th and the next need has the same distribution for each `i`: exponential, with a mean that the crowd below the gap tells. How many
//! such means the gap is wide is its strength; a strength of `s` comes by chance with odds of `e^−s` at most.
//!
//! # Source
//! A. Rényi, On the theory of order statistics, 1953; B. M. Hill, A simple general approach to inference about the tail of a
//! distribution, 1975. The mean is trimmed, since a second gap may lie among those it is taken from.

/// Added to each need: between 1 and 3 requests lies chance, not a gap.
const BLUR: f64 = 5.0;
/// Keys from which the crowd's spacing is learnt, at most: its tail, not its middle.
const TAIL: usize = 200;
/// Keys that a crowd has at least. Of fewer, nobody can say what is usual.
pub(super) const CROWD: usize = 10;
/// The share of the keys that can lie above a gap, at most: beyond it, they are the crowd.
const MOST_ABOVE: f64 = 0.25;
/// Of the spacings, the widest that are left out, as a share; and the mean of an exponential variate of mean 1 that is cut there.
const TRIM: (f64, f64) = (0.2, 0.597_6);
/// The least spacing that a crowd is credited with: below it lies rounding.
const LEAST_SPACING: f64 = 0.05;
/// Odds of 1 in 3,000; more than one gap and rate are looked at.
const STRONG: f64 = 8.0;
/// The factor that a limit needs for room: whoever lies above needs so many times the burst.
const WIDE: f64 = 2.0;

/// A gap among keys in falling order of need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gap {
    /// Keys above it.
    pub(super) above: usize,
    /// How unlikely it is by chance; see the module.
    pub(super) strength: f64,
    /// By what factor the least above exceeds the most below.
    pub(super) factor: f64,
}

impl Gap {
    /// Says whether it can be told from chance, and leaves room for a limit.
    pub(super) fn is_clear(&self) -> bool {
        self.strength >= STRONG && self.factor >= WIDE
    }
}

/// Finds the gaps among needs in falling order, of `keys` keys in all; those that clear or do not.
pub(super) fn gaps(falling: &[u64], keys: u64) -> Vec<Gap> {
    let logs: Vec<f64> = falling.iter().map(|need| (*need as f64 + BLUR).ln()).collect();
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

/// The mean spacing of the tail of a crowd, in falling order of logarithms.
fn spacing(crowd: &[f64]) -> f64 {
    let tail = (crowd.len() / 10).clamp(CROWD, TAIL).min(crowd.len() - 1);
    let mut spacings: Vec<f64> = (1..=tail).map(|i| i as f64 * (crowd[i - 1] - crowd[i])).collect();
    spacings.sort_unstable_by(f64::total_cmp);
    let kept = (tail as f64 * (1.0 - TRIM.0)).ceil() as usize;
    let mean = spacings[..kept].iter().sum::<f64>() / kept as f64;
    (mean / TRIM.1).max(LEAST_SPACING)
}
