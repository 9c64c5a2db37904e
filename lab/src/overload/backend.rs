//! Simulated services: how many requests each works on at once, how long these take, and how overload slows the service
//! down.
//!
//! Each request being worked on gains work at one rate: speed × share of the processors × what contention leaves. So
//! the best throughput of a backend can be computed, and a run compared with it.

mod table;

use std::time::Duration;

use tidegate_core::time::nanos;
use tidegate_sim::traffic::Chance;

pub(super) use table::{held_back, plain, table, varied};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Backend {
    pub(crate) name: String,
    /// What makes it hard to protect, in one line.
    pub(crate) about: &'static str,
    pub(crate) sharing: Sharing,
    pub(crate) work: Work,
    pub(crate) speed: Speed,
    pub(crate) contention: Contention,
    /// How long a reply waits after the work is done, without using any of the service's capacity.
    pub(crate) wait: Wait,
    pub(crate) excess: Excess,
    /// Callers wait so long; a later answer is worthless.
    pub(crate) deadline: Duration,
}

/// How the requests inside share the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// All are worked on at once by this many processors. Beyond that number all become slower together.
    Shared(u32),
    /// This many requests are worked on; the others wait in a queue.
    Queued(u32),
}

impl Sharing {
    pub(crate) const fn servers(self) -> u32 {
        match self {
            Self::Shared(count) | Self::Queued(count) => count,
        }
    }

    /// Returns the share of a processor that each of `working` requests gets.
    pub(super) fn share(self, working: u32) -> f64 {
        match self {
            Self::Shared(count) if working > count => f64::from(count) / f64::from(working),
            _ => 1.0,
        }
    }
}

/// How the speed changes over time; 1 is the normal speed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Speed {
    Steady,
    /// Changes to another speed at each of these times.
    Steps(Vec<(Duration, f64)>),
    /// Swings between 1 − depth and 1 + depth, once in each period.
    Wave {
        depth: f64,
        period: Duration,
    },
    /// Drops to zero for `pause` at the end of each period.
    Pauses {
        period: Duration,
        pause: Duration,
    },
    /// Cold after `idle`; then starts at `least` and reaches 1 after `ramp`.
    Warms {
        least: f64,
        ramp: Duration,
        idle: Duration,
    },
}

/// How the speed falls with the number of requests inside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Contention {
    None,
    /// Each request above `from` costs `each` of the speed: 1 / (1 + each × (inside − from)).
    Linear {
        from: u32,
        each: f64,
    },
    /// Above `from` it falls with the square of the number inside, as when memory runs out.
    Square {
        from: u32,
    },
}

impl Contention {
    pub(super) fn left(self, inside: u32) -> f64 {
        match self {
            Self::Linear { from, each } if inside > from => 1.0 / (1.0 + each * f64::from(inside - from)),
            Self::Square { from } if inside > from => {
                let share = f64::from(from) / f64::from(inside);
                share * share
            }
            _ => 1.0,
        }
    }
}

/// How long a reply waits after the work is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    None,
    /// Always the same time, as for a network or for a dependency without a limit.
    Fixed(Duration),
    /// A random time, uniform between the two.
    Jitter(Duration, Duration),
    /// Until a timer with this period fires next, as in a group commit.
    Timer(Duration),
    /// Changes to another wait at each of these times.
    Steps(Vec<(Duration, Duration)>),
}

/// What happens to a request that arrives when too many are inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Waits,
    /// Above this many inside it is refused after `after`, at no work.
    Defers {
        above: u32,
        after: Duration,
    },
    /// Above this many inside it fails after `after`, and the failure costs `work`.
    Drops {
        above: u32,
        after: Duration,
        work: Duration,
    },
    /// A request without an answer after this time fails exactly then. The work on it goes on and is wasted.
    TimesOut(Duration),
}

impl Backend {
    /// Returns the most requests per second that it can finish at speed 1.
    pub(crate) fn capacity(&self) -> f64 {
        self.most_work() / (self.work.mean().as_nanos() as f64 / 1e9)
    }

    /// Returns how many requests inside give the most throughput: the right fixed limit.
    pub(crate) fn best_inside(&self) -> u32 {
        let servers = self.sharing.servers();
        let peak =
            (1..=servers * 4).max_by(|a, b| self.work_rate(*a).total_cmp(&self.work_rate(*b)).then(b.cmp(a)));
        let working = f64::from(peak.unwrap_or(servers));
        // Replies that wait count as inside too.
        let waits = self.capacity() * self.wait.mean().as_nanos() as f64 / 1e9;
        (working + waits).ceil() as u32
    }

    /// Returns the seconds of work done per second with `inside` requests.
    fn work_rate(&self, inside: u32) -> f64 {
        let working = match self.sharing {
            Sharing::Shared(_) => inside,
            Sharing::Queued(servers) => inside.min(servers),
        };
        f64::from(working) * self.sharing.share(working) * self.contention.left(inside)
    }

    fn most_work(&self) -> f64 {
        (1..=self.sharing.servers() * 4).map(|inside| self.work_rate(inside)).fold(0.0, f64::max)
    }
}

impl Wait {
    /// The mean at the start of a run.
    pub(crate) fn mean(&self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Fixed(wait) => *wait,
            Self::Jitter(least, most) => (*least + *most) / 2,
            Self::Timer(every) => *every / 2,
            Self::Steps(steps) => steps.first().map_or(Duration::ZERO, |(_, wait)| *wait),
        }
    }

    /// Draws how long a reply waits, in nanoseconds, if its work is done at `now`.
    pub(super) fn draw(&self, now: u64, chance: &mut Chance) -> u64 {
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

/// A distribution of work, as time of one processor at full speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Uniform between the two.
    Even(Duration, Duration),
    Exponential(Duration),
    /// One request in `one_in` is dear.
    Mixed {
        cheap: Duration,
        dear: Duration,
        one_in: u32,
    },
    /// Pareto with exponent 4/3 and this minimum, cut off at a hundred times the minimum: one request in 460 takes as
    /// much work as 30 average ones.
    HeavyTailed(Duration),
    /// A cache that is empty at first: a request misses with probability `half / (half + served)`.
    Cached {
        hit: Duration,
        miss: Duration,
        half: u32,
    },
}

/// The mean of the heavy-tailed work, as a multiple of its minimum: 4 − 3 / 100^(1/3).
const HEAVY_MEAN: f64 = 3.353_671;

impl Work {
    pub(crate) fn mean(self) -> Duration {
        self.mean_after(u64::MAX)
    }

    /// The mean after `served` requests.
    pub(crate) fn mean_after(self, served: u64) -> Duration {
        match self {
            Self::Exponential(mean) => mean,
            Self::Even(least, most) => (least + most) / 2,
            Self::Mixed { cheap, dear, one_in } => (cheap * (one_in - 1) + dear) / one_in,
            Self::HeavyTailed(least) => least.mul_f64(HEAVY_MEAN),
            Self::Cached { hit, miss, half } => {
                let share = f64::from(half) / (f64::from(half) + served as f64);
                hit + (miss - hit).mul_f64(share)
            }
        }
    }

    pub(super) fn draw(self, chance: &mut Chance, served: u64) -> f64 {
        let float = |span: Duration| span.as_nanos() as f64;
        match self {
            Self::Even(least, most) => float(least) + (float(most) - float(least)) * chance.share(),
            Self::Exponential(mean) => float(mean) * (chance.exponential() as f64 / 4_294_967_296.0),
            Self::Mixed { cheap, dear, one_in } => {
                float(if chance.below(one_in) == 0 { dear } else { cheap })
            }
            Self::HeavyTailed(least) => {
                // Computes U^(−3/4) with square roots alone, which all machines round alike.
                let root = (1.0 - chance.share()).sqrt();
                float(least) * (1.0 / (root * root.sqrt())).min(100.0)
            }
            Self::Cached { hit, miss, half } => {
                let misses = chance.share() * (f64::from(half) + served as f64) < f64::from(half);
                float(if misses { miss } else { hit })
            }
        }
    }
}
