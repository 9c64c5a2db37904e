//! How close together acts may be: the bound of each kind, in whole numbers, over every stretch of a history.

use tidegate_core::Rate;

/// The bound on any stretch of acts.
#[derive(Clone, Debug)]
pub(crate) enum Envelope {
    /// The burst plus what the rate gives between the first and the last act.
    Even {
        rate: Rate,
        burst: u64,
    },
    /// After an act: what the rate gives, plus the slack.
    Queue {
        rate: Rate,
        slack: u64,
    },
    /// Each bandwidth's burst and rate. Not checked if a charge waited: work held back by one bandwidth reaches the
    /// others late.
    Bands(Vec<(Rate, u64)>),
    /// The capacity, plus a count for every refill that a stretch can contain.
    Interval {
        rate: Rate,
        capacity: u64,
    },
    /// The capacity, plus a count for each multiple of the period in the stretch; its first act may have waited for one.
    Ends {
        rate: Rate,
        capacity: u64,
    },
    /// A limit for every window that a stretch can touch; windows may begin anywhere.
    Rolling {
        limit: u64,
        window: u64,
    },
    /// A limit in each window; windows begin at multiples of their length.
    Aligned {
        limit: u64,
        window: u64,
    },
    /// A limit in any stretch shorter than the window.
    Span {
        limit: u64,
        window: u64,
    },
    /// At each act, this window plus the weighted part of the window before is within the limit.
    Counter {
        limit: u64,
        window: u64,
    },
    /// After an act, at least the time of its own units at the rate.
    Paced {
        rate: Rate,
    },
    None,
}

/// An act: its tick in ns, and the units that were really used.
pub(crate) type Act = (u64, u64);

impl Envelope {
    /// Returns where acts are too close together. `acts` are in the order of their charges; `waited`: some charge
    /// waited.
    pub(crate) fn broken(&self, acts: &[Act], waited: bool) -> Option<String> {
        let mut acts: Vec<Act> = acts.iter().filter(|(_, units)| *units > 0).copied().collect();
        // Stable: acts at one tick stay in the order of their charges.
        acts.sort_by_key(|(act, _)| *act);
        for last in 0..acts.len() {
            if let Self::Counter { limit, window } = self {
                let (spent, most) = estimate(&acts[..=last], *limit, *window);
                if spent > most {
                    return Some(format!("{spent} of {most} at {} in {acts:?}", acts[last].0));
                }
            }
            for first in 0..=last {
                let stretch = &acts[first..=last];
                if let Some((units, most)) =
                    self.stretch(stretch, waited).filter(|(units, most)| units > most)
                {
                    return Some(format!("{units} where {most} is the most, in {stretch:?}"));
                }
            }
        }
        None
    }

    /// Returns what a stretch used and the most that it may use, in a unit that depends on the kind.
    fn stretch(&self, acts: &[Act], waited: bool) -> Option<(u128, u128)> {
        let span = u128::from(acts[acts.len() - 1].0 - acts[0].0);
        let units: u128 = acts.iter().map(|(_, units)| u128::from(*units)).sum();
        match self {
            Self::Even { rate, burst } => Some(even(*rate, units, u128::from(*burst), span)),
            Self::Queue { rate, slack } => {
                Some(even(*rate, units - u128::from(acts[0].1), u128::from(*slack), span))
            }
            Self::Bands(_) if waited => None,
            Self::Bands(bands) => {
                let each = bands.iter().map(|(rate, burst)| even(*rate, units, u128::from(*burst), span));
                each.max_by_key(|(units, most)| units.saturating_sub(*most))
            }
            Self::Interval { rate, capacity } => {
                let refills = span / u128::from(rate.period_nanos()) + 1;
                Some((units, u128::from(*capacity) + refills * u128::from(rate.count())))
            }
            Self::Ends { rate, capacity } => {
                let (period, last) = (rate.period_nanos(), acts[acts.len() - 1].0);
                let before = if waited { (acts[0].0 - 1) / period } else { acts[0].0 / period };
                let refills = u128::from(last / period - before);
                Some((units, u128::from(*capacity) + refills * u128::from(rate.count())))
            }
            Self::Rolling { limit, window } => {
                Some((units, u128::from(*limit) * (span / u128::from(*window) + 2)))
            }
            Self::Aligned { limit, window } => {
                let of = |act: &Act| act.0 / window;
                (of(&acts[0]) == of(&acts[acts.len() - 1])).then_some((units, u128::from(*limit)))
            }
            Self::Span { limit, window } => {
                (span < u128::from(*window)).then_some((units, u128::from(*limit)))
            }
            Self::Paced { rate } => {
                let but_last = units - u128::from(acts[acts.len() - 1].1);
                Some(even(*rate, but_last, 0, span))
            }
            Self::Counter { .. } | Self::None => None,
        }
    }
}

/// Returns the units, and the burst plus what the rate gives over a span, both times the reduced period. An act is
/// rounded up to the nanosecond, so the span may be too short by less than a nanosecond.
fn even(rate: Rate, units: u128, burst: u128, span: u128) -> (u128, u128) {
    let (count, period) = rate.reduced();
    let (count, period) = (u128::from(count), u128::from(period));
    (units * period, burst * period + span * count + (count - 1))
}

/// Returns the sliding estimate at the last act, and the limit, both times the window.
fn estimate(acts: &[Act], limit: u64, window: u64) -> (u128, u128) {
    let at = acts[acts.len() - 1].0;
    let index = at / window;
    let sum = |of: u64| -> u128 {
        acts.iter().filter(|(act, _)| act / window == of).map(|(_, units)| u128::from(*units)).sum()
    };
    let before = if index > 0 { sum(index - 1) } else { 0 };
    let overlap = u128::from(window - at % window);
    (before * overlap + sum(index) * u128::from(window), u128::from(limit) * u128::from(window))
}
