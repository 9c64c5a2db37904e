//! Takes readings of processor time, memory and load.

use std::fmt;

use tidegate_core::Tick;
use tidegate_core::concurrency::Signal;
use tidegate_core::time::nanos;

use super::average::Average;
use super::control_groups::{ControlGroups, Processors};
use super::files::{Files, kernel};
use super::parse::{self, Spent};

/// One reading of the machine: how much is in use of the processor time and of the memory that this process may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    /// Processor time, averaged over about a second, in thousandths: 0 to 1000. `None` before the second reading, or
    /// if unavailable.
    pub cpu: Option<u16>,
    /// Memory, in thousandths: 0 to 1000. `None` if unavailable.
    pub memory: Option<u16>,
    /// The load average of one minute, in hundredths: how many tasks of the whole machine, not of this process alone,
    /// run or wait to run. `None` if unavailable.
    pub load: Option<u32>,
}

impl Reading {
    /// Returns the known values as signals for a law.
    pub fn signals(self) -> impl Iterator<Item = Signal> {
        self.cpu.map(Signal::CpuAveraged).into_iter().chain(self.memory.map(Signal::Memory))
    }
}

/// The error if there are no readings: the system does not provide them, as all but Linux do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this system does not report its load: /proc/stat and /proc/meminfo cannot be read")]
pub struct Unavailable;

/// Reads how much of the processor time and memory that this process may use is in use. Each reading opens about ten
/// small files.
///
/// # Examples
/// ```
/// use tidegate::signals::{Meter, Reading};
/// use tidegate::{Clock, SystemClock};
///
/// // If the system provides nothing, all values are `None`.
/// let reading = Meter::new().map_or(Reading::default(), |mut meter| meter.sample(SystemClock::new().now()));
/// assert!(reading.memory.is_none_or(|used| used <= 1000));
/// ```
pub struct Meter {
    files: Box<dyn Files>,
    groups: ControlGroups,
    /// The processors that this process may run on.
    allowed: Vec<(u64, u64)>,
    average: Average,
    last: Option<Last>,
}

/// The processor time at the last reading.
#[derive(Debug)]
struct Last {
    at: Tick,
    /// Nanoseconds used by each group; `None` for a group without a quota.
    used: Vec<Option<u64>>,
    machine: Option<Spent>,
}

impl Meter {
    /// Finds the files to read.
    ///
    /// # Errors
    /// [`Unavailable`] if neither the machine's processors nor its memory can be read.
    pub fn new() -> Result<Self, Unavailable> {
        Self::of(kernel)
    }

    pub(super) fn of(files: impl Files + 'static) -> Result<Self, Unavailable> {
        let stat = files.text("/proc/stat").and_then(|text| parse::stat(&text, &[]));
        let memory = files.text("/proc/meminfo").and_then(|text| parse::meminfo(&text));
        if stat.is_none() && memory.is_none() {
            return Err(Unavailable);
        }
        let groups = ControlGroups::find(&files);
        let allowed = parse::allowed_processors(&files.text("/proc/self/status").unwrap_or_default());
        Ok(Self { files: Box::new(files), groups, allowed, average: Average::default(), last: None })
    }

    /// Takes a reading at `now`, a tick of any clock that runs with real time; use the same clock for all readings. A
    /// reading at the tick of the previous one has no processor time.
    pub fn sample(&mut self, now: Tick) -> Reading {
        Reading { cpu: self.processors(now), memory: self.memory(), load: self.load() }
    }

    fn processors(&mut self, now: Tick) -> Option<u16> {
        let machine = self.text("/proc/stat").and_then(|text| parse::stat(&text, &self.allowed));
        let processors = machine.map_or(f64::INFINITY, |machine| machine.processors as f64);
        // A quota of at least as many processors as the machine has is not a limit.
        let quota = |group: &Processors| {
            let quota = group.quota(&*self.files)?.processors();
            (quota < processors).then_some(quota)
        };
        let quotas: Vec<Option<f64>> = self.groups.processors.iter().map(quota).collect();
        let used = |(group, quota): (&Processors, &Option<f64>)| quota.and_then(|_| group.used(&*self.files));
        let used: Vec<Option<u64>> = self.groups.processors.iter().zip(&quotas).map(used).collect();
        let seen = Last { at: now, used, machine };
        let share = self.last.as_ref().map(|last| last.share(&seen, &quotas));
        // A reading at the tick of the last one, or before it, has no processor time. The next reading is then
        // compared with the last one.
        if self.last.as_ref().is_none_or(|last| last.at < now) {
            self.last = Some(seen);
        }
        let share = share??;
        Some(thousandths(self.average.add(now, share.min(1.0) * 1000.0)))
    }

    fn load(&self) -> Option<u32> {
        parse::loadavg(&self.text("/proc/loadavg")?)
    }

    fn memory(&self) -> Option<u16> {
        let machine = self.text("/proc/meminfo").and_then(|text| parse::meminfo(&text));
        let all = machine.map_or(u64::MAX, |(all, _)| all);
        let share = |used: u64, of: u64| if of == 0 { 1.0 } else { used as f64 / of as f64 };
        let groups = self.groups.memory.iter().filter_map(|group| group.limit_and_used(&*self.files));
        let limited = groups.filter(|(limit, _)| *limit < all).map(|(limit, used)| share(used, limit));
        let machine = machine.map(|(all, available)| share(all.saturating_sub(available), all));
        let fullest = limited.reduce(f64::max).or(machine)?;
        Some(thousandths(fullest * 1000.0))
    }

    fn text(&self, path: &str) -> Option<String> {
        self.files.text(path)
    }
}

impl Last {
    /// Returns the share of the allowance that was used between two readings: of the group nearest to its quota, or
    /// of the machine if no group has a quota. `None` if no time has passed.
    fn share(&self, now: &Self, quotas: &[Option<f64>]) -> Option<f64> {
        let span = nanos(now.at.since(self.at)) as f64;
        if span == 0.0 {
            return None;
        }
        let group = |((before, used), quota): ((&Option<u64>, &Option<u64>), &Option<f64>)| {
            Some((*used)?.saturating_sub((*before)?) as f64 / (span * (*quota)?))
        };
        let fullest = self.used.iter().zip(&now.used).zip(quotas).filter_map(group).reduce(f64::max);
        fullest.or_else(|| {
            let (before, now) = (self.machine?, now.machine?);
            let all = now.all.saturating_sub(before.all);
            (all > 0).then(|| now.busy.saturating_sub(before.busy) as f64 / all as f64)
        })
    }
}

/// Rounds to the nearest whole number, clamped to 0 to 1000.
fn thousandths(value: f64) -> u16 {
    value.clamp(0.0, 1000.0).round() as u16
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter")
            .field("groups", &self.groups)
            .field("allowed", &self.allowed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
