//! Serves one connection of a Redis client from accept to close.
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | a command, from accept or from its first byte | [`Timeouts::head`] | an error if any of it came, and closed |
//! | idle between commands | [`Timeouts::idle`] | closed |
//! | replies that are not read | [`Timeouts::unread`], less if others hold too much for peers that do not read | cut |
//! | the reply to a wrong token | [`WRONG_TOKEN`] | sent |
//! | commands since `MULTI` | as long as those | cut if all connections hold too much |
//! | closing, so that the last reply arrives | [`LINGER`] | cut |

use std::mem;
use std::pin::{Pin, pin};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use super::protocol::{MAX_BYTES, Next, Replies, next};
use super::session::{self, Disposition, RespDoor, Session};
use super::{own, redis};
use crate::connections::{
    ConnectionPlace, ConnectionStage, LINGER, NEVER, Order, Stream, after, after_others, linger, now,
};
use crate::metrics::{CutReason, Transport};
use crate::options::Timeouts;
use crate::problem::WRONG_TOKEN;

/// How many bytes are read at a time.
const READ: usize = 16 << 10;

/// How many bytes of replies are gathered before they are sent, so that a client that sends much and reads nothing
/// makes the server hold no more.
const FLUSH: usize = 64 << 10;

/// How many commands run before others have their turn.
const SLICE: usize = 64;

/// Serves one connection.
///
/// # Cancel safety
/// Dropping the future closes the socket at once.
pub(super) async fn serve(stream: Stream, door: &RespDoor, place: &ConnectionPlace, timeouts: Timeouts) {
    stream.send_at_once();
    let (read, replies) = (Vec::new(), Replies::default());
    let mut connection = Connection { stream, read, replies, place, timeouts };
    let serving = async {
        let ended = if place.is_reserved() {
            connection.replies.error("ERR", "max number of clients reached");
            RespEnd::Full
        } else {
            let session = Session::new(&door.app.access);
            connection.run(door, session).await
        };
        if let Some(reason) = ended.cut() {
            door.app.decider.metrics.connection_cut(reason);
        }
        connection.close(&ended).await;
    };
    tokio::select! {
        biased;
        // Interrupts any wait, even a command that is being run.
        () = place.ordered(Order::Cut) => {}
        () = serving => {}
    }
}

/// Answers a plain-text caller of an encrypted door with an error, and closes.
pub(super) async fn refuse_plain_text(stream: Stream, place: &ConnectionPlace, timeouts: Timeouts) {
    let (read, replies) = (Vec::new(), Replies::default());
    let mut connection = Connection { stream, read, replies, place, timeouts };
    connection
        .replies
        .error("ERR", "this address is served over TLS; use redis-cli --tls, or rediss:// in a URL");
    connection.close(&RespEnd::Done).await;
}

struct Connection<'p> {
    stream: Stream,
    /// Bytes that were read and not decided yet: at most the longest command and one read. At `EXEC`, the commands
    /// since `MULTI` come before.
    read: Vec<u8>,
    replies: Replies,
    place: &'p ConnectionPlace,
    timeouts: Timeouts,
}

/// Why serving a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RespEnd {
    /// Everything was sent: the client quit, or sent bytes that are not a command, or the server stops and has
    /// answered what came before.
    Done,
    /// All places are taken.
    Full,
    /// The peer is gone.
    Gone,
    /// It idled for too long, or was idle when the server stopped.
    Idle,
    /// A command was incomplete when its time was over; `begun`: whether any of it came.
    Late { begun: bool },
    /// The replies were not read in time.
    Unread,
    /// The place was given to another connection, in this stage.
    Vacated(ConnectionStage),
}

impl RespEnd {
    const fn cut(self) -> Option<CutReason> {
        match self {
            Self::Done | Self::Gone | Self::Idle => None,
            Self::Full => Some(CutReason::full),
            Self::Late { .. } => Some(CutReason::head),
            Self::Unread => Some(CutReason::unread),
            Self::Vacated(_) => Some(CutReason::vacated),
        }
    }
}

impl Connection<'_> {
    async fn run(&mut self, door: &RespDoor, mut session: Session) -> RespEnd {
        // The first command's time begins with the connection.
        let (mut stage, mut since) = (ConnectionStage::Head, now());
        // One timer for all reads, reset only for one that ends before it fires.
        let mut timer = pin!(sleep_until(after(since, self.timeouts.head)));
        // The bytes of commands since `MULTI`.
        let mut held = 0;
        loop {
            let order = self.place.order_now();
            if order >= Order::Yield {
                return RespEnd::Vacated(stage);
            }
            // A stopping server answers what has arrived, and nothing later.
            let last = order == Order::Finish;
            let filled = if last {
                self.fill_at_once()
            } else {
                self.place.note(stage, since);
                let most =
                    if stage == ConnectionStage::Idle { self.timeouts.idle } else { self.timeouts.head };
                self.fill(after(since, most), timer.as_mut()).await
            };
            match filled {
                Filled::Some => {}
                Filled::Ordered => continue,
                Filled::Nothing => return RespEnd::Idle,
                Filled::End => return RespEnd::Gone,
                Filled::Late if stage == ConnectionStage::Idle => return RespEnd::Idle,
                Filled::Late => return RespEnd::Late { begun: !self.read.is_empty() },
            }
            let came = now();
            self.place.note_busy();
            let answered = match self.answer(door, &mut session).await {
                Ok(answered) => answered,
                Err(ended) => return ended,
            };
            if session.closing || last {
                return RespEnd::Done;
            }
            if held > 0 || session.queued.is_some() {
                held = session.queued.as_ref().map_or(0, |queued| queued.commands.capacity());
                self.place.hold(held);
            }
            if self.read.is_empty() {
                (stage, since) = (ConnectionStage::Idle, now());
            } else if answered > 0 || stage == ConnectionStage::Idle {
                // The beginning of a command: its time begins now, and further parts do not extend it.
                (stage, since) = (ConnectionStage::Head, came);
            }
        }
    }

    /// Runs complete commands and sends the replies. Returns how many bytes they took.
    async fn answer(&mut self, door: &RespDoor, session: &mut Session) -> Result<usize, RespEnd> {
        let mut done = 0;
        session.look_again(&door.app.access);
        while self.run_commands(door, session, &mut done).await {
            if mem::take(&mut session.guessed) {
                self.wait_for_guess().await?;
            }
            self.send().await?;
        }
        self.read.drain(..done);
        if !self.replies.bytes.is_empty() {
            after_others().await;
        }
        self.send().await?;
        Ok(done)
    }

    /// Runs commands until replies must be sent. Returns whether there may be more. Adds the bytes that they took to
    /// `done`.
    async fn run_commands(&mut self, door: &RespDoor, session: &mut Session, done: &mut usize) -> bool {
        // One request for all commands: one is answered at a time.
        let _in_flight = door.app.begin_request(Transport::resp);
        let mut run: usize = 0;
        loop {
            run += 1;
            if run.is_multiple_of(SLICE) {
                // Yields until the runtime has looked at the sockets, which it otherwise does after 61 tasks.
                tokio::task::yield_now().await;
            }
            let mut kept = Vec::new();
            match next(&self.read[*done..]) {
                Next::Command(words, took) => {
                    let sent = &self.read[*done..*done + took];
                    *done += took;
                    let then = match words.first() {
                        None => Disposition::Answered,
                        Some(name) if session::concerns(session, name) => {
                            session::take(session, &words, sent, &mut self.replies)
                        }
                        Some(_) => Disposition::Run,
                    };
                    match then {
                        Disposition::Answered => {}
                        Disposition::Run if redis::run(door, session, &words, &mut self.replies) => {}
                        Disposition::Run => own::run(door, session, &words, &mut self.replies).await,
                        Disposition::RunAll(commands) => kept = commands,
                    }
                }
                Next::Incomplete => return false,
                Next::Broken(what) => {
                    self.replies.error("ERR", &format!("Protocol error: {what}"));
                    session.closing = true;
                }
            }
            if !kept.is_empty() {
                // The transaction's commands come next. They overwrite ones that were run, so that the bytes after
                // them are not moved at each `EXEC`.
                let from = done.saturating_sub(kept.len());
                self.read.splice(from..*done, kept);
                *done = from;
            }
            if session.guessed {
                return true;
            }
            // A connection with many pending commands gives up its place between two of them.
            if session.closing || self.place.order_now() >= Order::Yield {
                return false;
            }
            if self.replies.bytes.len() >= FLUSH {
                return true;
            }
        }
    }

    /// Waits before the answer to a wrong token. Meanwhile the place can be lost like an idle one's, so guesses keep
    /// nobody out.
    async fn wait_for_guess(&self) -> Result<(), RespEnd> {
        self.place.note(ConnectionStage::Idle, now());
        tokio::select! {
            biased;
            () = self.place.ordered(Order::Yield) => return Err(RespEnd::Vacated(ConnectionStage::Idle)),
            () = sleep(WRONG_TOKEN) => {}
        }
        self.place.note_busy();
        Ok(())
    }

    /// Reads more bytes, until `until`.
    async fn fill(&mut self, until: Instant, mut timer: Pin<&mut Sleep>) -> Filled {
        let Self { stream, read, place, .. } = self;
        debug_assert!(read.len() < MAX_BYTES, "a command that is too long is refused before more is read");
        read.reserve(READ);
        if until < timer.deadline() {
            timer.as_mut().reset(until);
        }
        let late = async {
            loop {
                timer.as_mut().await;
                if until <= now() {
                    break;
                }
                timer.as_mut().reset(until);
            }
        };
        tokio::select! {
            biased;
            filled = stream.read_buf(read) => match filled {
                Ok(0) | Err(_) => Filled::End,
                Ok(_) => Filled::Some,
            },
            () = late => Filled::Late,
            () = place.ordered(Order::Finish) => Filled::Ordered,
        }
    }

    fn fill_at_once(&mut self) -> Filled {
        self.read.reserve(READ);
        match self.stream.try_read_buf(&mut self.read) {
            Ok(1..) => Filled::Some,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Filled::Nothing,
            Ok(0) | Err(_) => Filled::End,
        }
    }

    async fn send(&mut self) -> Result<(), RespEnd> {
        if self.replies.bytes.is_empty() {
            return Ok(());
        }
        // Usually the system takes everything at once, and the stage need not be recorded.
        let at_once = self.stream.try_write(&self.replies.bytes).unwrap_or(0);
        if at_once < self.replies.bytes.len() || !self.stream.is_flushed() {
            self.place.note_unread(now(), self.replies.bytes.capacity() + self.read.capacity());
            let stream = &mut self.stream;
            let rest = async {
                stream.write_all(&self.replies.bytes[at_once..]).await?;
                stream.flush().await
            };
            tokio::select! {
                biased;
                written = timeout(self.timeouts.unread.min(NEVER), rest) => match written {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(RespEnd::Gone),
                    Err(_) => return Err(RespEnd::Unread),
                },
                () = self.place.ordered(Order::Yield) => return Err(RespEnd::Vacated(ConnectionStage::Stalled)),
            }
            self.place.note_read();
            self.place.note_busy();
        }
        self.replies.bytes.clear();
        // Frees the memory of a long reply, which later replies may not need.
        self.replies.bytes.shrink_to(FLUSH);
        Ok(())
    }

    /// Sends a last error, and closes so that it arrives.
    async fn close(&mut self, ended: &RespEnd) {
        match ended {
            // No reply could be lost.
            RespEnd::Gone | RespEnd::Idle | RespEnd::Late { begun: false } => return self.stream.say_end(),
            // The system would keep for minutes what the peer does not take.
            RespEnd::Unread | RespEnd::Vacated(ConnectionStage::Stalled) => {
                return self.stream.forget_unsent();
            }
            RespEnd::Vacated(_) => {
                if !self.read.is_empty() {
                    // The place is needed now, so whatever the system does not take at once is dropped.
                    let _ =
                        self.stream.try_write(b"-ERR the place of this connection was given to another\r\n");
                }
                return;
            }
            RespEnd::Late { begun: true } => {
                self.replies.error("ERR", "Protocol error: the rest of the command did not come in time");
            }
            RespEnd::Done | RespEnd::Full => {}
        }
        if self.send().await.is_err() {
            return self.stream.forget_unsent();
        }
        self.place.note(ConnectionStage::Closing, now());
        let (mut read, mut write) = tokio::io::split(&mut self.stream);
        tokio::select! {
            // Polled first: a connection that gives up its place still closes its writing half.
            biased;
            _ = timeout(LINGER, linger(write.shutdown(), &mut read)) => {}
            () = self.place.ordered(Order::Yield) => {}
        }
    }
}

enum Filled {
    Some,
    /// Nothing has arrived, and the call does not wait.
    Nothing,
    /// The peer has closed, or is gone.
    End,
    Late,
    Ordered,
}
