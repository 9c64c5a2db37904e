//! What goes over one connection, and what it tells of where the connection stands.
//!
//! hyper reads and writes through a [`Wire`]; the connection's own loop holds the [`Line`] behind it. Answers gather in a
//! bounded buffer that the loop sends once hyper has done what it can, so sixteen pipelined requests cost one system call.
//! hyper has the same thing as `pipeline_flush`, without a bound: it sends nothing while there is more to read, so a peer
//! that always sends and never reads makes it hold every answer.
//!
//! Once the peer takes no more, the line is blocked until all of the buffer is gone: nothing is read, and no request that
//! was read is answered. So a connection holds what hyper has read (twice the longest head at most), the buffer and one answer.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::places::Stage;
use super::stream::Stream;

/// The most bytes of answers that wait to be sent. More than sixteen ordinary answers, the most that hyper makes at once.
const UNSENT_BYTES: usize = 64 * 1024;
/// A buffer that grew beyond this is given back when it is empty: what a connection holds while it idles.
const KEPT_BYTES: usize = 16 * 1024;

/// A connection's bytes, and where the connection stands. Used by one task only; the lock is never waited for.
#[derive(Debug)]
pub(super) struct Line {
    /// The bits of a [`Stand`]. Beside the lock, since it is asked for several times with each request.
    stand: AtomicU64,
    io: Mutex<Io>,
}

#[derive(Debug)]
struct Io {
    stream: Stream,
    unsent: Vec<u8>,
}

/// Where a connection stands between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand(u64);

impl Stand {
    /// The peer took no more; ends when nothing is left unsent.
    const BLOCKED: u64 = 1;
    /// A request is being answered.
    const ANSWERING: u64 = 2;
    /// Bytes came since the last request.
    const RECEIVED: u64 = 4;
    /// The last request has not been polled since something of it was read.
    const UNPOLLED: u64 = 8;
    /// hyper wanted to read meanwhile and was kept from it.
    const UNREAD: u64 = 16;
    /// There are answers that are not sent.
    const UNSENT: u64 = 32;
    /// One request; above the flags stands how many there were so far.
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

    /// Says whether there is something to be sent that was not tried yet.
    pub(super) fn has_answers(self) -> bool {
        self.0 & (Self::UNSENT | Self::BLOCKED) == Self::UNSENT
    }

    /// Returns it without what does not tell one stage, or one request, from another.
    pub(super) fn of_stage(self) -> Self {
        Self(self.0 & !(Self::UNPOLLED | Self::UNREAD | Self::UNSENT))
    }

    pub(super) fn requests(self) -> u64 {
        self.0 / Self::REQUEST
    }

    pub(super) fn stage(self) -> Stage {
        if self.blocked() {
            Stage::Stalled
        } else if self.has(Self::ANSWERING) {
            Stage::Busy
        } else if self.received() || self.requests() == 0 {
            Stage::Head
        } else {
            Stage::Idle
        }
    }
}

impl Line {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stand: AtomicU64::new(0), io: Mutex::new(Io { stream, unsent: Vec::new() }) }
    }

    // Relaxed throughout, and never in one step with what was read before: one task alone reads and writes it.
    pub(super) fn stand(&self) -> Stand {
        Stand(self.stand.load(Ordering::Relaxed))
    }

    fn set(&self, flags: u64) {
        self.stand.store(self.stand().0 | flags, Ordering::Relaxed);
    }

    fn unset(&self, flags: u64) {
        self.stand.store(self.stand().0 & !flags, Ordering::Relaxed);
    }

    /// Notes that a head is complete.
    pub(super) fn begin(&self) {
        let begun = (self.stand().0 | Stand::ANSWERING | Stand::UNPOLLED) & !Stand::RECEIVED;
        self.stand.store(begun + Stand::REQUEST, Ordering::Relaxed);
    }

    /// Notes that the last request was polled. Says whether hyper was kept from reading before, and has to be polled again.
    pub(super) fn was_polled(&self) -> bool {
        let unread = self.stand().has(Stand::UNREAD);
        self.unset(Stand::UNPOLLED | Stand::UNREAD);
        unread
    }

    /// Notes that its answer is made.
    pub(super) fn end(&self) {
        self.unset(Stand::ANSWERING);
    }

    /// Sends all that is unsent. After `Pending` the line is blocked.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.io.lock().poll_send(cx);
        match sent {
            Poll::Pending => self.set(Stand::BLOCKED),
            Poll::Ready(Ok(())) => self.unset(Stand::BLOCKED | Stand::UNSENT),
            Poll::Ready(Err(_)) => {}
        }
        sent
    }

    /// Says that no more comes; what was sent before still arrives.
    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io.lock().stream).poll_shutdown(cx)
    }

    /// Sends the closing message of TLS, as [`Stream::say_end`] does.
    pub(super) fn say_end(&self) {
        self.io.lock().stream.say_end();
    }

    /// Makes the system forget on close what the peer did not take; it would keep it for minutes.
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
        // What is encrypted may be held back; where nothing is, this does nothing.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.unsent.capacity() > KEPT_BYTES {
            self.unsent = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

/// A connection as hyper uses it. Flushing only gathers: whoever polls hyper sends afterwards.
#[derive(Debug)]
pub(super) struct Wire(pub(super) std::sync::Arc<Line>);

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = &*self.0;
        let stand = line.stand();
        if stand.blocked() {
            // No waker is left with the reading side: the writing side has one, and then all is polled again.
            return Poll::Pending;
        }
        if stand.has(Stand::UNPOLLED) && stand.has(Stand::ANSWERING) {
            // hyper takes whoever has said all for somebody who has hung up: a request has its chance to be answered first. No waker is left
            // here either, for all is polled again at once.
            line.set(Stand::UNREAD);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut line.io.lock().stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            line.set(if stand.has(Stand::ANSWERING) { Stand::UNPOLLED } else { Stand::RECEIVED });
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
        line.set(Stand::UNSENT);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.stand().blocked() { self.0.poll_send(cx) } else { Poll::Ready(Ok(())) }
    }

    /// Sends; how the connection is closed is decided by whoever serves it.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_send(cx)
    }
}
