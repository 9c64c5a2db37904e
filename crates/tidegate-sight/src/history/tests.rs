use std::fs;

use super::*;
use crate::numbers::Series;

/// A Monday at midnight, long after 2024.
const BEGIN: u64 = 20_004 * DAY;

const HOUR: u64 = 3_600;

fn span(at: u64, allowed: u64) -> Span {
    let (mut server, mut counts) = (ServerCounts::default(), Counts::default());
    server.0[ServerSeries::Allowed as usize] = allowed;
    server.0[ServerSeries::P99 as usize] = at % 1_000;
    server.0[ServerSeries::Up as usize] = 1;
    counts.0[Series::Allowed as usize] = allowed;
    counts.0[Series::HottestShare as usize] = at % 1_000;
    Span { at, server, policies: vec![(7, counts)] }
}

fn push(history: &History, at: u64, allowed: u64) {
    history.push(&span(at, allowed), &|number| (number == 7).then(|| Arc::from("per-ip")));
}

/// Returns what was allowed in all minutes of some hours, and in all hours.
fn allowed(history: &History, first_hour: u64, end_hour: u64) -> (u64, u64) {
    let (from, to) = (BEGIN + first_hour * HOUR, BEGIN + end_hour * HOUR);
    let sum = |step: Step| {
        let spans = history.policy("per-ip", step, from, to);
        let of_server = history.server(step, from, to);
        let sum: u64 = spans.iter().map(|(_, counts)| counts.of(Series::Allowed)).sum();
        assert_eq!(of_server.iter().map(|(_, counts)| counts.of(ServerSeries::Allowed)).sum::<u64>(), sum);
        sum
    };
    (sum(Step::Minute), sum(Step::Hour))
}

fn open(folder: &Path) -> History {
    let (history, why) = History::open(Some(folder), BEGIN);
    assert_eq!(why, None);
    history
}

#[test]
fn a_restart_within_a_minute_adds_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let history = open(folder.path());
    for at in BEGIN..BEGIN + 90 {
        push(&history, at, 2);
    }
    let before = [Step::Minute, Step::Hour].map(|step| history.policy("per-ip", step, BEGIN, BEGIN + HOUR));
    assert_eq!(history.policy("per-ip", Step::Second, BEGIN, BEGIN + HOUR).len(), 90);
    drop(history);
    let history = open(folder.path());
    let after = [Step::Minute, Step::Hour].map(|step| history.policy("per-ip", step, BEGIN, BEGIN + HOUR));
    assert_eq!(before, after);
    assert!(history.policy("per-ip", Step::Second, BEGIN, BEGIN + HOUR).is_empty());
    for at in BEGIN + 95..BEGIN + 120 {
        push(&history, at, 2);
    }
    history.flush();
    let minutes = history.server(Step::Minute, BEGIN, BEGIN + HOUR);
    let told: Vec<(u64, u64, u64)> = minutes
        .iter()
        .map(|(at, counts)| (*at, counts.of(ServerSeries::Allowed), counts.of(ServerSeries::Up)))
        .collect();
    assert_eq!(told, [(BEGIN, 120, 60), (BEGIN + 60, 110, 55)]);
    assert_eq!(allowed(&history, 0, 1), (230, 230));
    let largest = minutes[1].1.of(ServerSeries::P99);
    assert_eq!(largest, (BEGIN + 119) % 1_000, "the largest of before and after");
    let state = history.state();
    assert!(state.on_disk && state.up, "{state:?}");
    assert_eq!(state.oldest, Some(BEGIN));
}

/// After `kill -9` the file is what the last write left.
#[test]
fn a_kill_loses_what_was_counted_since_the_last_write() {
    let (folder, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let history = open(folder.path());
    push(&history, BEGIN, 5);
    history.put_change(1, "one");
    history.flush();
    push(&history, BEGIN + 1, 7);
    history.put_change(2, "two");
    fs::copy(folder.path().join(file::NAME), after.path().join(file::NAME)).unwrap();
    assert_eq!(allowed(&history, 0, 1), (12, 12));
    let found = open(after.path());
    assert_eq!(allowed(&found, 0, 1), (5, 5));
    assert_eq!(found.changes(9), [(1, "one".to_owned())]);
}

#[test]
fn a_damaged_file_is_put_aside_and_begun_anew() {
    for damage in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join(file::NAME), folder.path().join(file::DAMAGED));
        let history = open(folder.path());
        push(&history, BEGIN, 5);
        drop(history);
        let mut bytes = fs::read(&path).unwrap();
        match damage {
            0 => bytes = b"something else, and longer than nothing".to_vec(),
            1 => bytes.truncate(bytes.len() / 3),
            // The pages, not the head.
            _ => bytes[4_096..].iter_mut().for_each(|byte| *byte ^= 0x55),
        }
        fs::write(&path, &bytes).unwrap();
        let history = open(folder.path());
        assert!(aside.exists(), "damage {damage}");
        assert_eq!(allowed(&history, 0, 1), (0, 0));
        push(&history, BEGIN, 6);
        history.flush();
        assert!(history.state().up);
        drop(history);
        assert_eq!(allowed(&open(folder.path()), 0, 1), (6, 6));
    }
}

#[test]
fn a_file_that_cannot_be_used_is_told_and_counts_wait_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let not_a_folder = folder.path().join("file");
    fs::write(&not_a_folder, b"").unwrap();
    let (history, why) = History::open(Some(&not_a_folder), BEGIN);
    assert!(why.unwrap().contains("history.redb"));
    push(&history, BEGIN, 5);
    history.put_change(1, "one");
    history.flush();
    let state = history.state();
    assert!(!state.on_disk && !state.up, "{state:?}");
    assert_eq!(history.is_written(), Some(false));
    assert_eq!((allowed(&history, 0, 1), history.changes(9).len()), ((5, 5), 1));
    // Once it can be used, all is written.
    fs::remove_file(&not_a_folder).unwrap();
    history.flush();
    let state = history.state();
    assert!(state.on_disk && state.up, "{state:?}");
    push(&history, BEGIN + 1, 1);
    drop(history);
    let history = open(&not_a_folder);
    assert_eq!((allowed(&history, 0, 1), history.changes(9).len()), ((6, 6), 1));
    // Another process has it.
    let (other, why) = History::open(Some(&not_a_folder), BEGIN);
    assert!(why.unwrap().contains("another process"));
    drop(other);
}

#[cfg(unix)]
#[test]
fn a_file_that_somebody_removes_is_made_anew_and_nothing_that_waits_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let history = open(folder.path());
    push(&history, BEGIN, 5);
    history.put_change(1, "one");
    history.flush();
    fs::remove_file(folder.path().join(file::NAME)).unwrap();
    push(&history, BEGIN + 1, 7);
    history.flush();
    assert!(!history.state().up);
    assert_eq!(allowed(&history, 0, 1), (7, 7));
    history.flush();
    assert!(history.state().up);
    drop(history);
    let history = open(folder.path());
    assert_eq!((allowed(&history, 0, 1), history.changes(9).len()), ((7, 7), 1));
}

/// Whoever reads while a write ends sees each count once.
#[test]
fn what_is_being_written_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let history = open(folder.path());
    for at in 0..10 {
        push(&history, BEGIN + at, 1);
    }
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for _ in 0..200 {
                let spans = history.policy("per-ip", Step::Minute, BEGIN, BEGIN + 60);
                assert_eq!(spans.iter().map(|(_, counts)| counts.of(Series::Allowed)).sum::<u64>(), 10);
            }
        });
        for second in 0..20 {
            // In another minute, so that there is something to write.
            push(&history, BEGIN + 600 + second, 1);
            history.flush();
        }
        reader.join().unwrap();
    });
}

#[test]
fn beyond_its_bytes_the_oldest_hour_goes() {
    let (history, _) = History::begin(Location::Memory, 30_000, BEGIN);
    let names: Vec<Arc<str>> = (0..50).map(|number| Arc::from(format!("policy-{number}"))).collect();
    for minute in 0..12 * 60 {
        let mut all = span(BEGIN + minute * 60, 100 + minute % 7);
        let counts = all.policies[0].1;
        all.policies = (0..50).map(|number| (number, counts)).collect();
        history.push(&all, &|number| names.get(usize::from(number)).cloned());
        if minute % 60 == 59 {
            history.flush();
            assert!(history.memory.lock().extent.stored <= 30_000);
        }
    }
    let minutes = |hour: u64| {
        let from = BEGIN + hour * HOUR;
        history.policy("policy-3", Step::Minute, from, from + HOUR).len()
    };
    assert_eq!((minutes(0), minutes(11)), (0, 60));
    let hours = history.policy("policy-3", Step::Hour, BEGIN, BEGIN + 12 * HOUR).len();
    assert_eq!(hours, 12, "the hours of a day go when its minutes are gone");
}

#[test]
fn steps_of_the_clock_count_where_they_are_and_remove_nothing() {
    let history = History::begin(Location::Memory, MOST_IN_MEMORY, BEGIN).0;
    let year = 365 * DAY;
    for (at, count) in [(4 * HOUR, 1), (4 * HOUR + 1, 2), (3 * HOUR + 1, 4), (year, 8), (4 * HOUR + 2, 16)] {
        push(&history, BEGIN + at, count);
        history.flush();
    }
    assert_eq!(allowed(&history, 0, 10), (23, 23));
    push(&history, BEGIN + 3 * HOUR + 30, 32);
    assert_eq!(allowed(&history, 3, 4), (36, 36));
    for at in [0, 1, u64::MAX, u64::MAX - 100_000, BEGIN] {
        push(&history, at, 1);
        history.flush();
    }
    assert_eq!(allowed(&history, 3, 5), (55, 55));
    push(&history, BEGIN + year + 60, 0);
    let ahead = history.policy("per-ip", Step::Hour, BEGIN + year, BEGIN + year + DAY);
    assert_eq!(ahead[0].1.of(Series::Allowed), 8);
    // After an hour of steady writes, blocks go by their age.
    for minute in 0..=61 {
        push(&history, BEGIN + 2 * DAY + minute * 60, 1);
        history.flush();
    }
    assert_eq!(allowed(&history, 0, 20), (0, 55 + 1), "minutes are kept for a day, hours for 90");
    push(&history, BEGIN + year + 60, 0);
    let ahead = history.policy("per-ip", Step::Hour, BEGIN + year, BEGIN + year + DAY);
    assert_eq!((ahead.len(), ahead[0].1.of(Series::Allowed)), (1, 0), "what the clock had ahead is gone");
}

#[test]
fn a_reading_has_at_most_the_points_of_ninety_days() {
    let history = History::open(None, BEGIN).0;
    assert_eq!(history.is_written(), None, "it has no file");
    for minute in 0..2_200 {
        push(&history, BEGIN + minute * 60, 1);
    }
    let minutes = history.policy("per-ip", Step::Minute, 0, BEGIN + 2_200 * 60);
    assert_eq!((minutes.len(), minutes[0].0), (2_160, BEGIN + 40 * 60));
    history.flush();
    assert_eq!(
        history.policy("per-ip", Step::Minute, 0, BEGIN + 2_200 * 60),
        minutes,
        "the same from 37 blocks"
    );
    let everything = history.server(Step::Minute, 0, u64::MAX);
    assert_eq!((everything.len(), everything[0].0), (2_160, BEGIN + 40 * 60));
    assert!(history.policy("per-ip", Step::Hour, BEGIN + 5, BEGIN).is_empty());
    assert!(history.policy("", Step::Hour, 0, u64::MAX).is_empty(), "the server has no such name");
}

#[test]
fn of_changes_the_newest_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let history = open(folder.path());
    for number in 0..250 {
        history.put_change(number, &format!("change {number}"));
    }
    history.put_change(249, "again");
    let newest = [(249, "again".to_owned()), (248, "change 248".to_owned())];
    assert_eq!((history.changes(2).as_slice(), history.changes(999).len()), (&newest[..], 200));
    drop(history);
    let history = open(folder.path());
    assert_eq!((history.changes(2).as_slice(), history.changes(999).len()), (&newest[..], 200));
    let long = "x".repeat(3 << 20);
    for number in 300..304 {
        history.put_change(number, &long);
    }
    let bytes = history.changes(999).iter().map(|(_, text)| text.len()).sum::<usize>();
    assert!(bytes <= file::MOST_CHANGES_BYTES, "{bytes}");
    assert_eq!(history.changes(1)[0].0, 303);
}

#[test]
fn alerts_are_kept_beside_the_changes_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let history = open(folder.path());
    history.put_change(1, "a change");
    (1..=1_003).for_each(|number| history.put_alert(number, "fires"));
    history.flush();
    history.put_alert(1_003, "resolved");
    drop(history);
    let history = open(folder.path());
    assert_eq!((history.alerts(9_999).len(), history.changes(9).len()), (MOST_ALERTS, 1));
    assert_eq!(history.alerts(1), [(1_003, "resolved".to_owned())]);
}

#[test]
fn what_became_of_canaries_is_kept_and_an_older_file_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let history = open(folder.path());
    history.put_change(1, "a change");
    history.flush();
    assert!(history.canaries().is_empty());
    (1..=260).for_each(|number| history.put_canary(number, "runs"));
    history.put_canary(260, "rolled back");
    history.write_soon();
    drop(history);
    let kept = open(folder.path()).canaries();
    assert_eq!((kept.len(), &kept[0]), (MOST_CANARIES, &(260, "rolled back".to_owned())));
}

#[test]
fn a_note_is_on_disk_when_that_is_waited_for_and_is_found_once() {
    let (folder, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let history = open(folder.path());
    assert_eq!(history.found_note(NoteOf::Alerts), None);
    history.put_note(NoteOf::Alerts, "one");
    assert!(history.write_now());
    history.put_note(NoteOf::Alerts, "two");
    fs::copy(folder.path().join(file::NAME), killed.path().join(file::NAME)).unwrap();
    drop(history);
    for (folder, text) in [(&folder, "two"), (&killed, "one")] {
        let history = open(folder.path());
        assert_eq!(
            (history.found_note(NoteOf::Alerts).as_deref(), history.found_note(NoteOf::Alerts)),
            (Some(text), None)
        );
        history.put_note(NoteOf::Alerts, &"x".repeat(NoteOf::Alerts.most_bytes() + 1));
        history.put_change(1, "something else to write");
        drop(history);
        assert_eq!(
            open(folder.path()).found_note(NoteOf::Alerts).as_deref(),
            Some(text),
            "a longer one is not kept"
        );
    }
}

/// A file of an earlier build has one note.
#[test]
fn each_note_is_kept_for_itself_and_one_that_the_file_lacks_is_none() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put_note(NoteOf::Alerts, "silences");
    let history = open(folder.path());
    assert_eq!(history.found_note(NoteOf::Keys), None);
    history.put_note(NoteOf::Keys, &"x".repeat(NoteOf::Keys.most_bytes() + 1));
    history.flush();
    history.put_note(NoteOf::Keys, "keys");
    drop(history);
    let history = open(folder.path());
    let found = NoteOf::ALL.map(|note| history.found_note(note));
    assert_eq!(found, [Some("silences".into()), Some("keys".into())]);
}

/// The process before may still have the file.
#[test]
fn a_note_of_a_file_that_is_opened_late_is_found_then_and_what_is_newer_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path());
    before.put_note(NoteOf::Alerts, "before");
    assert!(before.write_now());
    let (history, why) = History::open(Some(folder.path()), BEGIN);
    assert!(why.unwrap().contains("another process"));
    history.put_note(NoteOf::Alerts, "newer");
    assert!(!history.write_now(), "it cannot be written yet");
    drop(before);
    assert!(history.write_now());
    assert_eq!(history.found_note(NoteOf::Alerts).as_deref(), Some("before"));
    drop(history);
    assert_eq!(open(folder.path()).found_note(NoteOf::Alerts).as_deref(), Some("newer"));
}
