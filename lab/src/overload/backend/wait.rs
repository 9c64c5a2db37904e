//! Random waits of replies.

use super::Wait;
use tidegate_core::time::nanos;
use tidegate_sim::traffic::Chance;

impl Wait {
    /// Draws how long a reply waits, in nanoseconds, if its work is done at `now`.
    pub(in super::super) fn draw(&self, now: u64, chance: &mut Chance) -> u64 {
        match self {
            Self::None => 0,
            Self::Fixed(wait) => nanos(*wait),
            Self::Jitter(least, most) => {
                nanos(*least) + (nanos(*most - *least) as f64 * chance.share()) as u64
            }
            Self::Timer(every) => nanos(*every) - now % nanos(*every),
            Self::Steps(steps) => {
                steps.iter().rev().find(|(from, _)| nanos(*from) <= now).map_or(0, |(_, wait)| nanos(*wait))
            }
        }
    }
}
