//! The end of a connection: closing without losing the last answer.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::wire::Wire;

/// Bytes that are read at once, to be dropped.
const CHUNK: usize = 16 * 1024;

/// Closes a connection so that its last answer, sent already, arrives: closes the writing half, then reads and drops what the peer still
/// sends, until the peer closes too or `most` bytes came.
///
/// Closing a socket with unread bytes resets the connection, and a reset takes back what the peer has not read yet. A proxy
/// then reports a broken server instead of the answer, and stops asking it.
///
/// # Errors
/// The socket's error: the peer is gone.
pub(super) async fn linger(wire: &mut Wire, most: usize) -> io::Result<()> {
    poll_fn(|cx| wire.line.poll_close(cx)).await?;
    let mut chunk = vec![0; CHUNK];
    let mut left = most;
    poll_fn(|cx| {
        loop {
            let mut buffer = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut wire.read).poll_read(cx, &mut buffer))?;
            let read = buffer.filled().len();
            left = left.saturating_sub(read);
            if read == 0 || left == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await
}
