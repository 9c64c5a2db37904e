//! The byte stream of one connection between hyper and the socket, and the state that follows from it.
//!
//! hyper uses a [`Wire`]; the connection's loop holds the [`SharedStream`] behind it. Answers gather in a bounded
//! buffer that the loop sends once hyper has done what it can, so sixteen pipelined requests cost one system call.
//! hyper's own option for this, `pipeline_flush`, has no bound: it sends nothing while there is more to read, so a
//! peer that always sends and never reads makes it hold every answer.
//!
//! Once the peer takes no more, the line is blocked until the buffer is sent: nothing is read, and no request is
//! answered. So a connection holds what hyper has read (at most twice the longest head), the buffer and one answer.
//! [`super::places`] bounds the sum of all.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::places::ConnectionStage;
use super::stream::Stream;

/// The most bytes of unsent answers: more than sixteen ordinary ones, the most that hyper makes at once.
const UNSENT_BYTES: usize = 64 * 1024;
/// A larger buffer is freed once it is empty, so that an idle connection holds little memory.
const KEPT_BYTES: usize = 16 * 1024;

/// The stream and the state of a connection. Used by one task, so the lock is never contended.
#[derive(Debug)]
pub(super) struct SharedStream {
    /// The bits of a [`State`]; outside the lock, since each request reads it several times.
    state: AtomicU64,
    /// The bytes that the body of the present answer holds.
    body: AtomicUsize,
    io: Mutex<Io>,
}

#[derive(Debug)]
struct Io {
    stream: Stream,
    unsent: Vec<u8>,
}

/// The state of a connection: flags, and the number of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(u64);

impl State {
    /// The peer took no more; until nothing is left unsent.
    const BLOCKED: u64 = 1;
    /// A request is being answered.
    const ANSWERING: u64 = 2;
    /// Bytes came since the last request.
    const RECEIVED: u64 = 4;
    /// The last request was not polled since some of its bytes were read.
    const UNPOLLED: u64 = 8;
    /// hyper wanted to read meanwhile, and was held back.
    const UNREAD: u64 = 16;
    /// There are unsent answers.
    const UNSENT: u64 = 32;
    /// One request: the bits above the flags count the requests so far.
    const REQUEST: u64 = 64;

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn blocked(self) -> bool {
        self.has(Self::BLOCKED)
    }

    pub(super) fn received(self) -> bool {
        self.has(Self::RECEIVED)
    }

    /// Returns whether there are answers that nobody has tried to send.
    pub(super) fn has_answers(self) -> bool {
        self.0 & (Self::UNSENT | Self::BLOCKED) == Self::UNSENT
    }

    /// Leaves out the flags that change within one stage of one request.
    pub(super) fn of_stage(self) -> Self {
        Self(self.0 & !(Self::UNPOLLED | Self::UNREAD | Self::UNSENT))
    }

    pub(super) fn requests(self) -> u64 {
        self.0 / Self::REQUEST
    }

    pub(super) fn stage(self) -> ConnectionStage {
        if self.blocked() {
            ConnectionStage::Stalled
        } else if self.has(Self::ANSWERING) {
            ConnectionStage::Busy
        } else if self.received() || self.requests() == 0 {
            ConnectionStage::Head
        } else {
            ConnectionStage::Idle
        }
    }
}

impl SharedStream {
    pub(super) fn new(stream: Stream) -> Self {
        let io = Mutex::new(Io { stream, unsent: Vec::new() });
        Self { state: AtomicU64::new(0), body: AtomicUsize::new(0), io }
    }

    // Relaxed throughout, and no read-modify-write operations: only one task reads and writes it.
    pub(super) fn state(&self) -> State {
        State(self.state.load(Ordering::Relaxed))
    }

    fn set(&self, flags: u64) {
        self.state.store(self.state().0 | flags, Ordering::Relaxed);
    }

    fn unset(&self, flags: u64) {
        self.state.store(self.state().0 & !flags, Ordering::Relaxed);
    }

    /// Records that a request head is complete.
    pub(super) fn begin(&self) {
        let begun = (self.state().0 | State::ANSWERING | State::UNPOLLED) & !State::RECEIVED;
        self.state.store(begun + State::REQUEST, Ordering::Relaxed);
    }

    /// Records that the last request was polled. Returns whether hyper, held back from reading before, must be polled
    /// again.
    pub(super) fn was_polled(&self) -> bool {
        let unread = self.state().has(State::UNREAD);
        self.unset(State::UNPOLLED | State::UNREAD);
        unread
    }

    /// Records that the answer to the last request is made.
    pub(super) fn end(&self) {
        self.unset(State::ANSWERING);
        if self.gives_pieces() {
            self.hold(0);
            self.set(State::UNREAD);
        }
    }

    /// Records how many bytes the body of the answer holds; 0 for one that ends when its caller does.
    pub(super) fn hold(&self, bytes: usize) {
        self.body.store(bytes, Ordering::Relaxed);
    }

    fn gives_pieces(&self) -> bool {
        self.body.load(Ordering::Relaxed) > 0
    }

    /// Returns about how many bytes are held for a peer that does not read: buffer, body, and what hyper has read or
    /// written meanwhile.
    pub(super) fn held(&self) -> usize {
        self.io.lock().unsent.capacity() + self.body.load(Ordering::Relaxed) + UNSENT_BYTES
    }

    /// Sends all that is unsent; the line is blocked while this is `Pending`.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.io.lock().poll_send(cx);
        match sent {
            Poll::Pending => self.set(State::BLOCKED),
            Poll::Ready(Ok(())) => self.unset(State::BLOCKED | State::UNSENT),
            Poll::Ready(Err(_)) => {}
        }
        sent
    }

    /// Closes the writing half; what was sent before still arrives.
    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io.lock().stream).poll_shutdown(cx)
    }

    /// As [`Stream::say_end`].
    pub(super) fn say_end(&self) {
        self.io.lock().stream.say_end();
    }

    /// As [`Stream::forget_unsent`].
    pub(super) fn forget_unsent(&self) {
        self.io.lock().stream.forget_unsent();
    }
}

impl Io {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.unsent[sent..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(more)) => sent += more,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.unsent.drain(..sent);
                    return Poll::Pending;
                }
            }
        }
        self.unsent.clear();
        // TLS may hold data back until it is flushed.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.unsent.capacity() > KEPT_BYTES {
            self.unsent = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

/// A connection as hyper uses it. Flushing does not send: the connection's loop does, afterwards.
#[derive(Debug)]
pub(super) struct Wire(pub(super) std::sync::Arc<SharedStream>);

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = &*self.0;
        let state = line.state();
        if state.blocked() {
            // No waker is registered for reading: the writing side has one, and everything is polled again when it
            // is woken.
            return Poll::Pending;
        }
        if line.gives_pieces() {
            // hyper would take a closed writing half for a caller that is gone, and end the answer. All is polled
            // again at the body's end.
            return Poll::Pending;
        }
        if state.has(State::UNPOLLED) && state.has(State::ANSWERING) {
            // hyper treats a caller that has closed its writing half as gone, so the request must be polled once
            // before hyper can read that. No waker is registered here either, since everything is polled again at
            // once.
            line.set(State::UNREAD);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut line.io.lock().stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            line.set(if state.has(State::ANSWERING) { State::UNPOLLED } else { State::RECEIVED });
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let line = &*self.0;
        let mut io = line.io.lock();
        if io.unsent.len() >= UNSENT_BYTES {
            drop(io);
            ready!(line.poll_send(cx))?;
            io = line.io.lock();
        }
        let taken = bytes.len().min(UNSENT_BYTES - io.unsent.len());
        io.unsent.extend_from_slice(&bytes[..taken]);
        line.set(State::UNSENT);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.state().blocked() { self.0.poll_send(cx) } else { Poll::Ready(Ok(())) }
    }

    /// Sends what is unsent; the connection's task closes.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_send(cx)
    }
}
