//! Processes that are killed while they grant. `TIDEGATE_CRASHES` sets how often; a few times unless it is set.

use crate::common;

use std::time::Duration;

use common::{Other, daily, left, open, options, take};
use tidegate::store::Durable;
use tidegate::store::conformance::Random;
use tidegate_disk::DiskStore;

/// Units per day, more than any run uses.
const UNITS: u64 = 1_000_000_000;

fn crashes() -> u64 {
    std::env::var("TIDEGATE_CRASHES").ok().and_then(|times| times.parse().ok()).unwrap_or(6)
}

/// Reads some more of a child's lines.
fn some_more(other: &mut Other, word: &str, random: &mut Random) -> u64 {
    let more = random.below(60);
    (0..more).for_each(|_| _ = other.says(word).unwrap());
    more
}

/// Grants, and prints how many were granted so far and how many of them were on disk before the line was printed.
#[test]
#[ignore = "a child of the test below"]
fn grants_and_flushes() {
    let Some(folder) = common::folder() else { return };
    let store = DiskStore::open(options(&folder).interval(Duration::from_millis(5))).unwrap();
    let day = daily(UNITS);
    println!("open {}", left(&store, b"key", &day));
    for granted in 1.. {
        assert!(take(&store, b"key", &day, Durable::Interval).unwrap().allowed);
        let other = granted % 5000_u64;
        take(&store, &other.to_le_bytes(), &day, Durable::Interval).unwrap();
        if granted % 64 == 0 {
            store.flush().unwrap();
            println!("saved {granted}");
        }
    }
}

#[test]
fn what_was_on_disk_is_there_after_a_kill_and_nothing_is_made_up() {
    let (folder, day, mut random) = (tempfile::tempdir().unwrap(), daily(UNITS), Random::seeded(7));
    for crash in 0..crashes() {
        let before = left(&open(folder.path()), b"key", &day);
        let mut other = Other::start("crashes::grants_and_flushes", folder.path(), "");
        assert_eq!(other.says("open").unwrap(), before.to_string(), "crash {crash}");
        some_more(&mut other, "saved", &mut random);
        let first: u64 = other.says("saved").unwrap().parse().unwrap();
        let said = other.kill();
        // The last line may be cut.
        let saved = said.iter().filter_map(|line| line.strip_prefix("saved ")?.parse().ok()).max();
        let saved: u64 = saved.unwrap_or(first).max(first);
        let spent = before - left(&open(folder.path()), b"key", &day);
        assert!(spent >= saved, "crash {crash}: {saved} were on disk, and {spent} are spent");
        assert!(
            spent <= saved + 2 * 64,
            "crash {crash}: no more is spent than was granted: {spent}, {saved}"
        );
    }
}

/// Grants strictly, from four threads, and prints each grant.
#[test]
#[ignore = "a child of the test below"]
fn grants_strictly() {
    let Some(folder) = common::folder() else { return };
    let store = DiskStore::open(options(&folder)).unwrap();
    let day = daily(UNITS);
    println!("open");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    assert!(take(&store, b"key", &day, Durable::Strict).unwrap().allowed);
                    println!("granted");
                }
            });
        }
    });
}

#[test]
fn a_strict_grant_is_never_lost() {
    let (folder, day, mut random) = (tempfile::tempdir().unwrap(), daily(UNITS), Random::seeded(9));
    for crash in 0..crashes() {
        let before = left(&open(folder.path()), b"key", &day);
        let mut other = Other::start("crashes::grants_strictly", folder.path(), "");
        other.says("open").unwrap();
        let granted = some_more(&mut other, "granted", &mut random);
        let granted = granted + other.kill().iter().filter(|line| line.as_str() == "granted").count() as u64;
        let spent = before - left(&open(folder.path()), b"key", &day);
        assert!(spent >= granted, "crash {crash}: {granted} were granted, and {spent} are spent");
        assert!(spent <= granted + 8, "crash {crash}: {granted} were granted, and {spent} are spent");
    }
}

#[test]
fn a_new_file_is_whole_or_not_there() {
    let mut random = Random::seeded(11);
    for _ in 0..crashes() {
        let folder = tempfile::tempdir().unwrap();
        let other = Other::start("crashes::grants_and_flushes", folder.path(), "");
        // Often before the file is made, or while it is being made.
        (0..random.below(3000)).for_each(|_| std::thread::yield_now());
        other.kill();
        open(folder.path()).close().unwrap();
    }
}
