//! The RESP door for Redis clients: redis-cell's command, and Tidegate's own.
//!
//! | command | effect |
//! |---|---|
//! | `CL.THROTTLE key max_burst count period [quantity]` | charges a limit that the caller brings along, as redis-cell does |
//! | `TG.CHECK policy name value [name value ...] [COST n] [PRIORITY level] [PEEK] [TICKET]` | decides under a policy, or `*` for all that match |
//! | `TG.SETTLE ticket [COST n] [FAILED]` | settles a decision with what its work spent |
//! | `TG.RESET policy name value [name value ...]` | resets what one key has spent, and ends its block |
//! | `MULTI`, `EXEC`, `DISCARD` | keep commands, and run them together |
//! | `PING`, `ECHO`, `HELLO`, `AUTH`, `SELECT`, `CLIENT`, `COMMAND`, `CONFIG`, `INFO`, `QUIT` | as in Redis, as far as clients need them |
//!
//! Commands of one read are decided in turn and answered with one write. A wrong command gets an error; only bytes
//! that are no command close the connection.

mod connection;
mod own;
mod protocol;
mod redis;
mod session;
mod throttle;

use std::sync::Arc;

pub(crate) use self::session::RespDoor;
use crate::connections::{ConnectionPlace, Door, NotEncrypted, Stream};
use crate::options::Timeouts;

impl Door for RespDoor {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: std::net::SocketAddr,
        place: &Arc<ConnectionPlace>,
        timeouts: Timeouts,
    ) {
        let stream = match &self.tls {
            None => stream,
            Some(tls) => match Box::pin(tls.encrypt(stream, peer, place, timeouts)).await {
                Ok(stream) => stream,
                Err(NotEncrypted::PlainText(stream)) => {
                    return connection::refuse_plain_text(stream, place, timeouts).await;
                }
                Err(NotEncrypted::Cut(reason)) => return self.app.decider.metrics.connection_cut(reason),
                Err(NotEncrypted::Over) => return,
            },
        };
        connection::serve(stream, &self, place, timeouts).await;
    }
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    //! Parses commands and runs them, for the fuzz targets.

    use std::fmt;

    use tokio::runtime::Runtime;

    use super::protocol::{Next, Replies, next};
    use super::session::{self, Disposition, RespDoor, Session};
    use super::{own, redis};
    use crate::app::fuzzed;
    use crate::options::ServerOptions;

    /// The words of a command, and how many bytes they took.
    type Command<'b> = (Vec<&'b [u8]>, usize);

    /// Parses the first command: its words, and how many bytes they took; `None` if it is incomplete.
    ///
    /// # Errors
    /// What is wrong with bytes that are no command.
    pub fn resp_command(bytes: &[u8]) -> Result<Option<Command<'_>>, &'static str> {
        match next(bytes) {
            Next::Command(words, took) => Ok(Some((words.into_vec(), took))),
            Next::Incomplete => Ok(None),
            Next::Broken(what) => Err(what),
        }
    }

    /// A client without its connection, of a door of its own.
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
            let runtime = fuzzed::runtime();
            let app = runtime.block_on(fuzzed::app(policies, ServerOptions::default().clock));
            let session = Session::new(&app.access);
            Self { runtime, door: RespDoor::new(app, false, None), session }
        }

        /// Begins a new connection.
        pub fn connect_again(&mut self) {
            self.session = Session::new(&self.door.app.access);
        }

        /// Runs the first command. Returns the reply and how many bytes it took; `None` if no complete command comes
        /// first.
        pub fn run(&mut self, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
            let Next::Command(words, took) = next(bytes) else { return None };
            let (door, session, mut replies) = (&self.door, &mut self.session, Replies::default());
            let then = match words.first() {
                None => Disposition::Answered,
                Some(name) if session::concerns(session, name) => {
                    session::take(session, &words, &bytes[..took], &mut replies)
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
}
