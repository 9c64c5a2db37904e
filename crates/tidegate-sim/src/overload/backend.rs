//! Simulated services, each a small description: how many requests it works on at once, how long they take, and how it suffers.
//!
//! Everything a backend does follows from one rate. Each request that is being worked on gains `rate` seconds of work per second; the rate
//! is the product of the speed at that time ([`Speed`]), the share of the processors ([`Sharing`]) and what contention leaves
//! ([`Contention`]). So the best throughput of a description can be computed, and a run be compared with it.

mod table;
mod wait;
mod work;

use std::time::Duration;

pub(super) use table::plain;
pub use table::{held_back, table, varied};
pub use work::Work;

/// A simulated service.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// Its name, for tables.
    pub name: String,
    /// What is hard about it, in one line.
    pub about: &'static str,
    /// How those inside share what there is.
    pub sharing: Sharing,
    /// How much work a request is.
    pub work: Work,
    /// How its speed changes with time.
    pub speed: Speed,
    /// How its speed falls with what is inside.
    pub contention: Contention,
    /// How long a reply waits after the work is done, without using any of the service's capacity.
    pub wait: Wait,
    /// What happens when more is inside than it takes.
    pub excess: Excess,
    /// How long its callers wait for an answer; a later one is worth nothing to them.
    pub deadline: Duration,
}

/// How those inside share what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All are worked on at once, by so many processors: beyond that number all become slower together.
    Shared(u32),
    /// So many are worked on, the others wait their turn.
    Queued(u32),
}

impl Sharing {
    /// Returns how many are worked on at full speed.
    #[must_use]
    pub const fn servers(self) -> u32 {
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

/// How the speed changes with time, 1 being the usual.
#[derive(Clone, Debug, PartialEq)]
pub enum Speed {
    /// It does not.
    Steady,
    /// From each time on, another speed.
    Steps(Vec<(Duration, f64)>),
    /// It swings between 1 − depth and 1 + depth, once in each period.
    Wave {
        /// How far.
        depth: f64,
        /// How long one swing takes.
        period: Duration,
    },
    /// It stands still for `pause` at the end of each period.
    Pauses {
        /// From one pause to the next.
        period: Duration,
        /// How long a pause is.
        pause: Duration,
    },
    /// After having been idle for `idle` it starts at `least` and reaches 1 after `ramp`.
    Warms {
        /// The speed when cold.
        least: f64,
        /// From cold to full speed.
        ramp: Duration,
        /// Idleness after which it is cold again.
        idle: Duration,
    },
}

/// How the speed falls with what is inside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contention {
    /// It does not.
    None,
    /// Each request above `from` takes `each` of the speed: 1 / (1 + each × (inside − from)).
    Linear {
        /// Up to so many nothing is lost.
        from: u32,
        /// Lost by each further one.
        each: f64,
    },
    /// Above `from` the speed falls with the square of what is inside: memory that no longer fits.
    Square {
        /// Up to so many nothing is lost.
        from: u32,
    },
}

impl Contention {
    /// Returns what is left of the speed.
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
pub enum Wait {
    /// Not at all.
    None,
    /// Always as long: a network, or something behind it that has no limit.
    Fixed(Duration),
    /// Evenly between two times.
    Jitter(Duration, Duration),
    /// Until a timer goes off that goes off this often: a group commit.
    Timer(Duration),
    /// From each time on, another wait.
    Steps(Vec<(Duration, Duration)>),
}

/// What happens to a request that finds too many inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// It is taken in and waits.
    Waits,
    /// Above so many inside it is told after `after` that there is too much to do, and costs no work.
    Defers {
        /// The most that is taken in.
        above: u32,
        /// When the answer comes.
        after: Duration,
    },
    /// Above so many inside it fails after `after`, and saying so costs `work`.
    Drops {
        /// The most that is taken in.
        above: u32,
        /// When the answer comes.
        after: Duration,
        /// What it costs to say so.
        work: Duration,
    },
    /// Whoever has no answer after this time is told so, exactly then; the work goes on and is wasted.
    TimesOut(Duration),
}

impl Backend {
    /// Returns the most requests per second that it can finish at speed 1: over all numbers inside, the best.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        self.most_work() / (self.work.mean().as_nanos() as f64 / 1e9)
    }

    /// Returns how many inside finish the most: what a fixed limit that is right allows.
    #[must_use]
    pub fn best_inside(&self) -> u32 {
        let servers = self.sharing.servers();
        let peak =
            (1..=servers * 4).max_by(|a, b| self.work_rate(*a).total_cmp(&self.work_rate(*b)).then(b.cmp(a)));
        let working = f64::from(peak.unwrap_or(servers));
        // Replies that wait are inside too.
        let waits = self.capacity() * self.wait.mean().as_nanos() as f64 / 1e9;
        (working + waits).ceil() as u32
    }

    /// Returns seconds of work per second with `inside` requests.
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
    /// Returns the mean wait at the start of a run.
    #[must_use]
    pub fn mean(&self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Fixed(wait) => *wait,
            Self::Jitter(least, most) => (*least + *most) / 2,
            Self::Timer(every) => *every / 2,
            Self::Steps(steps) => steps.first().map_or(Duration::ZERO, |(_, wait)| *wait),
        }
    }
}
