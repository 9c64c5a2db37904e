//! What the fuzz target calls.

use super::command::{Next, next};

/// What the first bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespBytes {
    /// A command, and how many bytes it took.
    Command {
        /// Its words.
        words: Vec<Vec<u8>>,
        /// The bytes.
        took: usize,
    },
    /// The begin of one.
    Incomplete,
    /// No command.
    Broken,
}

/// Reads the first command as the door does.
#[must_use]
pub fn resp_bytes(bytes: &[u8]) -> RespBytes {
    match next(bytes) {
        Next::Command(words, took) => {
            RespBytes::Command { words: words.iter().map(|word| word.to_vec()).collect(), took }
        }
        Next::Incomplete => RespBytes::Incomplete,
        Next::Broken(_) => RespBytes::Broken,
    }
}
