//! A running backend: the requests inside, the progress of each, and when the next is done.
//!
//! All requests being worked on gain work at the same rate, so one clock of work serves them all: a request that starts
//! at `v` and needs `w` is done at `v + w`, however often the rate changes in between.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::backend::{Backend, Sharing, Speed};

/// The readings of the clock of work between which a request was worked on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Worked {
    from: f64,
    to: f64,
}

impl Worked {
    /// Returns the work, in nanoseconds at full speed.
    pub(super) fn work(self) -> f64 {
        self.to - self.from
    }
}

#[derive(Debug)]
pub(super) struct Station {
    backend: Backend,
    speed: f64,
    /// The clock of work, in nanoseconds at full speed.
    clock: f64,
    at: u64,
    /// The clock at the begin of each step of the measured curves.
    readings: Vec<f64>,
    /// The work of the requests being worked on, by the reading of the clock at which each is done. Readings are
    /// positive, so the bits of the floats sort as they do.
    working: BTreeMap<(u64, u32), f64>,
    waiting: VecDeque<(u32, f64)>,
    /// The latest prediction of the next end; earlier ones are void.
    prediction: u64,
    served: u64,
    warm_since: u64,
    idle_since: Option<u64>,
    /// Server-nanoseconds used, for the processor signal.
    used: f64,
}

impl Station {
    pub(super) fn new(backend: Backend) -> Self {
        let mut station = Self {
            speed: 1.0,
            clock: 1.0,
            at: 0,
            readings: vec![1.0],
            working: BTreeMap::new(),
            waiting: VecDeque::new(),
            prediction: 0,
            served: 0,
            warm_since: 0,
            idle_since: Some(0),
            used: 0.0,
            backend,
        };
        station.speed = station.backend.speed.at(0, 0);
        station
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns how many requests are inside, waiting or being worked on.
    pub(super) fn inside(&self) -> u32 {
        (self.working.len() + self.waiting.len()) as u32
    }

    pub(super) fn served(&self) -> u64 {
        self.served
    }

    /// Returns the server-nanoseconds used until now.
    pub(super) fn used(&mut self, now: u64) -> f64 {
        self.advance(now);
        self.used
    }

    /// Takes a request in, with its work in nanoseconds.
    pub(super) fn enter(&mut self, now: u64, call: u32, work: f64) {
        self.advance(now);
        if let (Some(since), Speed::Warms { idle, .. }) = (self.idle_since.take(), &self.backend.speed)
            && (since == 0 || now - since >= idle.as_nanos() as u64)
        {
            self.warm_since = now;
            self.speed = self.backend.speed.at(now, self.warm_since);
        }
        self.waiting.push_back((call, work));
        self.start_waiting();
    }

    /// Moves finished requests to `done`, with the work on each. Called at a predicted end.
    pub(super) fn finish(&mut self, now: u64, done: &mut Vec<(u32, Worked)>) {
        self.advance(now);
        // Allow one nanosecond, since ends are rounded to whole nanoseconds.
        let until = (self.clock + 1.0).to_bits();
        while let Some(entry) = self.working.first_entry()
            && entry.key().0 <= until
        {
            let ((to, call), work) = entry.remove_entry();
            let to = f64::from_bits(to);
            // At least a nanosecond, so that its shares are defined.
            done.push((call, Worked { from: to - work.max(1.0), to }));
            self.served += 1;
            self.start_waiting();
        }
        if self.inside() == 0 {
            self.idle_since = Some(now);
        }
    }

    pub(super) fn begin_step(&mut self, now: u64) {
        // The station does not advance, so that measuring changes nothing, not even by rounding.
        let passed = (now - self.at) as f64;
        let since = if self.working.is_empty() { 0.0 } else { passed * self.rate() };
        self.readings.push(self.clock + since);
    }

    /// Returns the steps in which a request was worked on, with the share of its work in each. The sum is 1.
    pub(super) fn shares(&self, worked: Worked) -> impl Iterator<Item = (usize, f64)> {
        let Worked { from, to } = worked;
        let first = self.readings.partition_point(|reading| *reading <= from).saturating_sub(1);
        let end = self.readings.partition_point(|reading| *reading < to).max(first + 1);
        (first..end).map(move |step| {
            let begins = if step == first { from } else { self.readings[step] };
            let ends = if step + 1 == end { to } else { self.readings[step + 1] };
            (step, (ends - begins) / worked.work())
        })
    }

    pub(super) fn change_speed(&mut self, now: u64) {
        self.advance(now);
        self.speed = self.backend.speed.at(now, self.warm_since);
    }

    /// Predicts when the next request is done if nothing changes before; voids earlier predictions.
    pub(super) fn predict(&mut self) -> Option<(u64, u64)> {
        self.prediction += 1;
        let (&(end, _), _) = self.working.first_key_value()?;
        let rate = self.rate();
        if rate <= 0.0 {
            return None;
        }
        let left = ((f64::from_bits(end) - self.clock).max(0.0) / rate).ceil();
        Some((self.at + left as u64, self.prediction))
    }

    pub(super) fn holds(&self, prediction: u64) -> bool {
        prediction == self.prediction
    }

    fn start_waiting(&mut self) {
        let places = match self.backend.sharing {
            Sharing::Shared(_) => usize::MAX,
            Sharing::Queued(servers) => servers as usize,
        };
        while self.working.len() < places
            && let Some((call, work)) = self.waiting.pop_front()
        {
            self.working.insert(((self.clock + work).to_bits(), call), work);
        }
    }

    fn rate(&self) -> f64 {
        let share = self.backend.sharing.share(self.working.len() as u32);
        self.speed * share * self.backend.contention.left(self.inside())
    }

    fn advance(&mut self, now: u64) {
        let passed = (now - self.at) as f64;
        if !self.working.is_empty() {
            self.clock += passed * self.rate();
            self.used += passed * f64::from(self.backend.sharing.servers().min(self.working.len() as u32));
        }
        self.at = now;
    }
}

impl Speed {
    pub(super) fn moves(&self) -> bool {
        *self != Self::Steady
    }

    /// The speed at a time; `warm_since` is when the service last began to work after an idle time.
    pub(super) fn at(&self, now: u64, warm_since: u64) -> f64 {
        let nanos = |span: Duration| span.as_nanos() as u64;
        match self {
            Self::Steady => 1.0,
            Self::Steps(steps) => {
                steps.iter().rev().find(|(from, _)| nanos(*from) <= now).map_or(1.0, |(_, speed)| *speed)
            }
            Self::Wave { depth, period } => {
                // Two parabolas resemble a sine, and all machines compute them alike.
                let phase = (now % nanos(*period)) as f64 / period.as_nanos() as f64 * 2.0;
                let half = phase % 1.0;
                let bow = 4.0 * half * (1.0 - half);
                1.0 + if phase < 1.0 { depth * bow } else { -depth * bow }
            }
            Self::Pauses { period, pause } => {
                if now % nanos(*period) >= nanos(*period) - nanos(*pause) {
                    0.0
                } else {
                    1.0
                }
            }
            Self::Warms { least, ramp, .. } => {
                let share = now.saturating_sub(warm_since) as f64 / ramp.as_nanos() as f64;
                least + (1.0 - least) * share.min(1.0)
            }
        }
    }
}
