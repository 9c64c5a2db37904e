//! One connection of a Redis client from accept to close.
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | idle between commands | [`Timeouts::idle`] | closed |
//! | a command that is not complete | [`Timeouts::head`] | an error, and closed |
//! | replies that are not read | [`Timeouts::unread`] | cut |

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::command::{MAX_BYTES, Next, next};
use super::reply::Replies;
use super::session::{RespDoor, Session};
use super::{own, redis};
use crate::connections::{Order, Place, Stage, now};
use crate::metrics::CutReason;
use crate::options::Timeouts;

/// How much is read at once.
const READ: usize = 16 << 10;
/// Replies that are written before the rest of what was read is answered: whoever sends much and reads nothing holds no more.
const FLUSH: usize = 64 << 10;
/// Longer timeouts count as a hundred years, since an `Instant` cannot hold them.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Serves one connection.
///
/// # Cancel safety
/// Dropping the future closes the socket at once.
pub(super) async fn serve(stream: TcpStream, door: &RespDoor, place: &Place, timeouts: Timeouts) {
    // Replies are sent whole; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let metrics = &door.app.engine.metrics;
    if place.is_reserved() {
        metrics.connection_cut(CutReason::full);
        let mut replies = Replies::default();
        replies.error("ERR", "max number of clients reached");
        let mut stream = stream;
        let _ = timeout(Duration::from_secs(2), stream.write_all(&replies.bytes)).await;
        return;
    }
    let session = Session { trusted: !door.app.needs_token(), ..Session::default() };
    let mut line =
        Line { stream, read: Vec::with_capacity(READ), replies: Replies::default(), place, timeouts };
    if let Some(reason) = line.run(door, session).await {
        metrics.connection_cut(reason);
    }
}

struct Line<'p> {
    stream: TcpStream,
    /// What was read and is not decided yet: at most the longest command and one read.
    read: Vec<u8>,
    replies: Replies,
    place: &'p Place,
    timeouts: Timeouts,
}

impl Line<'_> {
    /// Runs until the connection is over; returns why it was cut, if it was.
    async fn run(&mut self, door: &RespDoor, mut session: Session) -> Option<CutReason> {
        loop {
            let (stage, most) = match self.read.is_empty() {
                true => (Stage::Idle, self.timeouts.idle),
                false => (Stage::Head, self.timeouts.head),
            };
            self.place.note(stage, now());
            match self.fill(most).await {
                Filled::Some => {}
                Filled::End => return None,
                Filled::Late if stage == Stage::Idle => return None,
                Filled::Late => {
                    self.replies.error("ERR", "Protocol error: the rest of the command did not come in time");
                    let _ = self.send().await;
                    return Some(CutReason::head);
                }
                Filled::Ordered(Order::Yield) => return Some(CutReason::vacated),
                Filled::Ordered(_) => return None,
            }
            self.place.note_busy();
            let mut done = 0;
            loop {
                match next(&self.read[done..]) {
                    Next::Command(words, took) => {
                        done += took;
                        if !words.is_empty() {
                            let _in_flight = door.app.begin_request();
                            if !redis::run(door, &mut session, &words, &mut self.replies) {
                                own::run(door, &session, &words, &mut self.replies).await;
                            }
                        }
                    }
                    Next::Incomplete => break,
                    Next::Broken(what) => {
                        self.replies.error("ERR", &format!("Protocol error: {what}"));
                        session.closing = true;
                    }
                }
                if session.closing {
                    break;
                }
                if self.replies.bytes.len() >= FLUSH && self.send().await.is_none() {
                    return Some(CutReason::unread);
                }
            }
            self.read.drain(..done);
            if self.send().await.is_none() {
                return Some(CutReason::unread);
            }
            if session.closing {
                let _ = self.stream.shutdown().await;
                return None;
            }
        }
    }

    /// Reads more, for so long at most.
    async fn fill(&mut self, most: Duration) -> Filled {
        let Self { stream, read, place, .. } = self;
        debug_assert!(read.len() < MAX_BYTES, "a command that is too long is refused before more is read");
        read.reserve(READ);
        let ordered = poll_fn(|cx| match place.order(cx.waker()) {
            Order::Stay => Poll::Pending,
            order => Poll::Ready(order),
        });
        tokio::select! {
            // What has arrived is answered before an order is obeyed.
            biased;
            filled = timeout(most.min(NEVER), stream.read_buf(read)) => match filled {
                Ok(Ok(0) | Err(_)) => Filled::End,
                Ok(Ok(_)) => Filled::Some,
                Err(_) => Filled::Late,
            },
            order = ordered => Filled::Ordered(order),
        }
    }

    /// Writes all replies; `None` when the peer does not read them.
    async fn send(&mut self) -> Option<()> {
        if self.replies.bytes.is_empty() {
            return Some(());
        }
        // Usually the system takes all of it at once, and the stage need not be noted.
        let at_once = self.stream.try_write(&self.replies.bytes).unwrap_or(0);
        if at_once < self.replies.bytes.len() {
            self.place.note(Stage::Stalled, now());
            let rest = self.stream.write_all(&self.replies.bytes[at_once..]);
            timeout(self.timeouts.unread.min(NEVER), rest).await.ok()?.ok()?;
            self.place.note_busy();
        }
        self.replies.bytes.clear();
        // A long answer does not keep its memory for a client that then asks little.
        self.replies.bytes.shrink_to(FLUSH);
        Some(())
    }
}

/// What came of reading.
enum Filled {
    Some,
    /// The peer has closed, or is gone.
    End,
    /// Nothing came in time.
    Late,
    /// The server wants something of the connection.
    Ordered(Order),
}
