//! The control groups that this process is in, and the allowance of each.
//!
//! A group's allowance is bounded by those of the groups around it, so all visible ones are read. In a container only
//! the part of the tree below the container's own group is visible, and the group's path there differs from the one
//! that the process is told. The mount states which group is at its top.

use super::files::Files;
use super::parse::{self, Membership, Mount, Quota};

/// The most groups above the process's own that are read.
const DEEPEST: usize = 32;

/// The folders of the groups of one hierarchy, the process's own first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Folders {
    /// The common prefix of all folders.
    point: String,
    /// The path below `point`, for each group.
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
        let membership = parse::memberships(text).find(|one| has(one.controllers))?;
        let mount = mounts.iter().find(|mount| match &mount.controllers {
            None => controller.is_empty(),
            Some(list) => has(list),
        })?;
        Some(Self::new(&membership, mount))
    }
}

/// The files of one group about processor time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Processors {
    /// The folder of a group of version 2.
    V2(String),
    /// The folders of version 1: the one with the quota, and the one with the usage.
    V1(String, String),
}

impl Processors {
    pub(super) fn quota(&self, files: &dyn Files) -> Option<Quota> {
        match self {
            Self::V2(folder) => parse::cpu_max(&files.text(&format!("{folder}/cpu.max"))?),
            Self::V1(folder, _) => {
                let quota = files.text(&format!("{folder}/cpu.cfs_quota_us"))?;
                parse::cfs_quota(&quota, &files.text(&format!("{folder}/cpu.cfs_period_us"))?)
            }
        }
    }

    /// Returns the nanoseconds of processor time used so far.
    pub(super) fn used(&self, files: &dyn Files) -> Option<u64> {
        match self {
            Self::V2(folder) => {
                let stat = files.text(&format!("{folder}/cpu.stat"))?;
                parse::keyed(&stat, "usage_usec")?.checked_mul(1000)
            }
            Self::V1(_, folder) => parse::number(&files.text(&format!("{folder}/cpuacct.usage"))?),
        }
    }
}

/// The folder of one group with its files about memory.
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
        let number = |name: &str| parse::number(&files.text(&format!("{folder}/{name}"))?);
        let (limit, used) = (number(limit)?, number(used)?);
        let stat = files.text(&format!("{folder}/memory.stat")).unwrap_or_default();
        Some((limit, used.saturating_sub(parse::keyed(&stat, inactive).unwrap_or(0))))
    }
}

/// The groups whose allowances apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ControlGroups {
    pub(super) processors: Vec<Processors>,
    pub(super) memory: Vec<Memory>,
}

impl ControlGroups {
    /// Finds the groups. The lists are empty if the process is in no group, or its groups are not visible.
    pub(super) fn find(files: &dyn Files) -> Self {
        let own = files.text("/proc/self/cgroup").unwrap_or_default();
        let mounts: Vec<Mount> =
            parse::mounts(&files.text("/proc/self/mountinfo").unwrap_or_default()).collect();
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

#[cfg(test)]
mod tests {
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
