//! Lends a socket to HTTP/2 and gets it back afterwards.
//!
//! `h2` keeps the socket that it is given, and drops it. But dropping a socket with unread bytes resets the connection,
//! and a reset discards answers that the peer has not read yet. So the socket is needed again, to close it in an
//! orderly way.
//!
//! The first bytes are read before `h2` is asked, which would answer them in HTTP/2 whatever they are.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::connections::Stream;

/// How many bytes tell the protocol of a peer.
const FIRST: usize = 4;
/// The beginning of HTTP/2.
const PREFACE: [u8; FIRST] = *b"PRI ";

/// The slot to which the socket returns.
pub(super) type ReturnSlot = Arc<Mutex<Option<Stream>>>;

/// Tells whether the peer takes no more bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocked(Arc<AtomicBool>);

impl Blocked {
    pub(super) fn is_blocked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note<T>(&self, written: &Poll<T>) {
        // Relaxed: read by the task that writes.
        self.0.store(written.is_pending(), Ordering::Relaxed);
    }
}

/// The socket while HTTP/2 uses it.
#[derive(Debug)]
pub(super) struct LentSocket {
    /// `Some` until this is dropped.
    stream: Option<Stream>,
    /// What was read before HTTP/2 began.
    begun: Vec<u8>,
    back: ReturnSlot,
    blocked: Blocked,
}

impl LentSocket {
    /// Lends a socket. Returns the lent socket and the slot to which it returns when dropped.
    pub(super) fn new(stream: Stream) -> (Self, ReturnSlot) {
        let back = ReturnSlot::default();
        let lent = Self {
            stream: Some(stream),
            begun: Vec::new(),
            back: Arc::clone(&back),
            blocked: Blocked::default(),
        };
        (lent, back)
    }

    /// Returns a view of whether the peer takes no more bytes.
    pub(super) fn blocked(&self) -> Blocked {
        self.blocked.clone()
    }

    /// Waits for the first bytes. HTTP/2 gets them afterwards.
    ///
    /// # Errors
    /// The first bytes of a peer that does not begin like HTTP/2, filled up with zeros if it sends fewer.
    pub(super) async fn begins(&mut self) -> Result<(), [u8; FIRST]> {
        self.begun.reserve(256);
        while self.begun.len() < FIRST
            && let Some(stream) = &mut self.stream
            && let Ok(1..) = stream.read_buf(&mut self.begun).await
        {}
        let mut first = [0; FIRST];
        first.iter_mut().zip(&self.begun).for_each(|(held, byte)| *held = *byte);
        if first == PREFACE { Ok(()) } else { Err(first) }
    }

    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut Stream>> {
        let stream = self.get_mut().stream.as_mut();
        stream.map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for LentSocket {
    fn drop(&mut self) {
        *self.back.lock() = self.stream.take();
    }
}

impl AsyncRead for LentSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.begun.is_empty() {
            let fits = self.begun.len().min(buffer.remaining());
            buffer.put_slice(&self.begun[..fits]);
            self.begun.drain(..fits);
            if self.begun.is_empty() {
                self.begun = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for LentSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.as_mut().stream()?.poll_write(cx, bytes);
        self.blocked.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.as_mut().stream()?.poll_write_vectored(cx, slices);
        self.blocked.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}
