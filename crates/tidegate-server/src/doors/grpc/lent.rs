//! A socket that is lent to HTTP/2 and comes back when that is done.
//!
//! `h2` keeps the socket it was given and drops it. But a socket that is dropped with unread bytes is reset, and a reset takes back the answers
//! that the peer has not read yet; so the socket is needed once more, to be closed in order.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connections::Stream;

/// Where the socket comes back to.
pub(super) type Back = Arc<Mutex<Option<Stream>>>;

/// The socket, as long as HTTP/2 has it.
#[derive(Debug)]
pub(super) struct Lent {
    /// `Some` until it is dropped.
    stream: Option<Stream>,
    back: Back,
}

impl Lent {
    /// Lends a socket, and says where it comes back to.
    pub(super) fn new(stream: Stream) -> (Self, Back) {
        let back = Back::default();
        (Self { stream: Some(stream), back: Arc::clone(&back) }, back)
    }

    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut Stream>> {
        let stream = self.get_mut().stream.as_mut();
        stream.map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.back.lock() = self.stream.take();
    }
}

impl AsyncRead for Lent {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Lent {
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
