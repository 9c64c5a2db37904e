//! Functions for the fuzz targets: parse commands, and run the commands of a client.

use std::fmt;

use tokio::runtime::Runtime;

use super::command::{Next, next};
use super::reply::Replies;
use super::session::{RespDoor, Session};
use super::transaction::{self, Disposition};
use super::{own, redis};
use crate::fuzzed_app;
use crate::options::ServerOptions;

/// The result of parsing the first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespBytes {
    /// A command, and how many bytes it took.
    Command {
        /// Its words.
        words: Vec<Vec<u8>>,
        /// The number of bytes.
        took: usize,
    },
    /// The beginning of a command.
    Incomplete,
    /// Not a command.
    Broken,
}

/// Parses the first command as the door does.
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

/// A client of a door, without its connection. Two clients made from one policy file do not share counters.
pub struct RespClient {
    runtime: Runtime,
    door: RespDoor,
    session: Session,
}

impl fmt::Debug for RespClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespClient").finish_non_exhaustive()
    }
}

impl RespClient {
    /// Makes a door with the policies of this file, and a client of it.
    ///
    /// # Panics
    /// If the file has errors.
    #[must_use]
    pub fn new(policies: &str) -> Self {
        let runtime = fuzzed_app::runtime();
        let app = runtime.block_on(fuzzed_app::app(policies, ServerOptions::default().clock));
        let session = Session::new(&app.access);
        Self { runtime, door: RespDoor::new(app, false, None), session }
    }

    /// Begins a new connection.
    pub fn connect_again(&mut self) {
        self.session = Session::new(&self.door.app.access);
    }

    /// Runs the first command in these bytes like a connection. Returns the reply and how many bytes the command took;
    /// `None` if the bytes do not begin with a complete command.
    pub fn run(&mut self, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
        let Next::Command(words, took) = next(bytes) else { return None };
        let (door, session, mut replies) = (&self.door, &mut self.session, Replies::default());
        let then = match words.first() {
            None => Disposition::Answered,
            Some(name) if transaction::concerns(session, name) => {
                transaction::take(session, &words, &bytes[..took], &mut replies)
            }
            Some(_) => Disposition::Run,
        };
        match then {
            Disposition::Answered => {}
            Disposition::Run if redis::run(door, session, &words, &mut replies) => {}
            Disposition::Run => self.runtime.block_on(own::run(door, session, &words, &mut replies)),
            Disposition::RunAll(kept) => {
                let mut rest = &*kept;
                while let Some((reply, took)) = self.run(rest) {
                    replies.bytes.extend(reply);
                    rest = &rest[took..];
                }
            }
        }
        Some((replies.bytes, took))
    }
}
