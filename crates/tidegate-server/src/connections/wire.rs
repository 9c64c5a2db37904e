//! What goes over one connection, and what it tells of where the connection stands.
//!
//! hyper reads and writes through a [`Wire`]; the connection's own loop holds the [`Line`] behind it. Answers gather in a
//! bounded buffer that the loop sends once hyper has done what it can, so sixteen pipelined requests cost one system call.
//! hyper has the same thing as `pipeline_flush`, without a bound: it sends nothing while there is more to read, so a peer
//! that always sends and never reads makes it hold every answer.
//!
//! Once the peer takes no more, the line is blocked until all of the buffer is gone: nothing is read, and no request that
//! was read is answered. So a connection holds what hyper has read (twice the longest head at most), the buffer and one answer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{io, mem};

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
pub(super) struct Line(Mutex<State>);

#[derive(Debug)]
struct State {
    stream: Stream,
    unsent: Vec<u8>,
    stand: Stand,
    /// Whether the last request has not been polled since something of it was read.
    unpolled: bool,
    /// Whether hyper wanted to read meanwhile and was kept from it.
    unread: bool,
}

/// Where a connection stands between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    /// The peer took no more; ends when nothing is left unsent.
    pub(super) blocked: bool,
    /// A request is being answered.
    answering: bool,
    /// Bytes came since the last request.
    pub(super) received: bool,
    /// Requests so far.
    pub(super) requests: u64,
}

impl Stand {
    pub(super) fn stage(self) -> Stage {
        if self.blocked {
            Stage::Stalled
        } else if self.answering {
            Stage::Busy
        } else if self.received || self.requests == 0 {
            Stage::Head
        } else {
            Stage::Idle
        }
    }
}

impl Line {
    pub(super) fn new(stream: Stream) -> Self {
        let stand = Stand { blocked: false, answering: false, received: false, requests: 0 };
        Self(Mutex::new(State { stream, unsent: Vec::new(), stand, unpolled: false, unread: false }))
    }

    pub(super) fn stand(&self) -> Stand {
        self.0.lock().stand
    }

    /// Notes that a head is complete.
    pub(super) fn begin(&self) {
        let State { stand, unpolled, .. } = &mut *self.0.lock();
        (stand.answering, stand.received) = (true, false);
        stand.requests += 1;
        *unpolled = true;
    }

    /// Notes that the last request was polled. Says whether hyper was kept from reading before, and has to be polled again.
    pub(super) fn was_polled(&self) -> bool {
        let state = &mut *self.0.lock();
        state.unpolled = false;
        mem::take(&mut state.unread)
    }

    /// Notes that its answer is made.
    pub(super) fn end(&self) {
        self.0.lock().stand.answering = false;
    }

    /// Says whether there is something to be sent that was not tried yet.
    pub(super) fn has_answers(&self) -> bool {
        let state = self.0.lock();
        !state.unsent.is_empty() && !state.stand.blocked
    }

    /// Sends all that is unsent. After `Pending` the line is blocked.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_send(cx)
    }

    /// Says that no more comes; what was sent before still arrives.
    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_shutdown(cx)
    }

    /// Sends the closing message of TLS, as [`Stream::say_end`] does.
    pub(super) fn say_end(&self) {
        self.0.lock().stream.say_end();
    }

    /// Makes the system forget on close what the peer did not take; it would keep it for minutes.
    pub(super) fn forget_unsent(&self) {
        self.0.lock().stream.forget_unsent();
    }
}

impl State {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.unsent[sent..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(more)) => sent += more,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.unsent.drain(..sent);
                    self.stand.blocked = true;
                    return Poll::Pending;
                }
            }
        }
        self.unsent.clear();
        // What is encrypted may be held back; where nothing is, this does nothing.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.stand.blocked = flushed.is_pending();
        ready!(flushed)?;
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
        let mut state = self.0.0.lock();
        if state.stand.blocked {
            // No waker is left with the reading side: the writing side has one, and then all is polled again.
            return Poll::Pending;
        }
        if state.unpolled && state.stand.answering {
            // hyper takes whoever has said all for somebody who has hung up: a request has its chance to be answered first. No waker is left
            // here either, for all is polled again at once.
            state.unread = true;
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut state.stream).poll_read(cx, buffer))?;
        let some = buffer.filled().len() > before;
        let State { stand, unpolled, .. } = &mut *state;
        stand.received |= some && !stand.answering;
        *unpolled |= some && stand.answering;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.0.lock();
        if state.unsent.len() >= UNSENT_BYTES {
            ready!(state.poll_send(cx))?;
        }
        let taken = bytes.len().min(UNSENT_BYTES - state.unsent.len());
        state.unsent.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.0.lock();
        if state.stand.blocked { state.poll_send(cx) } else { Poll::Ready(Ok(())) }
    }

    /// Sends; how the connection is closed is decided by whoever serves it.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_send(cx)
    }
}
