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
