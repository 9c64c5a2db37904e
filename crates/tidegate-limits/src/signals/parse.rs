//! Parsers of the kernel's files. Every function takes the text of a file, and returns `None` if it does not have the
//! value.

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

    /// Returns the quota as a number of processors.
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
    /// The number of processors in the sum.
    pub(super) processors: u64,
}

/// Reads `/proc/stat`, summed over the processors that this process may run on, or over all if none of those is
/// listed.
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

/// A hierarchy of control groups that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership<'a> {
    /// The controllers of version 1, separated by commas; empty for version 2.
    pub(super) controllers: &'a str,
    pub(super) path: &'a str,
}

/// Reads `/proc/self/cgroup`.
pub(super) fn memberships(text: &str) -> impl Iterator<Item = Membership<'_>> {
    let membership = |line| {
        let (_, rest) = str::split_once(line, ':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some(Membership { controllers, path })
    };
    text.lines().filter_map(membership)
}

/// A mount of a hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The controllers of version 1, separated by commas; `None` for version 2.
    pub(super) controllers: Option<String>,
    /// The group at the top of the mount.
    pub(super) root: String,
    pub(super) point: String,
}

/// Reads `/proc/self/mountinfo`.
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

#[cfg(test)]
mod tests;
