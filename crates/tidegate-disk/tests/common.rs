//! Helpers for the tests of the store on disk.

#![allow(dead_code, reason = "each test uses some of it")]

use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{Charge, ChargeRules, Durable, Executed, Op, Step, Store as _, StoreError};
use tidegate::{Cost, Quota, Tick};
use tidegate_disk::{DiskOptions, DiskStore};

/// An interval in which nothing is written unless a test asks for it.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

pub(crate) const NOW: Tick = Tick::from_secs(1_000_000);

/// Options for a small table that is written when the test says so.
pub(crate) fn options(folder: &Path) -> DiskOptions {
    DiskOptions::new(folder).keys(1000).interval(NEVER).retry(Duration::from_millis(20))
}

pub(crate) fn open(folder: &Path) -> DiskStore {
    DiskStore::open(options(folder)).unwrap()
}

pub(crate) fn daily(units: u64) -> Arc<Quota> {
    Arc::new(Quota::per_day(units).gcra().unwrap())
}

/// Charges one unit of a key.
pub(crate) fn take(
    store: &DiskStore,
    key: &[u8],
    quota: &Arc<Quota>,
    durable: Durable,
) -> Result<Executed, StoreError> {
    let rules = ChargeRules { durable, ..ChargeRules::new(0) };
    let charges = [Charge { rules, ..Charge::new(key, quota, Cost::ONE) }];
    store.blocking_execute(&Step::new(NOW, Op::Take, &charges))
}

/// Charges one unit of a key and says whether it was granted.
pub(crate) fn allowed(store: &DiskStore, key: &[u8], quota: &Arc<Quota>) -> bool {
    take(store, key, quota, Durable::Interval).unwrap().allowed
}

/// Returns a key's remaining units.
pub(crate) fn left(store: &DiskStore, key: &[u8], quota: &Arc<Quota>) -> u64 {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    let peeked = store.blocking_execute(&Step::new(NOW, Op::Peek, &charges)).unwrap();
    peeked.lines[0].decision.standing.remaining
}

/// Checks a condition repeatedly until it holds; for conditions that are sure to hold eventually.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
    }
    panic!("it did not come true that {what}");
}

/// The variable in which a child finds its folder.
const FOLDER: &str = "TIDEGATE_TEST_FOLDER";

/// A child process: this test program again, running one of its ignored tests. Killed when it is dropped.
pub(crate) struct Other {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Starts an ignored test of this program in another process. `before` is shell code that runs first.
    pub(crate) fn start(test: &str, folder: &Path, before: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("sh");
        let script = format!("{before} exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(program).args([test, "--exact", "--ignored", "--nocapture"]);
        command.env(FOLDER, folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    /// Returns the rest of the next line that starts with `word`; `None` when the output has ended.
    pub(crate) fn says(&mut self, word: &str) -> Option<String> {
        for line in self.said.by_ref() {
            if let Some(rest) = line.ok()?.strip_prefix(word) {
                return Some(rest.trim().to_owned());
            }
        }
        None
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as `kill -9` does, and returns all of its output so far.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said.by_ref().map_while(Result::ok).collect()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the folder that a child was given; `None` if this process was not started as a child.
pub(crate) fn folder() -> Option<std::path::PathBuf> {
    std::env::var_os(FOLDER).map(Into::into)
}
