//! How many requests come, at which node, when.

use std::time::Duration;

/// How much is asked for, in multiples of the limit's rate, and at which nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Demand {
    /// At all nodes alike, so many times the rate together.
    Even(f64),
    /// So many times the rate, by Zipf's law over the nodes: the second has a part of `2^-exponent` of the first's.
    Skewed {
        /// How many times the rate.
        times: f64,
        /// The exponent of the law.
        exponent: f64,
    },
    /// All at one node, another one after each span.
    Hopping {
        /// How many times the rate.
        times: f64,
        /// How long it stays.
        every: Duration,
    },
    /// At all nodes alike, in every second span; nothing between them.
    OnOff {
        /// How many times the rate while it is on.
        times: f64,
        /// How long it is on, and how long off.
        every: Duration,
    },
    /// So many times the rate over groups of nodes, as many and as large as there are weights. From a time on, others take their place
    /// little by little.
    Weighted {
        /// How many times the rate.
        times: f64,
        /// How much of it each group is asked for at first.
        first: &'static [f64],
        /// How much in the end; as many groups.
        then: &'static [f64],
        /// When that begins.
        from: Duration,
        /// How long it takes.
        within: Duration,
    },
    /// So little at first, and after a span so much.
    QuietThen {
        /// How many times the rate at first.
        quiet: f64,
        /// How many times after the span.
        then: f64,
        /// The span.
        after: Duration,
    },
}

impl Demand {
    /// Returns how many times the limit's rate one of `nodes` is asked for at a time.
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
