//! Closes a connection without losing the last answer.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};

/// How long a closing connection waits for its peer to close too.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
/// The most bytes that a closing connection reads and drops: several bodies of the greatest length that is accepted.
pub(crate) const LINGER_BYTES: usize = 8 * 1024 * 1024;

/// How many bytes are read and dropped at a time.
const CHUNK: usize = 16 * 1024;

/// Closes a connection so that the last answer, which was sent already, arrives. Runs `closing`, which closes the
/// writing half, then reads and drops what the peer still sends, until the peer closes too or [`LINGER_BYTES`] came.
/// Has no timeout: callers bound it by [`LINGER`].
///
/// Closing a socket with unread bytes resets the connection, and a reset discards what the peer has not read yet. A
/// proxy then reports a broken server instead of the answer, and stops asking it.
///
/// # Errors
/// The socket's error: the peer is gone.
pub(crate) async fn linger(
    closing: impl Future<Output = io::Result<()>>,
    read: &mut (impl AsyncRead + Unpin),
) -> io::Result<()> {
    closing.await?;
    let mut chunk = vec![0; CHUNK];
    let mut left = LINGER_BYTES;
    poll_fn(|cx| {
        loop {
            let mut buffer = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut *read).poll_read(cx, &mut buffer))?;
            let read = buffer.filled().len();
            left = left.saturating_sub(read);
            if read == 0 || left == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await
}
