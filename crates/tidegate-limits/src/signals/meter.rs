//! Takes readings of processor time, memory and load.

use std::fmt;

use tidegate_core::Tick;
use tidegate_core::concurrency::Signal;
use tidegate_core::time::nanos;

use super::parse::{self, ControlGroups, Files, Processors, Spent, kernel};

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
pub(super) struct Meter {
    files: Box<dyn Files>,
    groups: ControlGroups,
    allowed: Vec<(u64, u64)>,
    average: Average,
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    at: Tick,
    /// Nanoseconds used by each group; `None` for a group without a quota.
    used: Vec<Option<u64>>,
    machine: Option<Spent>,
}

impl Meter {
    /// Finds the files to read; [`Unavailable`] if neither the machine's processors nor its memory can be read.
    pub(super) fn new() -> Result<Self, Unavailable> {
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
    pub(super) fn sample(&mut self, now: Tick) -> Reading {
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
        // A reading at the tick of the last one, or before it, has no processor time. The next reading is then compared
        // with the last one.
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

/// The time after which half of a change is taken over, in seconds: longer than a garbage collection, shorter than an
/// overload.
const HALF: f64 = 1.0;

/// An average in which a sample weighs by the time since the previous one.
///
/// It is kept as a fraction, so it gets arbitrarily close to a lasting value. An average in whole thousandths, rounded
/// down, would stop below full load and never cross a threshold near it.
#[derive(Debug, Default)]
pub(super) struct Average(Option<(f64, Tick)>);

impl Average {
    /// Adds a sample and returns the average. A sample at the tick of the previous one, or earlier, changes nothing.
    pub(super) fn add(&mut self, now: Tick, sample: f64) -> f64 {
        let Some((average, at)) = self.0 else {
            self.0 = Some((sample, now));
            return sample;
        };
        let span = nanos(now.since(at)) as f64 / 1e9;
        let average = average + (sample - average) * (span / (span + HALF));
        self.0 = Some((average, at.max(now)));
        average
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Files written by a test.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<HashMap<String, String>>>);

    impl Disk {
        fn machine() -> Self {
            let disk = Self::default();
            disk.write("/proc/stat", "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 0\n");
            disk.write("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 750 kB\n");
            disk.write("/proc/self/status", "Cpus_allowed_list:\t0-1\n");
            disk
        }

        fn write(&self, path: &str, text: &str) {
            self.0.lock().insert(path.to_owned(), text.to_owned());
        }

        fn meter(&self) -> Meter {
            let files = Arc::clone(&self.0);
            Meter::of(move |path: &str| files.lock().get(path).cloned()).unwrap()
        }
    }

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_machine_where_no_group_has_an_allowance() {
        let disk = Disk::machine();
        let mut meter = disk.meter();
        assert_eq!(meter.sample(Tick::from_secs(1)), Reading { cpu: None, memory: Some(250), load: None });
        disk.write("/proc/stat", "cpu0 30 0 0 70\ncpu1 50 0 0 0 50 0\n");
        assert_eq!(meter.sample(Tick::from_secs(2)).cpu, Some(400), "80 of 200");
        assert_eq!(meter.sample(Tick::from_secs(2)).cpu, None, "no time has passed");
        disk.write("/proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n");
        assert_eq!(meter.sample(Tick::from_secs(3)).memory, Some(1000));
    }

    #[test]
    fn a_group_of_version_2_and_the_one_around_it() {
        let disk = Disk::machine();
        disk.write("/proc/self/cgroup", "0::/pod/app\n");
        disk.write("/proc/self/mountinfo", V2_MOUNT);
        let (pod, app) = ("/sys/fs/cgroup/pod", "/sys/fs/cgroup/pod/app");
        for (folder, max, memory, current) in
            [(pod, "100000 100000", "400", "300"), (app, "max 100000", "max", "200")]
        {
            disk.write(&format!("{folder}/cpu.max"), max);
            disk.write(&format!("{folder}/cpu.stat"), "usage_usec 1000000\nuser_usec 0\n");
            disk.write(&format!("{folder}/memory.max"), memory);
            disk.write(&format!("{folder}/memory.current"), current);
            disk.write(&format!("{folder}/memory.stat"), "anon 1\ninactive_file 100\n");
        }
        let mut meter = disk.meter();
        assert_eq!(
            meter.sample(Tick::EPOCH),
            Reading { cpu: None, memory: Some(500), load: None },
            "200 of the pod's 400"
        );
        disk.write(&format!("{pod}/cpu.stat"), "usage_usec 1900000\n");
        assert_eq!(meter.sample(Tick::from_secs(1)).cpu, Some(900), "0.9 s of one processor in a second");
        // The process's own group gets a quota of half a processor, and has used all of it.
        disk.write(&format!("{app}/cpu.max"), "50000 100000");
        meter.sample(Tick::from_secs(2));
        disk.write(&format!("{app}/cpu.stat"), "usage_usec 200000000\n");
        assert_eq!(
            meter.sample(Tick::from_secs(1000)).cpu,
            Some(399),
            "199 s of 499, and the average is nearly there"
        );
    }

    #[test]
    fn a_group_of_version_1() {
        let disk = Disk::machine();
        disk.write(
            "/proc/self/cgroup",
            "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/\n0::/\n",
        );
        let mounts = "33 31 0:30 /docker/ab /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        disk.write("/proc/self/mountinfo", mounts);
        let cpu = "/sys/fs/cgroup/cpu,cpuacct";
        disk.write(&format!("{cpu}/cpu.cfs_quota_us"), "25000\n");
        disk.write(&format!("{cpu}/cpu.cfs_period_us"), "100000\n");
        disk.write(&format!("{cpu}/cpuacct.usage"), "5000000000\n");
        let memory = "/sys/fs/cgroup/memory";
        disk.write(&format!("{memory}/memory.limit_in_bytes"), "1000\n");
        disk.write(&format!("{memory}/memory.usage_in_bytes"), "900\n");
        disk.write(&format!("{memory}/memory.stat"), "inactive_file 1\ntotal_inactive_file 400\n");
        let mut meter = disk.meter();
        assert_eq!(meter.sample(Tick::EPOCH).memory, Some(500));
        disk.write(&format!("{cpu}/cpuacct.usage"), "5250000000\n");
        assert_eq!(meter.sample(Tick::from_secs(1)).cpu, Some(1000));
        disk.write(&format!("{cpu}/cpuacct.usage"), "9900000000\n");
        assert_eq!(meter.sample(Tick::from_secs(2)).cpu, Some(1000), "above its quota, which a burst allows");
        disk.write(&format!("{memory}/memory.limit_in_bytes"), "9223372036854771712\n");
        assert_eq!(meter.sample(Tick::from_secs(3)).memory, Some(250), "no limit is the machine's memory");
    }

    #[test]
    fn what_is_missing_is_not_known_and_nonsense_is_no_panic() {
        assert_eq!(Meter::of(|_: &str| None).unwrap_err(), Unavailable);
        let disk = Disk::default();
        disk.write("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 750 kB\n");
        assert_eq!(disk.meter().sample(Tick::EPOCH), Reading { cpu: None, memory: Some(250), load: None });
        for nonsense in
            ["", "max", "-1", "0", "18446744073709551615", "cpu0 18446744073709551615 1 1 1", "\u{fffd}"]
        {
            let disk = Disk::machine();
            disk.write("/proc/self/cgroup", "0::/a\n");
            disk.write("/proc/self/mountinfo", V2_MOUNT);
            let mut meter = disk.meter();
            for name in ["cpu.max", "cpu.stat", "memory.max", "memory.current", "memory.stat"] {
                disk.write(&format!("/sys/fs/cgroup/a/{name}"), nonsense);
            }
            for second in [0, 1, u64::MAX, 0] {
                disk.write("/proc/stat", nonsense);
                let reading = meter.sample(Tick::from_secs(second));
                assert!(reading.signals().count() <= 2, "{nonsense:?}");
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells() {
        let mut meter = Meter::new().unwrap();
        meter.sample(Tick::EPOCH);
        let reading = meter.sample(Tick::from_secs(1));
        assert!(reading.memory.is_some_and(|used| used > 0), "{reading:?} of {meter:?}");
    }
}

#[cfg(test)]
mod average_tests {
    use super::*;

    #[test]
    fn it_reaches_full_scale_and_zero() {
        let mut average = Average::default();
        average.add(Tick::EPOCH, 0.0);
        let mut at = |quarter: u64, sample| average.add(Tick::from_nanos(quarter * 250_000_000), sample);
        let full: Vec<f64> = (1..=40).map(|quarter| at(quarter, 1000.0)).collect();
        assert!(full[6] < 800.0 && full[7] > 800.0, "eight samples, two seconds: {full:?}");
        assert!(full[39] > 999.5, "{full:?}");
        assert!((41..=90).map(|quarter| at(quarter, 0.0)).last().unwrap() < 0.5);
        assert!(at(1, 1000.0) < 0.5, "a clock that steps back stands still");
        assert!(at(u64::MAX / 250_000_000, 7.0) > 6.9, "after centuries only the last sample counts");
    }
}
