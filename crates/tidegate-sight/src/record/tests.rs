use std::fs;

use super::file::DAMAGED;
use super::*;

/// A moment of 2027, in milliseconds since 1970.
const NOON: u64 = 1_800_014_400_000;

fn id(at_ms: u64, number: u64) -> u128 {
    u128::from(at_ms) << 80 | u128::from(number)
}

fn refusal(id: u128, key: &str) -> RefusalRecord {
    RefusalRecord {
        id,
        key: key.to_owned(),
        configuration: 3,
        text: format!("{{\"id\":{id},\"é\":\"{key}\"}}"),
    }
}

fn open(folder: &Path) -> Record {
    let (record, why) = Record::open(folder, NOON);
    assert_eq!(why, None);
    record
}

fn found(record: &Record, id: u128) -> Option<(String, Option<String>)> {
    match record.recall(id, None) {
        Recalled::Found { text, policies } => Some((text, policies)),
        Recalled::Missing { .. } => None,
    }
}

/// Returns why a refusal is not there, and the nearest of its key.
fn missing(record: &Record, id: u128, key: &str) -> (String, Option<u128>) {
    match record.recall(id, Some(key)) {
        Recalled::Missing { why, nearest } => (why, nearest),
        Recalled::Found { text, .. } => panic!("{text}"),
    }
}

#[test]
fn each_refusal_is_there_at_once_and_after_a_restart_with_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let record = open(folder.path());
    record.configured(2, "older");
    record.configured(3, "policies");
    let ids: Vec<u128> = (0..200).map(|number| id(NOON + number, number)).collect();
    for id in &ids {
        record.push(refusal(*id, "#a"));
        assert_eq!(found(&record, *id), Some((refusal(*id, "#a").text, Some("policies".to_owned()))));
    }
    drop(record);
    let (record, why) = Record::open(folder.path(), NOON + 60_000);
    assert_eq!(why, None);
    record.configured(3, "those of another run");
    for id in ids {
        assert_eq!(found(&record, id), Some((refusal(id, "#a").text, Some("policies".to_owned()))));
    }
    let size = fs::metadata(folder.path().join(file::NAME)).unwrap().len();
    assert!(size < 4 << 20, "{size}");
}

#[test]
fn who_asks_for_one_that_was_left_out_is_told_which_bound_did_it() {
    let folder = tempfile::tempdir().unwrap();
    let record = open(folder.path());
    assert_eq!(missing(&record, id(NOON, 1), "#a").0, "no refusal is recorded yet");
    let asked = id(NOON + 40_000, 7);
    for (at, key) in [(1_000, "#a"), (30_000, "#a"), (39_999, "#b"), (70_000, "#a")] {
        record.push(refusal(id(NOON + at, at), key));
    }
    record.shared.turn();
    let (why, nearest) = missing(&record, asked, "#a");
    assert!(why.starts_with("no refusal was left out about that minute"), "{why}");
    assert_eq!(nearest, Some(id(NOON + 30_000, 30_000)));
    assert_eq!(missing(&record, asked, "#c").1, None);
    assert!(
        missing(&record, id(NOON - 1, 1), "#a")
            .0
            .starts_with("the record began later, at 2027-01-15T12:00:01Z")
    );
    // In the first second there is room for fifty of one key, then for none.
    let wanted = (0..60).filter(|_| record.wants(9, NOON * 1_000_000)).count();
    assert_eq!(wanted, 50);
    record.push(refusal(id(NOON + 71_000, 1), "#a"));
    record.shared.turn();
    let (why, _) = missing(&record, asked, "#a");
    assert!(why.starts_with("10 refusals were left out about that minute"), "{why}");
}

#[test]
fn a_full_queue_leaves_out_and_counts() {
    let folder = tempfile::tempdir().unwrap();
    let record = open(folder.path());
    let turn = record.shared.writes.lock();
    // The thread may have taken what came first, and waits for its turn.
    for number in 0..2 * MOST_WAITING as u64 + 10 {
        record.push(refusal(id(NOON, number), "#a"));
    }
    assert!(!record.wants(1, NOON * 1_000_000));
    drop(turn);
    record.shared.turn();
    record.shared.turn();
    assert!(record.wants(1, NOON * 1_000_000), "there is room again");
    record.push(refusal(id(NOON, 5_000_000), "#a"));
    record.shared.turn();
    let (why, _) = missing(&record, id(NOON, 9_000_000), "#a");
    assert!(why.contains("because the queue for the disk was full"), "{why}");
}

#[test]
fn the_oldest_go_first_when_the_file_has_enough() {
    let folder = tempfile::tempdir().unwrap();
    let file = RecordFile::bounded(folder.path(), 100_000).unwrap();
    for second in 0..100 {
        let records = (0..50).map(|number| refusal(id(NOON + second * 1_000, number), "#a")).collect();
        let batch =
            Batch { run: 1, configurations: Vec::new(), left_out: sample::LeftOut::default(), records };
        file.write(&batch).unwrap();
    }
    let is_there = |file: &RecordFile, second: u64| {
        matches!(file.read(id(NOON + second * 1_000, 0), None).unwrap(), Recalled::Found { .. })
    };
    assert!(is_there(&file, 99) && !is_there(&file, 0));
    let kept = (0..100).filter(|second| is_there(&file, *second)).count();
    assert!((8..40).contains(&kept), "{kept} of 100");
    let Recalled::Missing { why, nearest } = file.read(id(NOON, 0), Some("#a")).unwrap() else { panic!() };
    assert!(why.contains("at most 64 MiB, and the oldest go first"), "{why}");
    assert!(nearest.is_some_and(|nearest| nearest > id(NOON, 0)), "{nearest:?}");
    drop(file);
    // It is counted again when it is opened, and the bound holds on.
    let file = RecordFile::bounded(folder.path(), 50_000).unwrap();
    let one = vec![refusal(id(NOON + 100_000, 0), "#a")];
    let batch =
        Batch { run: 1, configurations: Vec::new(), left_out: sample::LeftOut::default(), records: one };
    file.write(&batch).unwrap();
    let left = (0..100).filter(|second| is_there(&file, *second)).count();
    assert!(is_there(&file, 100) && left < kept, "{left} of {kept}");
}

fn written(file: &RecordFile, records: Vec<RefusalRecord>) {
    let left_out = sample::LeftOut::default();
    file.write(&Batch { run: 1, configurations: Vec::new(), left_out, records }).unwrap();
}

fn is_kept(file: &RecordFile, id: u128) -> bool {
    matches!(file.read(id, None).unwrap(), Recalled::Found { .. })
}

/// Strangers who came once each filled the file, and what a customer had been refused all day was gone.
#[test]
fn a_flood_of_new_keys_pushes_out_no_record_of_a_key_that_is_refused_steadily() {
    let folder = tempfile::tempdir().unwrap();
    let file = RecordFile::bounded(folder.path(), 100_000).unwrap();
    let minute = |number: u64| NOON + number * 60_000;
    for number in 0..60 {
        let stranger =
            |one: u64| refusal(id(minute(number) + one * 10, one), &format!("#stranger-{number}-{one}"));
        let mut records: Vec<RefusalRecord> = (0..100).map(stranger).collect();
        // Twice in each minute, of which one is kept.
        records.push(refusal(id(minute(number) + 20_000, 1), "#customer"));
        records.push(refusal(id(minute(number) + 40_000, 2), "#customer"));
        written(&file, records);
    }
    drop(file);
    let file = RecordFile::bounded(folder.path(), 100_000).unwrap();
    for number in 1..60 {
        assert!(is_kept(&file, id(minute(number) + 20_000, 1)), "in minute {number}");
    }
    assert!(is_kept(&file, id(minute(59), 0)) && !is_kept(&file, id(minute(30), 0)));
    let asked = id(minute(30) + 55_000, 3);
    let Recalled::Missing { why, nearest } = file.read(asked, Some("#customer")).unwrap() else { panic!() };
    let steady = "but for one a minute of keys that are refused again and again, since 2027-01-15T12:01:20Z";
    assert!(why.contains(steady) && why.contains("at most 64 MiB"), "{why}");
    assert_eq!(nearest, Some(id(minute(31) + 20_000, 1)));
}

/// Nothing that came after the clock had been set back was kept until it had caught up.
#[test]
fn after_a_clock_was_ahead_what_is_new_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = RecordFile::bounded(folder.path(), 20_000).unwrap();
    let ahead = |second: u64| id(NOON + 3_600_000 + second * 1_000, second);
    written(&file, (0..200).map(|second| refusal(ahead(second), "#ahead")).collect());
    assert!(is_kept(&file, ahead(199)));
    for second in 0..50 {
        let one = id(NOON + second * 1_000, second);
        written(&file, vec![refusal(one, "#now")]);
        assert!(is_kept(&file, one), "{second}");
    }
    assert!(!is_kept(&file, ahead(199)), "what is ahead goes first");
}

#[test]
fn a_run_has_a_higher_number_than_those_before_although_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    for (now_ms, text) in [(NOON, "first"), (NOON - 3_600_000, "second")] {
        let (record, why) = Record::open(folder.path(), now_ms);
        assert_eq!(why, None);
        for number in 0..MOST_CONFIGURATIONS as u64 {
            record.configured(number, text);
            let mut refused = refusal(id(now_ms + number, number), "#a");
            refused.configuration = number;
            record.push(refused);
        }
    }
    let record = open(folder.path());
    let (_, policies) = found(&record, id(NOON - 3_600_000, 0)).unwrap();
    assert_eq!(policies.as_deref(), Some("second"));
    assert_eq!(found(&record, id(NOON, 0)).unwrap().1, None, "sixteen are kept");
}

#[test]
fn new_keys_beyond_so_many_a_minute_are_left_out_and_who_asks_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let record = open(folder.path());
    let wanted = (0..3_000).filter(|key| record.wants(*key, NOON * 1_000_000)).count() as u64;
    assert_eq!(wanted, sample::A_SECOND + sample::NEW_A_MINUTE);
    record.push(refusal(id(NOON, 1), "#a"));
    record.shared.turn();
    let (why, _) = missing(&record, id(NOON + 1, 2), "#b");
    assert!(why.starts_with("1950 refusals were left out about that minute, since their keys"), "{why}");
}

#[test]
fn the_last_sixteen_configurations_that_are_named_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = RecordFile::open(folder.path()).unwrap();
    for number in 0..20 {
        let mut record = refusal(id(NOON + number, number), "#a");
        record.configuration = number;
        let text = format!("policies {number}");
        let configurations = vec![(number, file::packed_configuration(&text).unwrap())];
        let batch =
            Batch { run: 7, configurations, left_out: sample::LeftOut::default(), records: vec![record] };
        file.write(&batch).unwrap();
    }
    for number in 0..20 {
        let Recalled::Found { policies, .. } = file.read(id(NOON + number, number), None).unwrap() else {
            panic!()
        };
        assert_eq!(policies, (number >= 4).then(|| format!("policies {number}")));
    }
}

/// Whoever may put policies makes a configuration with each.
#[test]
fn configurations_in_memory_are_packed_and_too_long_ones_are_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let record = open(folder.path());
    for number in 0..20 {
        record.configured(number, &"policies ".repeat(100_000));
    }
    record.configured(20, &"policies ".repeat(1_000_000));
    let memory = record.shared.memory.lock();
    let bytes: usize = memory.configurations.values().map(|packed| packed.len()).sum();
    assert!(memory.configurations.keys().copied().eq(4..20) && bytes < 1 << 20, "{bytes}");
}

#[test]
fn a_damaged_file_is_put_aside_and_begun_anew() {
    for damage in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join(file::NAME), folder.path().join(DAMAGED));
        let record = open(folder.path());
        record.push(refusal(id(NOON, 1), "#a"));
        drop(record);
        let mut bytes = fs::read(&path).unwrap();
        match damage {
            0 => bytes = b"something else, and longer than nothing".to_vec(),
            1 => bytes.truncate(bytes.len() / 3),
            // The pages, not the head.
            _ => bytes[4_096..].iter_mut().for_each(|byte| *byte ^= 0x55),
        }
        fs::write(&path, &bytes).unwrap();
        let record = open(folder.path());
        assert!(aside.exists(), "damage {damage}");
        assert_eq!(found(&record, id(NOON, 1)), None);
        record.push(refusal(id(NOON, 2), "#a"));
        drop(record);
        assert!(found(&open(folder.path()), id(NOON, 2)).is_some());
    }
}

#[test]
fn without_a_file_refusals_wait_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let not_a_folder = folder.path().join("file");
    fs::write(&not_a_folder, b"").unwrap();
    let (record, why) = Record::open(&not_a_folder, NOON);
    assert!(why.unwrap().contains("record.redb"));
    record.push(refusal(id(NOON, 1), "#a"));
    assert!(!record.shared.turn(), "so the next pause is longer");
    assert!(found(&record, id(NOON, 1)).is_some());
    assert!(missing(&record, id(NOON, 2), "#a").0.contains("cannot be used at present"));
    fs::remove_file(&not_a_folder).unwrap();
    assert!(record.shared.turn());
    drop(record);
    assert!(found(&open(&not_a_folder), id(NOON, 1)).is_some());
}
