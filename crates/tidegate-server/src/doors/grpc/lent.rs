//! Lends a socket to HTTP/2 and gets it back afterwards.
//!
//! `h2` keeps the socket that it is given, and drops it. But dropping a socket with unread bytes resets the connection,
//! and a reset discards answers that the peer has not read yet. So the socket is needed again, to close it in an
//! orderly way.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connections::Stream;

/// The slot to which the socket returns.
pub(super) type ReturnSlot = Arc<Mutex<Option<Stream>>>;

/// The socket while HTTP/2 uses it.
#[derive(Debug)]
pub(super) struct LentSocket {
    /// `Some` until this is dropped.
    stream: Option<Stream>,
    back: ReturnSlot,
}

impl LentSocket {
    /// Lends a socket. Returns the lent socket and the slot to which it returns when dropped.
    pub(super) fn new(stream: Stream) -> (Self, ReturnSlot) {
        let back = ReturnSlot::default();
        (Self { stream: Some(stream), back: Arc::clone(&back) }, back)
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
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for LentSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(cx, slices)
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
