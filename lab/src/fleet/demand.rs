//! How many requests arrive, at which node and when.

use std::time::Duration;

/// The demand, in multiples of the limit's rate, and its distribution over the nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Demand {
    /// The given multiple of the rate in all, spread evenly over the nodes.
    Even(f64),
    /// Demand by Zipf's law over the nodes: the second node has `2^-exponent` of the first node's demand.
    Skewed {
        /// The demand of all nodes together, in multiples of the rate.
        times: f64,
        /// The exponent of the law.
        exponent: f64,
    },
    /// All demand at one node, and at the next one after each span.
    Hopping {
        /// The demand, in multiples of the rate.
        times: f64,
        /// How long the demand stays at one node.
        every: Duration,
    },
    /// Even demand at all nodes in every other span, and none in between.
    OnOff {
        /// The demand while it is on, in multiples of the rate.
        times: f64,
        /// The length of each on and each off span.
        every: Duration,
    },
    /// Demand over groups of nodes of equal size, one for each weight. From a point in time on, the weights
    /// change gradually from `first` to `then`.
    Weighted {
        /// The demand of all groups together, in multiples of the rate.
        times: f64,
        /// The weight of each group at first.
        first: &'static [f64],
        /// The weight of each group in the end; as many as in `first`.
        then: &'static [f64],
        /// When the change begins.
        from: Duration,
        /// How long the change takes.
        within: Duration,
    },
    /// Low demand at first, then another.
    QuietThen {
        /// The demand at first, in multiples of the rate.
        quiet: f64,
        /// The demand after the span, in multiples of the rate.
        then: f64,
        /// The span.
        after: Duration,
    },
}

impl Demand {
    /// Returns the demand of one of `nodes` at a time, in multiples of the limit's rate.
    #[must_use]
    pub fn at(self, node: usize, nodes: usize, time: Duration) -> f64 {
        let even = 1.0 / nodes as f64;
        let turn = |every: Duration| time.as_nanos() / every.as_nanos().max(1);
        match self {
            Self::Even(times) => times * even,
            Self::Skewed { times, exponent } => {
                let weight = |at: usize| ((at + 1) as f64).powf(-exponent);
                times * weight(node) / (0..nodes).map(weight).sum::<f64>()
            }
            Self::Hopping { times, every } => {
                if turn(every) % nodes as u128 == node as u128 {
                    times
                } else {
                    0.0
                }
            }
            Self::OnOff { times, every } if turn(every) % 2 == 0 => times * even,
            Self::OnOff { .. } => 0.0,
            Self::Weighted { times, first, then, from, within } => {
                let moved = time.saturating_sub(from).as_secs_f64() / within.as_secs_f64().max(1e-9);
                let moved = moved.min(1.0);
                let group = node * first.len() / nodes;
                let weight = |group: usize| first[group] * (1.0 - moved) + then[group] * moved;
                let of_all = weight(group) / (0..first.len()).map(weight).sum::<f64>();
                times * of_all * first.len() as f64 * even
            }
            Self::QuietThen { quiet, then, after } => {
                if time < after {
                    quiet * even
                } else {
                    then * even
                }
            }
        }
    }
}
