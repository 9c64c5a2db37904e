//! Exit codes, and errors of several verbs.

use std::process::ExitCode;

use tidegate_sim::grouped;

/// The bytes that a table takes for each key of its capacity; twice that if keys are stored in full.
const BYTES: u64 = 24;
/// The visitors of a large site in a day.
const USUAL: usize = 1_000_000;

/// How a verb ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success: 0.
    Done,
    /// The answer is no: 1.
    No,
    /// The command line or the file is wrong: 2.
    Bad,
    /// A threshold was not met: 3.
    Threshold,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::No => 1,
            Exit::Bad => 2,
            Exit::Threshold => 3,
        })
    }
}

/// A mistake of the caller in the command line or in a file: exit code 2.
#[derive(Debug)]
pub(crate) struct Mistake(pub(crate) String);

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}

/// Printed already: exit code 2.
#[derive(Debug)]
pub(crate) struct AlreadyPrinted;

impl std::fmt::Display for AlreadyPrinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("mistakes were found")
    }
}

impl std::error::Error for AlreadyPrinted {}

/// Names the option and the memory that `tables` tables need for this many keys.
pub(crate) fn no_room(word: &str, keys: usize, tables: usize) -> anyhow::Error {
    let bytes = (keys as u64).saturating_mul(BYTES).saturating_mul(tables as u64);
    let tables = if tables == 1 { "a table".to_owned() } else { format!("{tables} tables") };
    let fewer = USUAL.min(keys / 10).max(1);
    anyhow::anyhow!(
        "{word} {keys}: the system has no memory for {tables} of so many keys, some {} MB or more; use fewer, such as {fewer}",
        grouped(bytes.div_ceil(1_000_000))
    )
}
