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
