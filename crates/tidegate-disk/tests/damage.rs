//! Files that are damaged, cut, foreign or in use: opening fails with an error that says so. It never panics or makes a
//! file worse.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Other, allowed, daily, left, open, options};
use redb::{Database, TableDefinition};
use tidegate_disk::{DiskStore, OpenError};

const PAGE: usize = 4096;

const KEYS: u32 = 3000;

/// Enough room that no key is evicted.
const ROOM: usize = 100_000;

/// The file of a store in a folder.
fn file_in(folder: &Path) -> PathBuf {
    folder.join("tidegate.redb")
}

/// Makes a file with several writes, and returns its bytes.
fn written(folder: &Path) -> Vec<u8> {
    let two = daily(2);
    let store = DiskStore::open(options(folder).keys(ROOM)).unwrap();
    for key in 0..KEYS {
        assert!(allowed(&store, &key.to_le_bytes(), &two));
        if key % 500 == 0 {
            store.flush().unwrap();
        }
    }
    let path = store.path().to_owned();
    store.close().unwrap();
    fs::read(path).unwrap()
}

/// Opens altered bytes. Returns whether the store opened: then it must know all keys of the file, except for those of
/// the last write. Otherwise the error must name the fault and the file.
fn opens(bytes: &[u8], what: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = file_in(folder.path());
    fs::write(&path, bytes).unwrap();
    match DiskStore::open(options(folder.path()).keys(ROOM)) {
        Ok(store) => {
            let two = daily(2);
            let known = (0..KEYS).filter(|key| left(&store, &key.to_le_bytes(), &two) == 1).count();
            // The last write happens on closing; before it 2501 keys were written.
            assert!(known == KEYS as usize || known >= 2501, "{what}: {known} keys are left");
            true
        }
        Err(error) => {
            let told = error.to_string();
            assert!(
                matches!(
                    error,
                    OpenError::Damaged { .. } | OpenError::Foreign { .. } | OpenError::Version { .. }
                ),
                "{what}: {told}"
            );
            assert!(told.contains(&path.display().to_string()) && told.contains("move"), "{what}: {told}");
            assert!(path.exists(), "{what}: it is left for whoever looks into it");
            false
        }
    }
}

/// The pages to try: all of them if `TIDEGATE_ALL_PAGES` is set, else a sample.
fn pages(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let all = bytes.len() / PAGE;
    let step = if std::env::var_os("TIDEGATE_ALL_PAGES").is_some() { 1 } else { (all / 16).max(1) };
    (0..all).filter(move |page| page % step == 0 || *page < 8)
}

#[test]
fn bits_that_are_flipped_in_any_page_are_found_or_meant_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = written(folder.path());
    let mut found = 0;
    for page in pages(&bytes) {
        for at in [0, 1, 9, 64, 200, 2048, 4095] {
            let mut altered = bytes.clone();
            altered[page * PAGE + at] ^= 0x10;
            found += usize::from(!opens(&altered, &format!("page {page}, byte {at}")));
        }
    }
    assert!(found > 0, "some are found");
}

#[test]
fn a_file_that_is_cut_in_any_page_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = written(folder.path());
    for page in pages(&bytes).filter(|page| *page > 0) {
        opens(&bytes[..page * PAGE], &format!("cut at page {page}"));
        opens(&bytes[..page * PAGE + 100], &format!("cut in page {page}"));
    }
}

/// Regression: such a file was taken for one in which nothing was ever stored, so every limit started full, without a
/// word.
#[test]
fn a_file_that_is_cut_to_nothing_is_refused() {
    assert!(!opens(b"", "cut to nothing"));
}

/// A file gets its name after its first write is on disk. Whatever a crash leaves of it before, the next start makes it.
#[test]
fn a_crash_before_the_first_write_leaves_no_file_that_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = written(folder.path());
    for left in [&whole[..0], &whole[..1], &whole[..PAGE], &whole] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tidegate.redb.new"), left).unwrap();
        assert!(open(folder.path()).opened().new, "{} bytes", left.len());
    }
}

#[test]
fn files_of_others_are_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_in(folder.path());
    let refused = || DiskStore::open(options(folder.path())).unwrap_err();
    fs::write(
        &path,
        "a letter to somebody, of some length, so that it is no header that was cut off in the middle",
    )
    .unwrap();
    assert!(matches!(refused(), OpenError::Foreign { .. }), "{}", refused());
    assert!(fs::read_to_string(&path).unwrap().starts_with("a letter"));
    fs::remove_file(&path).unwrap();
    let table: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("store");
    let alter = |name: &str, number: u64| {
        let engine = Database::create(&path).unwrap();
        let writing = engine.begin_write().unwrap();
        writing.open_table(table).unwrap().insert(name, &number.to_le_bytes()[..]).unwrap();
        writing.commit().unwrap();
    };
    alter("of somebody else", 1);
    assert!(matches!(refused(), OpenError::Foreign { .. }), "{}", refused());
    fs::remove_file(&path).unwrap();
    open(folder.path()).close().unwrap();
    alter("probe", 1);
    assert!(refused().to_string().contains("hashes keys differently"), "{}", refused());
    alter("form", 2);
    assert!(matches!(refused(), OpenError::Version { .. }), "{}", refused());
    assert!(refused().to_string().contains("its form is 2"), "{}", refused());
}

#[test]
fn what_options_say_that_cannot_be_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |options| DiskStore::open(options).unwrap_err().to_string();
    let long = options(folder.path()).interval(std::time::Duration::ZERO);
    assert_eq!(refused(long), "a flush interval of 0ns cannot be kept; use 1 ms to 1 h");
    assert!(
        refused(options(folder.path()).keys(0)).contains('0'),
        "{}",
        refused(options(folder.path()).keys(0))
    );
    for retry in [std::time::Duration::ZERO, std::time::Duration::MAX] {
        let told = refused(options(folder.path()).retry(retry));
        assert!(told.contains("a write that failed") && told.contains("use 1 ms to 1 h"), "{told}");
    }
    let missing = folder.path().join("no/such/folder");
    let told = refused(options(&missing));
    assert!(told.contains("no/such/folder") && told.contains("make it"), "{told}");
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(refused(options(&file)).contains("cannot be used"));
    assert!(refused(options(&file.join("below"))).contains("cannot be used"));
    // A missing folder is created if its parent exists.
    open(&folder.path().join("made")).close().unwrap();
    let told = refused(options(&folder.path().join("made")).full_keys(true));
    assert!(told.contains("full_keys: false"), "{told}");
}

#[cfg(unix)]
#[test]
fn nobody_else_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let below = folder.path().join("data");
    let path = open(&below).path().to_owned();
    assert_eq!((mode(&below), mode(&path)), (0o700, 0o600));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    open(&below).close().unwrap();
    assert_eq!(mode(&path), 0o600);
}

/// A path named by mistake: the file behind a link used to be changed to mode 0600 before it was known to be foreign.
#[cfg(unix)]
#[test]
fn files_of_others_keep_their_mode_and_links_are_not_followed() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (target, path) = (folder.path().join("target"), file_in(folder.path()));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::write(&target, vec![b'x'; 10_000]).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
    symlink(&target, &path).unwrap();
    let told = DiskStore::open(options(folder.path())).unwrap_err().to_string();
    assert!(told.contains("symbolic link"), "{told}");
    fs::remove_file(&path).unwrap();
    fs::rename(&target, &path).unwrap();
    assert!(matches!(DiskStore::open(options(folder.path())), Err(OpenError::Foreign { .. })));
    assert_eq!(mode(&path), 0o644);
}

#[cfg(unix)]
#[test]
fn a_folder_in_which_everybody_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = DiskStore::open(options(folder.path())).unwrap_err();
    let why = std::error::Error::source(&refused).unwrap().to_string();
    assert!(why.contains("0777") && why.contains("chmod o-w"), "{why}");
    open(&folder.path().join("below")).close().unwrap();
}

/// Opens the store and keeps it open.
#[test]
#[ignore = "a child of the test below"]
fn keeps_it_open() {
    let Some(folder) = common::folder() else { return };
    let store = open(&folder);
    println!("open {}", store.opened().new);
    loop {
        std::thread::park();
    }
}

#[test]
fn a_second_process_is_told_that_the_file_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = Other::start("damage::keeps_it_open", folder.path(), "");
    assert_eq!(other.says("open").unwrap(), "true");
    let refused = DiskStore::open(options(folder.path())).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    other.kill();
    let store = open(folder.path());
    let refused = DiskStore::open(options(folder.path())).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }), "nor twice in one process: {refused}");
    drop(store);
    open(folder.path()).close().unwrap();
}
