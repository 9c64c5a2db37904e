//! Parsers of the kernel's files. Every function takes the text of a file, and returns `None` if it does not have the
//! value.

use std::fs::File;
use std::io::Read;

/// A quota of processor time in each period, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) micros: u64,
    pub(super) period: u64,
}

impl Quota {
    fn new(micros: u64, period: u64) -> Option<Self> {
        (micros > 0 && period > 0).then_some(Self { micros, period })
    }

    pub(super) fn processors(self) -> f64 {
        self.micros as f64 / self.period as f64
    }
}

/// Reads `cpu.max` of version 2, such as `50000 100000`; `max` means no quota.
pub(super) fn cpu_max(text: &str) -> Option<Quota> {
    let mut words = text.split_whitespace();
    let micros = words.next()?.parse().ok()?;
    // The kernel's default if it is left out.
    let period = words.next().map_or(Ok(100_000), str::parse).ok()?;
    Quota::new(micros, period)
}

/// Reads `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1; -1 means no quota.
pub(super) fn cfs_quota(quota: &str, period: &str) -> Option<Quota> {
    Quota::new(number(quota)?, number(period)?)
}

/// Reads a file that is one number. `None` for `max`, and for a number below zero.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Reads the first average of `/proc/loadavg`, in hundredths.
pub(super) fn loadavg(text: &str) -> Option<u32> {
    let (whole, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let (whole, hundredths): (u32, u32) = (whole.parse().ok()?, hundredths.parse().ok()?);
    whole.checked_mul(100)?.checked_add(hundredths).filter(|_| hundredths < 100)
}

/// Finds a number in lines of a key and a number, as in `cpu.stat` and `memory.stat`.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    let value = |line: &str| number(line.strip_prefix(key)?.strip_prefix(' ')?);
    text.lines().find_map(value)
}

/// Reads the machine's memory in bytes: the total, and the available part.
pub(super) fn meminfo(text: &str) -> Option<(u64, u64)> {
    let field = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
        kib.checked_mul(1024)
    };
    // Kernels before 3.14 have no `MemAvailable`.
    let available = field("MemAvailable").or_else(|| field("MemFree")?.checked_add(field("Cached")?))?;
    Some((field("MemTotal")?, available))
}

/// Time spent by processors since the machine started, in the kernel's units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) busy: u64,
    pub(super) all: u64,
    pub(super) processors: u64,
}

/// Reads `/proc/stat`, summed over the processors that this process may run on, or over all if none of those is listed.
pub(super) fn stat(text: &str, allowed: &[(u64, u64)]) -> Option<Spent> {
    let sum = |wanted: &dyn Fn(u64) -> bool| {
        let mut sum = Spent::default();
        for line in text.lines() {
            let Some((name, times)) = line.split_once(' ') else { continue };
            let Some(number) = name.strip_prefix("cpu").and_then(|number| number.parse().ok()) else {
                continue;
            };
            if !wanted(number) {
                continue;
            }
            // user nice system idle iowait irq softirq steal; the later columns are already included in user and
            // nice.
            let times: Vec<u64> =
                times.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
            let all = times.iter().fold(0, |sum: u64, time| sum.saturating_add(*time));
            let idle = times.iter().skip(3).take(2).fold(0, |sum: u64, time| sum.saturating_add(*time));
            sum.all = sum.all.saturating_add(all);
            sum.busy = sum.busy.saturating_add(all.saturating_sub(idle));
            sum.processors += 1;
        }
        (sum.processors > 0).then_some(sum)
    };
    let is_allowed = |number| allowed.iter().any(|(first, last)| (*first..=*last).contains(&number));
    sum(&is_allowed).or_else(|| sum(&|_| true))
}

/// Reads from `/proc/self/status` which processors a process may run on, as inclusive ranges.
pub(super) fn allowed_processors(status: &str) -> Vec<(u64, u64)> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    list.unwrap_or_default().split(',').filter_map(range).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership<'a> {
    /// The controllers of version 1, separated by commas; empty for version 2.
    pub(super) controllers: &'a str,
    pub(super) path: &'a str,
}

pub(super) fn memberships(text: &str) -> impl Iterator<Item = Membership<'_>> {
    let membership = |line| {
        let (_, rest) = str::split_once(line, ':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some(Membership { controllers, path })
    };
    text.lines().filter_map(membership)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The controllers of version 1, separated by commas; `None` for version 2.
    pub(super) controllers: Option<String>,
    pub(super) root: String,
    pub(super) point: String,
}

pub(super) fn mounts(text: &str) -> impl Iterator<Item = Mount> {
    let mount = |line| {
        let (place, kind) = str::split_once(line, " - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (unescaped(place.next()?), unescaped(place.next()?));
        let mut kind = kind.split(' ');
        let controllers = match kind.next()? {
            "cgroup2" => None,
            "cgroup" => Some(kind.nth(1)?.to_owned()),
            _ => return None,
        };
        Some(Mount { controllers, root, point })
    };
    text.lines().filter_map(mount)
}

/// Restores characters that the kernel writes as a backslash and three octal digits.
fn unescaped(path: &str) -> String {
    let mut pieces = path.split('\\');
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                whole.push(char::from(code));
                whole.push_str(&piece[3..]);
            }
            None => {
                whole.push('\\');
                whole.push_str(piece);
            }
        }
    }
    whole
}

// The control groups that this process is in, and the allowance of each.
//
// A group's allowance is bounded by those of the groups around it, so all visible ones are read. In a container only
// the part of the tree below the container's own group is visible, and the group's path there differs from the one that
// the process is told. The mount states which group is at its top.

const DEEPEST: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Folders {
    point: String,
    below: Vec<String>,
}

impl Folders {
    fn new(membership: &Membership<'_>, mount: &Mount) -> Self {
        let path = membership.path.trim_end_matches('/');
        let root = mount.root.trim_end_matches('/');
        // If the mount shows another part of the tree, only its top is known.
        let below = path.strip_prefix(root).filter(|below| below.is_empty() || below.starts_with('/'));
        let mut below = below.unwrap_or_default();
        let mut all = Vec::new();
        while !below.is_empty() && all.len() < DEEPEST {
            all.push(below.to_owned());
            below = below.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        all.push(String::new());
        Self { point: mount.point.trim_end_matches('/').to_owned(), below: all }
    }

    fn of(text: &str, mounts: &[Mount], controller: &str) -> Option<Self> {
        let has = |list: &str| list.split(',').any(|one| one == controller);
        let membership = memberships(text).find(|one| has(one.controllers))?;
        let mount = mounts.iter().find(|mount| match &mount.controllers {
            None => controller.is_empty(),
            Some(list) => has(list),
        })?;
        Some(Self::new(&membership, mount))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Processors {
    V2(String),
    V1(String, String),
}

impl Processors {
    pub(super) fn quota(&self, files: &dyn Files) -> Option<Quota> {
        match self {
            Self::V2(folder) => cpu_max(&files.text(&format!("{folder}/cpu.max"))?),
            Self::V1(folder, _) => {
                let quota = files.text(&format!("{folder}/cpu.cfs_quota_us"))?;
                cfs_quota(&quota, &files.text(&format!("{folder}/cpu.cfs_period_us"))?)
            }
        }
    }

    pub(super) fn used(&self, files: &dyn Files) -> Option<u64> {
        match self {
            Self::V2(folder) => {
                let stat = files.text(&format!("{folder}/cpu.stat"))?;
                keyed(&stat, "usage_usec")?.checked_mul(1000)
            }
            Self::V1(_, folder) => number(&files.text(&format!("{folder}/cpuacct.usage"))?),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    V2(String),
    V1(String),
}

impl Memory {
    /// Returns the limit and the use in bytes, without memory that the kernel can reclaim at once.
    pub(super) fn limit_and_used(&self, files: &dyn Files) -> Option<(u64, u64)> {
        let (folder, limit, used, inactive) = match self {
            Self::V2(folder) => (folder, "memory.max", "memory.current", "inactive_file"),
            Self::V1(folder) => {
                (folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            }
        };
        let number = |name: &str| number(&files.text(&format!("{folder}/{name}"))?);
        let (limit, used) = (number(limit)?, number(used)?);
        let stat = files.text(&format!("{folder}/memory.stat")).unwrap_or_default();
        Some((limit, used.saturating_sub(keyed(&stat, inactive).unwrap_or(0))))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ControlGroups {
    pub(super) processors: Vec<Processors>,
    pub(super) memory: Vec<Memory>,
}

impl ControlGroups {
    /// Finds the groups whose allowances apply. The lists are empty if the process is in no group, or its groups are
    /// not visible.
    pub(super) fn find(files: &dyn Files) -> Self {
        let own = files.text("/proc/self/cgroup").unwrap_or_default();
        let mounts: Vec<Mount> = mounts(&files.text("/proc/self/mountinfo").unwrap_or_default()).collect();
        let folders = |controller: &str| Folders::of(&own, &mounts, controller).unwrap_or_default();
        let mut found = Self::default();
        let unified = folders("");
        for below in &unified.below {
            let folder = format!("{}{below}", unified.point);
            found.processors.push(Processors::V2(folder.clone()));
            found.memory.push(Memory::V2(folder));
        }
        let (quotas, usage) = (folders("cpu"), folders("cpuacct"));
        for below in &quotas.below {
            let [quota, usage] = [&quotas, &usage].map(|folders| format!("{}{below}", folders.point));
            found.processors.push(Processors::V1(quota, usage));
        }
        let memory = folders("memory");
        let groups = memory.below.iter().map(|below| Memory::V1(format!("{}{below}", memory.point)));
        found.memory.extend(groups);
        found
    }
}

/// The most bytes read of a file: a list of a thousand processors has about 100 KiB, and one of all mounts of a large
/// host about 500 KiB.
const LONGEST: u64 = 4 << 20;

/// A source of file texts: the kernel, or a test. Returns `None` for a file that is missing or cannot be read.
pub(super) trait Files: Send {
    fn text(&self, path: &str) -> Option<String>;
}

impl<F: Fn(&str) -> Option<String> + Send> Files for F {
    fn text(&self, path: &str) -> Option<String> {
        self(path)
    }
}

pub(super) fn kernel(path: &str) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quotas_of_both_versions() {
        let half = Some(Quota { micros: 50_000, period: 100_000 });
        assert_eq!(cpu_max("50000 100000\n"), half);
        assert_eq!(cpu_max("50000\n"), half);
        assert_eq!(cfs_quota("50000\n", "100000\n"), half);
        for none in ["max 100000\n", "", "0 100000", "50000 0", "-1 100000", "many 100000", "50000 few"] {
            assert_eq!(cpu_max(none), None, "{none:?}");
        }
        assert_eq!(cfs_quota("-1\n", "100000\n"), None);
        assert_eq!(number("max\n"), None);
        assert_eq!(number("9223372036854771712\n"), Some(9_223_372_036_854_771_712));
    }

    #[test]
    fn the_load_average_of_one_minute() {
        assert_eq!(loadavg("0.52 0.58 0.59 1/467 12345\n"), Some(52));
        assert_eq!(loadavg("12.05 1.00 1.00 1/1 1\n"), Some(1205));
        for none in ["", "x", "12", "1.x", "-1.00 0.0", "99999999.99", "1.100"] {
            assert_eq!(loadavg(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_key_is_found_whole() {
        let stat = "usage_usec 76591166082\nuser_usec 70789898774\nsystem_usec 5801267307\n";
        assert_eq!(keyed(stat, "usage_usec"), Some(76_591_166_082));
        assert_eq!(
            keyed("inactive_file_x 1\ntotal_inactive_file 2\ninactive_file 3\n", "inactive_file"),
            Some(3)
        );
        assert_eq!(keyed("inactive_file\ninactive_file x\n", "inactive_file"), None);
    }

    #[test]
    fn the_machines_memory() {
        let text = "MemTotal:       24731708 kB\nMemFree:          514024 kB\nMemAvailable:   24094880 kB\n";
        assert_eq!(meminfo(text), Some((24_731_708 * 1024, 24_094_880 * 1024)));
        let old = "MemTotal: 100 kB\nMemFree: 20 kB\nBuffers: 5 kB\nCached: 30 kB\n";
        assert_eq!(meminfo(old), Some((102_400, 51_200)));
        assert_eq!(meminfo("MemTotal: 100 kB\n"), None);
        assert_eq!(meminfo("MemTotal: 99999999999999999999 kB\nMemAvailable: 1 kB"), None);
    }

    const STAT: &str = "cpu  6552127 524677 568044 2424253 23116 0 11897 7860 0 0
cpu0 3276646 262788 283526 1211367 12255 0 5191 3934 0 0
cpu1 3275481 261889 284517 1212885 10860 0 6705 3926 0 0
intr 1 2 3
ctxt 5
";

    #[test]
    fn the_processors_that_may_be_used() {
        let both = stat(STAT, &[(0, 1)]).unwrap();
        assert_eq!(both.processors, 2);
        assert_eq!(both.all - both.busy, 1_211_367 + 12_255 + 1_212_885 + 10_860);
        assert_eq!(
            both.busy,
            3_276_646 + 262_788 + 283_526 + 5191 + 3934 + 3_275_481 + 261_889 + 284_517 + 6705 + 3926
        );
        assert_eq!(stat(STAT, &[(1, 7)]).unwrap().processors, 1);
        assert_eq!(stat(STAT, &[]), Some(both), "all, where the list is not known");
        assert_eq!(stat("cpu 1 2 3\n", &[]), None);
        assert_eq!(allowed_processors("Name:\tx\nCpus_allowed_list:\t0-3,8,10-x\n"), [(0, 3), (8, 8)]);
    }

    #[test]
    fn groups_and_mounts_of_both_versions() {
        let text = "4:memory:/process_api/7212\n2:cpu,cpuacct:/\n0::/user.slice/a:b\nnonsense\n";
        let all: Vec<_> = memberships(text).map(|one| (one.controllers, one.path)).collect();
        assert_eq!(all, [("memory", "/process_api/7212"), ("cpu,cpuacct", "/"), ("", "/user.slice/a:b")]);
        let text = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw,relatime shared:12 master:3 - cgroup cgroup rw,memory
41 31 0:38 / /mnt/all\\040groups rw,relatime - cgroup2 cgroup2 rw
short
";
        let all: Vec<Mount> = mounts(text).collect();
        let [memory, unified] = &all[..] else { panic!("{all:?}") };
        assert_eq!((memory.root.as_str(), memory.point.as_str()), ("/docker/ab", "/sys/fs/cgroup/memory"));
        assert_eq!(memory.controllers.as_deref(), Some("rw,memory"));
        assert_eq!((unified.controllers.as_deref(), unified.point.as_str()), (None, "/mnt/all groups"));
        assert_eq!(unescaped("a\\"), "a\\");
        assert_eq!(unescaped("\\777\\134x"), "\\777\\x");
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "([a-z0-9:./ \\\\-]|\n|µ|cpu[0-9]|MemTotal: |max| - cgroup2? | kB){0,60}") {
            let _ = (cpu_max(&text), number(&text), keyed(&text, "max"), meminfo(&text));
            let _ = stat(&text, &allowed_processors(&text));
            let _ = (memberships(&text).count(), mounts(&text).count());
        }
    }
}

#[cfg(test)]
mod control_groups_tests {
    use super::*;

    fn folders(path: &str, root: &str) -> Vec<String> {
        let membership = Membership { controllers: "memory", path };
        let mount = Mount { controllers: None, root: root.to_owned(), point: "/m/".to_owned() };
        let folders = Folders::new(&membership, &mount);
        folders.below.iter().map(|below| format!("{}{below}", folders.point)).collect()
    }

    #[test]
    fn every_group_around_the_own_is_looked_at() {
        assert_eq!(folders("/a/b", "/"), ["/m/a/b", "/m/a", "/m"]);
        assert_eq!(folders("/", "/"), ["/m"]);
        assert_eq!(
            folders("/docker/ab/c", "/docker/ab"),
            ["/m/c", "/m"],
            "a container with a mount of its own"
        );
        assert_eq!(folders("/docker/abc", "/docker/ab"), ["/m"], "another group that begins alike");
        assert_eq!(folders("/../other", "/"), ["/m/../other", "/m/..", "/m"]);
        assert_eq!(folders(&"/a".repeat(1000), "/").len(), DEEPEST + 1);
    }
}
