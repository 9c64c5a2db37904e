//! One limit per key: a million keys that stay, permitted and refused, a flood of new keys, and keys whose limit is full
//! again.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::measure::{Want, alone, cpu_ns, resident};
use crate::pair::{Figures, pair, pause};
use crate::stalls::Stalls;
use crate::traffic::{Key, Stream, keys, write_key};

/// Keys per call, if a contender accepts several.
pub(crate) const BATCH: usize = 16;

/// The number of keys in a flood, each of which comes once.
const FLOOD: usize = 20_000_000;

/// The question to a keyed contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// What is the cost of inserting, checking and storing this many keys?
    Keys(usize),
    /// What is the cost of refusing this many keys, all of which have spent their limits?
    Spent(usize),
    /// What does a flood of unrepeated keys do to the memory and to the slowest checks?
    Flood,
    /// What do a million new keys cost after the previous million have expired?
    Expiry,
}

/// One run over one keyed limiter.
pub(crate) struct Keyed<'a> {
    question: Question,
    keys: Vec<Key>,
    streams: [(&'static str, Stream); 2],
    /// The resident memory in bytes before the limiter was made, when everything around it was made and touched.
    before: u64,
    /// Whether the contender has inserted the keys itself, so that their insertion is not measured.
    pub(crate) filled: bool,
    figures: &'a mut Figures,
}

impl<'a> Keyed<'a> {
    pub(crate) fn new(question: Question, figures: &'a mut Figures) -> Result<Self> {
        let keys = keys(question.staying().unwrap_or(1));
        let streams = [("zipf", Stream::zipf(&keys)), ("uniform", Stream::uniform(&keys))];
        Ok(Self { question, keys, streams, before: resident()?, filled: false, figures })
    }

    /// Asks another question about as many keys, for a limiter that is made next.
    pub(crate) fn ask(&mut self, question: Question) -> Result<()> {
        (self.question, self.before, self.filled) = (question, resident()?, false);
        Ok(())
    }

    /// The keys that stay; only a few in workloads without such keys.
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The number of live keys, for contenders that need a capacity. For keys that have to be refused it is three times
    /// their number: in a table that is just large enough, one key in some hundreds is evicted, and starts anew.
    pub(crate) fn capacity(&self) -> usize {
        match self.question {
            Question::Spent(count) => 3 * count,
            _ => self.question.staying().unwrap_or(1_000_000),
        }
    }

    /// The limit of each key: the time in which one unit comes back, and the burst.
    ///
    /// A key stays live for that time after one check. Five seconds are longer than a run takes, so all million keys
    /// are live, and a flood has many times more live keys than there is room for. Twenty million units are more than
    /// the requests for the most popular key.
    pub(crate) fn limit(&self) -> (Duration, u32) {
        match self.question {
            Question::Expiry => (LIFE, 100),
            Question::Keys(_) | Question::Flood => (Duration::from_secs(5), 20_000_000),
            // Not a burst of one, which may be a special case.
            Question::Spent(_) => (Duration::from_secs(86_400), 2),
        }
    }

    /// The answer that all checks of keys that stay have to give.
    fn want(&self) -> Want {
        if let Question::Spent(_) = self.question { Want::Denied } else { Want::Permitted }
    }

    /// Measures a limiter that threads can share.
    pub(crate) fn shared(&mut self, check: impl Fn(&Key) -> bool + Sync) -> Result<()> {
        self.alone(&check)?;
        if self.question.staying().is_none() {
            return Ok(());
        }
        let want = self.want();
        let Self { streams, figures, .. } = self;
        for (name, stream) in streams {
            let both = pair(want, |thread| {
                let mut next = stream.walk(thread);
                let check = &check;
                move || check(next())
            })?;
            figures.set_pair(format!("{}{name}.pair", prefix(want)), &both);
        }
        Ok(())
    }

    /// Measures a limiter that belongs to one thread.
    pub(crate) fn alone(&mut self, mut check: impl FnMut(&Key) -> bool) -> Result<()> {
        match self.question {
            Question::Keys(_) => {
                self.insert(&mut check)?;
                self.stay(check)
            }
            Question::Spent(_) => {
                self.spend(&mut check)?;
                self.stay(check)
            }
            Question::Flood => self.flood(|key| {
                black_box(check(key));
            }),
            Question::Expiry => self.expire(check),
        }
    }

    /// Checks [`BATCH`] keys at a time; `check` returns how many are permitted, which has to be all or none. Only after
    /// [`Keyed::shared`], which inserts the keys.
    pub(crate) fn batches(&mut self, check: impl Fn(&[&Key; BATCH]) -> usize + Sync) -> Result<()> {
        if self.question.staying().is_none() {
            return Ok(());
        }
        let want = self.want();
        // With fewer permitted keys than these, a batch counts as denied.
        let least = if want == Want::Permitted { BATCH } else { 1 };
        let Self { streams, figures, .. } = self;
        for (name, stream) in streams {
            let worker = |thread| {
                let mut next = stream.walk(thread);
                let check = &check;
                move || check(&std::array::from_fn(|_| next())) >= least
            };
            let nanos = alone(want, worker(0))?;
            figures.set(format!("{}{name}.batch", prefix(want)), nanos / BATCH as f64);
            let mut both = pair(want, worker)?;
            both.mops *= BATCH as f64;
            figures.set_pair(format!("{}{name}.batch.pair", prefix(want)), &both);
        }
        Ok(())
    }

    /// Checks all keys once, which inserts them.
    fn insert(&mut self, check: &mut impl FnMut(&Key) -> bool) -> Result<()> {
        let Self { keys, figures, .. } = self;
        let start = cpu_ns();
        let permitted = keys.iter().filter(|key| black_box(check(key))).count();
        let count = keys.len() as f64;
        if !self.filled {
            figures.set("insert", (cpu_ns() - start) as f64 / count);
        }
        figures.set("bytes", resident()?.saturating_sub(self.before) as f64 / count);
        Want::Permitted.verify(permitted as u64, keys.len() as u64)
    }

    /// Spends the limits of all keys.
    fn spend(&mut self, check: &mut impl FnMut(&Key) -> bool) -> Result<()> {
        let (_, burst) = self.limit();
        for key in &self.keys {
            ensure!((0..burst).all(|_| check(key)), "a new key was refused");
        }
        Ok(())
    }

    /// Checks the keys of the streams.
    fn stay(&mut self, mut check: impl FnMut(&Key) -> bool) -> Result<()> {
        let want = self.want();
        let Self { streams, figures, .. } = self;
        for (name, stream) in streams {
            let mut next = stream.walk(0);
            figures.set(format!("{}{name}", prefix(want)), alone(want, || check(next()))?);
        }
        Ok(())
    }

    fn flood(&mut self, mut check: impl FnMut(&Key)) -> Result<()> {
        let mut stalls = Stalls::new()?;
        let (mut peak, mut quarter) = (0, 0);
        const STEPS: usize = 20;
        for step in 0..STEPS {
            let first = step * (FLOOD / STEPS);
            stalls.time(FLOOD / STEPS, |number, key| write_key(first + number, key), &mut check);
            peak = resident()?.max(peak);
            if step == STEPS / 4 - 1 {
                quarter = peak;
            }
        }
        let mib = |bytes: u64| bytes.saturating_sub(self.before) as f64 / f64::from(1 << 20);
        self.figures.set("quarter MiB", mib(quarter));
        self.figures.set("peak MiB", mib(peak));
        self.figures.set("after MiB", mib(resident()?));
        stalls.report(self.figures);
        Ok(())
    }

    /// Inserts a million keys, waits until their limits are full again, and measures a million others.
    fn expire(&mut self, mut check: impl FnMut(&Key) -> bool) -> Result<()> {
        let (count, mut key) = (self.capacity(), Key::new());
        for number in 0..count {
            write_key(number, &mut key);
            black_box(check(&key));
        }
        let grown = resident()?;
        pause(LIFE + LIFE / 10);
        let mut stalls = Stalls::new()?;
        stalls.time(
            count,
            |number, key| write_key(count + number, key),
            |key| {
                black_box(check(key));
            },
        );
        let mib = |bytes: u64| bytes.saturating_sub(self.before) as f64 / f64::from(1 << 20);
        self.figures.set("first MiB", mib(grown));
        self.figures.set("second MiB", mib(resident()?));
        stalls.report(self.figures);
        Ok(())
    }
}

impl Question {
    /// The number of keys that stay, if any do.
    fn staying(self) -> Option<usize> {
        match self {
            Self::Keys(count) | Self::Spent(count) => Some(count),
            Self::Flood | Self::Expiry => None,
        }
    }
}

/// The beginning of a figure's name.
fn prefix(want: Want) -> &'static str {
    match want {
        Want::Permitted => "",
        Want::Denied => "denied ",
    }
}

/// The time in which a unit comes back in the workload whose keys expire: longer than inserting a million keys.
const LIFE: Duration = Duration::from_secs(2);
