//! Full disks and files that disappear: checks continue, and their changes are written once that is possible again.

use crate::common;

use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::{Other, allowed, daily, left, open, options, take, until};
use tidegate::store::{Durable, StoreError};
use tidegate_disk::{Change, DiskStore};

/// Enough room for 100,000 keys that none is evicted.
const ROOM: usize = 2_000_000;

/// Fills the file until it may not grow, continues, and prints what happens.
#[test]
#[ignore = "a child of the test below"]
fn grows_until_it_may_not() {
    let Some(folder) = common::folder() else { return };
    let options = options(&folder).keys(ROOM).interval(Duration::from_millis(2));
    let told = |change: &Change| println!("change {} {}", change.up, change.reason);
    let store = DiskStore::open(options.on_change(told)).unwrap();
    let two = daily(2);
    for key in 0..100_000_u32 {
        assert!(allowed(&store, &key.to_le_bytes(), &two));
    }
    until("the disk is full", || store.flush().is_err());
    assert!(store.flush().unwrap_err().to_string().contains("without its latest changes"));
    assert!((0..100_000_u32).all(|key| left(&store, &key.to_le_bytes(), &two) == 1), "the old state is kept");
    assert!((0..10_000_u32).all(|key| allowed(&store, &key.to_le_bytes(), &two)), "and checks go on");
    let strict = take(&store, b"strict", &two, Durable::Strict);
    assert!(matches!(strict, Err(StoreError::Unavailable { .. })), "{strict:?}");
    assert_eq!(left(&store, b"strict", &two), 2, "what cannot be kept is not charged");
    println!("full {}", store.health().failures);
    until("there is room again", || store.flush().is_ok());
    assert!(take(&store, b"strict", &two, Durable::Strict).unwrap().allowed);
    println!("through");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_disk_that_is_full_stops_no_check_and_loses_nothing_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    // Limits files to two megabytes, as a quota does, and ignores the signal that would end the process.
    let before = "trap '' XFSZ; ulimit -S -f 4096;";
    let mut other = Other::start("outages::grows_until_it_may_not", folder.path(), before);
    let gone = other.says("change").unwrap();
    assert!(gone.starts_with("false "), "{gone}");
    let failures: u64 = other.says("full").unwrap().parse().unwrap();
    assert!(failures > 0);
    let pid = other.id().to_string();
    assert!(Command::new("prlimit").args(["--fsize=unlimited", "--pid", &pid]).status().unwrap().success());
    let back = other.says("change").unwrap();
    assert!(back.starts_with("true "), "one line for each change: {back}");
    other.says("through").unwrap();
    assert_eq!(other.kill(), Vec::<String>::new());
    let store = DiskStore::open(options(folder.path()).keys(ROOM)).unwrap();
    let two = daily(2);
    for key in 0..100_000_u32 {
        let expected = u64::from(key >= 10_000);
        assert_eq!(left(&store, &key.to_le_bytes(), &two), expected, "key {key}");
    }
    assert_eq!(left(&store, b"strict", &two), 1);
}

#[test]
fn a_file_that_was_deleted_is_made_again_with_everything() {
    let (folder, two) = (tempfile::tempdir().unwrap(), daily(2));
    let store = open(folder.path());
    assert!(allowed(&store, b"before", &two));
    store.flush().unwrap();
    std::fs::remove_file(store.path()).unwrap();
    let gone = store.flush().unwrap_err();
    assert!(gone.to_string().contains("moved away or deleted"), "{gone}");
    assert!(allowed(&store, b"after", &two));
    until("the file is there again", || store.flush().is_ok());
    assert_eq!(store.health().error, None);
    store.close().unwrap();
    let store = open(folder.path());
    assert_eq!([left(&store, b"before", &two), left(&store, b"after", &two)], [1, 1]);
}

#[test]
fn a_file_that_another_store_has_taken_is_left_alone() {
    let (folder, two) = (tempfile::tempdir().unwrap(), daily(2));
    let store = open(folder.path());
    std::fs::remove_file(store.path()).unwrap();
    let other = open(folder.path());
    assert!(allowed(&other, b"key", &two));
    other.flush().unwrap();
    assert!(store.flush().is_err());
    assert!(allowed(&store, b"key", &two), "checks go on");
    let error = store.close().unwrap_err();
    assert!(error.to_string().contains("another process has the file open"), "{error}");
    drop(store);
    assert_eq!(left(&other, b"key", &two), 1);
    other.close().unwrap();
    assert_eq!(left(&open(folder.path()), b"key", &two), 1);
}

#[test]
fn a_closed_store_goes_on_in_memory_and_is_strict_no_more() {
    let (folder, two) = (tempfile::tempdir().unwrap(), daily(2));
    let store = open(folder.path());
    store.close().unwrap();
    assert!(allowed(&store, b"key", &two));
    let strict = take(&store, b"key", &two, Durable::Strict);
    assert_eq!(
        strict.unwrap_err(),
        StoreError::Unavailable { reason: "the disk: the store is closed".to_owned() }
    );
    // The file is no longer locked.
    open(folder.path()).close().unwrap();
}

/// A panic in the callback for changes used to end the writer thread; then `flush`, `close` and strict steps waited for
/// ever.
#[test]
fn a_panic_in_what_is_told_stops_nobody() {
    let (folder, two) = (tempfile::tempdir().unwrap(), daily(2));
    let told = |_: &Change| panic!("a mistake of the program's");
    let store = DiskStore::open(options(folder.path()).on_change(told)).unwrap();
    assert!(allowed(&store, b"key", &two));
    std::fs::remove_file(store.path()).unwrap();
    assert!(store.flush().is_err());
    until("the file is there again", || store.flush().is_ok());
    assert!(take(&store, b"strict", &two, Durable::Strict).unwrap().allowed);
    store.close().unwrap();
    assert_eq!(left(&open(folder.path()), b"key", &two), 1);
}

/// The callback waits for the disk on the writer thread itself: each call fails with the reason, and the callback may
/// drop the last clone of the store.
#[test]
fn what_is_told_cannot_wait_for_the_disk() {
    let (folder, two) = (tempfile::tempdir().unwrap(), daily(2));
    let held = Arc::new(Mutex::new(None::<DiskStore>));
    let (inside, (say, said)) = (Arc::clone(&held), mpsc::channel());
    let told = move |_: &Change| {
        let Some(store) = inside.lock().unwrap().take() else { return };
        let strict = take(&store, b"strict", &daily(2), Durable::Strict).unwrap_err().to_string();
        say.send([strict, store.flush().unwrap_err().to_string(), store.close().unwrap_err().to_string()])
            .unwrap();
    };
    let store = DiskStore::open(options(folder.path()).on_change(told)).unwrap();
    let path = store.path().to_owned();
    assert!(allowed(&store, b"key", &two));
    *held.lock().unwrap() = Some(store.clone());
    std::fs::remove_file(&path).unwrap();
    let _ = store.flush();
    let said = said.recv().unwrap();
    assert!(
        said.iter().all(|said| said.contains("on the thread that writes") || said.contains("moved away")),
        "{said:?}"
    );
    let _ = store.close();
}
