//! Exit codes, and the errors that lead to them.

use std::process::ExitCode;

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

/// A mistake of the caller in the command line or in a file. The exit code is 2; for all other failures it is 1.
#[derive(Debug)]
pub(crate) struct Mistake(pub(crate) String);

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}

/// Mistakes of the caller that have been printed already. The exit code is 2.
#[derive(Debug)]
pub(crate) struct AlreadyPrinted;

impl std::fmt::Display for AlreadyPrinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("mistakes were found")
    }
}

impl std::error::Error for AlreadyPrinted {}
