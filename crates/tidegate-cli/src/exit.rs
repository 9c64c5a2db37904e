//! Exit codes, and the errors that lead to them.

use std::process::ExitCode;

/// How a verb ended when nothing broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done: 0.
    Done,
    /// The answer is no: 1.
    No,
    /// The words or the file are wrong: 2.
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

/// The caller's mistake: wrong words or a wrong file. Ends with exit code 2, as against 1 for all other failures.
#[derive(Debug)]
pub(crate) struct Mistake(pub(crate) String);

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}

/// The caller's mistakes, which were printed where they were found. Ends with exit code 2.
#[derive(Debug)]
pub(crate) struct Told;

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("mistakes were found")
    }
}

impl std::error::Error for Told {}
