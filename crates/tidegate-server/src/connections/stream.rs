//! The byte stream of a connection: TCP, a Unix socket or TLS, and the handshake that makes it TLS.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

#[cfg(feature = "tls")]
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
#[cfg(feature = "tls")]
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
#[cfg(feature = "tls")]
use tokio_rustls::server::TlsStream;

use crate::metrics::{CutReason, Transport};
use crate::tls::Certificates;

/// The address of callers on a Unix socket: this machine's loopback.
pub(super) const THIS_MACHINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    /// After the TLS handshake.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection on its way to another runtime.
#[derive(Debug)]
pub(super) enum Moving {
    Tcp(std::net::TcpStream),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixStream),
}

macro_rules! carried {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($inner) => $call,
            #[cfg(unix)]
            Stream::Unix($inner) => $call,
            #[cfg(feature = "tls")]
            Stream::Tls($inner) => $call,
        }
    };
}

impl Stream {
    /// Turns off Nagle's algorithm: answers are written whole, so waiting for more data would only delay them.
    pub(crate) fn send_at_once(&self) {
        match self {
            // Fails only on a socket that is gone.
            Self::Tcp(stream) => drop(stream.set_nodelay(true)),
            #[cfg(unix)]
            Self::Unix(_) => {}
            // Set before the handshake.
            #[cfg(feature = "tls")]
            Self::Tls(_) => {}
        }
    }

    /// Makes the system discard on close what the peer did not take; otherwise it would keep it for minutes. A Unix
    /// socket keeps nothing.
    pub(crate) fn forget_unsent(&self) {
        match self {
            Self::Tcp(stream) => drop(stream.set_zero_linger()),
            #[cfg(unix)]
            Self::Unix(_) => {}
            #[cfg(feature = "tls")]
            Self::Tls(stream) => drop(stream.get_ref().0.set_zero_linger()),
        }
    }

    /// Sends the closing message of TLS (`close_notify`), without which clients take the end for an attack. Does not
    /// wait for it; nothing on a plain connection.
    pub(crate) fn say_end(&mut self) {
        match self {
            Self::Tcp(_) => {}
            #[cfg(unix)]
            Self::Unix(_) => {}
            #[cfg(feature = "tls")]
            Self::Tls(stream) => drop(stream.shutdown().now_or_never()),
        }
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] if nothing has.
    pub(crate) fn try_read_buf(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_read_buf(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                stream.read_buf(buffer).now_or_never().unwrap_or(Err(io::ErrorKind::WouldBlock.into()))
            }
        }
    }

    /// Writes what the system takes at once, and returns how many bytes ([`Stream::is_flushed`]: whether they left
    /// the TLS buffer).
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] if it takes nothing.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                let written =
                    stream.write(bytes).now_or_never().unwrap_or(Err(io::ErrorKind::WouldBlock.into()))?;
                // What the system does not take now stays in the TLS buffer.
                drop(stream.flush().now_or_never());
                Ok(written)
            }
        }
    }

    /// Returns whether the system has everything that was written: only TLS buffers before it.
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            Self::Tcp(_) => true,
            #[cfg(unix)]
            Self::Unix(_) => true,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => !stream.get_ref().1.wants_write(),
        }
    }

    /// Detaches the connection from its runtime.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn into_moving(self) -> io::Result<Moving> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(Moving::Tcp),
            #[cfg(unix)]
            Self::Unix(stream) => stream.into_std().map(Moving::Unix),
            // Connections move to their thread before the handshake, so none is encrypted here.
            #[cfg(feature = "tls")]
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Moving {
    /// Attaches the connection to the present runtime.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn arrive(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            #[cfg(unix)]
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        carried!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        carried!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        carried!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        carried!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        carried!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        carried!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

/// How long a closing connection waits for its peer to close too.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// The most bytes that a closing connection reads and drops: several of the longest bodies.
pub(crate) const LINGER_BYTES: usize = 8 * 1024 * 1024;

/// How many bytes are read and dropped at a time.
const CHUNK: usize = 16 * 1024;

/// Closes a connection so that the last answer, already sent, arrives: `closing` closes the writing half; then what
/// the peer still sends is read and dropped, until it closes or [`LINGER_BYTES`] came. Callers bound the time by
/// [`LINGER`].
///
/// Closing a socket with unread bytes resets the connection, which discards what the peer has not read yet. A proxy
/// then reports a broken server instead of the answer, and stops asking it.
///
/// # Errors
/// The socket's: the peer is gone.
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

// The TLS handshake of a connection, before a door serves it. It lasts at most `Timeouts::head`, and its connection can
// lose its place like one with an incomplete head. The first byte is checked before, so that a plain-text caller is
// told so in its own protocol.

/// The TLS settings of one door's connections.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    certificates: Arc<Certificates>,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no handshake is counted"))]
    transport: Transport,
}

/// Why there is no encrypted connection.
#[derive(Debug)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing is encrypted"))]
pub(crate) enum NotEncrypted {
    /// The caller does not speak TLS and waits for an answer.
    PlainText(Stream),
    /// It took too long, or the place was given to another connection.
    Cut(CutReason),
    /// It failed, or the server stops; nothing is left to report.
    Over,
}

impl Tls {
    pub(crate) fn new(certificates: Arc<Certificates>, transport: Transport) -> Self {
        Self { certificates, transport }
    }
}

#[cfg(not(feature = "tls"))]
mod absent {
    //! For a build without TLS. Nothing here is ever called.

    use std::net::SocketAddr;

    use super::{NotEncrypted, Stream, Tls};
    use crate::connections::places::ConnectionPlace;
    use crate::options::Timeouts;

    impl Tls {
        pub(crate) async fn encrypt(
            &self,
            _: Stream,
            _: SocketAddr,
            _: &ConnectionPlace,
            _: Timeouts,
        ) -> Result<Stream, NotEncrypted> {
            match *self.certificates {}
        }
    }
}

#[cfg(feature = "tls")]
mod with_rustls {
    //! The TLS handshake, by rustls.

    use std::io;
    use std::net::SocketAddr;
    use std::pin::pin;

    use rustls::Error;
    use tokio::net::TcpStream;
    use tokio::time::timeout;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::server::TlsStream;

    use super::{NotEncrypted, Stream, Tls};
    use crate::connections::connection::SHORT_HEAD;
    use crate::connections::places::{ConnectionPlace, NEVER, Order};
    use crate::metrics::CutReason;
    use crate::metrics::tls::Reason;
    use crate::options::Timeouts;

    /// The first byte of every handshake (RFC 8446, section 5.1).
    const HANDSHAKE: u8 = 22;

    enum Failed {
        PlainText(TcpStream),
        /// The caller sent nothing, as port probes do.
        Silent,
        Handshake(io::Error),
    }

    impl Tls {
        /// Encrypts a TCP connection; returns one over a Unix socket unchanged.
        ///
        /// # Errors
        /// [`NotEncrypted`]. Failures are counted and logged here, cut connections are counted by the caller.
        ///
        /// # Cancel safety
        /// Dropping the future closes the socket at once.
        pub(crate) async fn encrypt(
            &self,
            stream: Stream,
            peer: SocketAddr,
            place: &ConnectionPlace,
            timeouts: Timeouts,
        ) -> Result<Stream, NotEncrypted> {
            stream.send_at_once();
            let Stream::Tcp(stream) = stream else { return Ok(stream) };
            let most =
                if place.is_reserved() { timeouts.head.min(SHORT_HEAD) } else { timeouts.head.min(NEVER) };
            let mut shaking = pin!(timeout(most, self.shake(stream)));
            let shaken = tokio::select! {
                biased;
                () = place.ordered(Order::Finish) => None,
                shaken = shaking.as_mut() => Some(shaken),
            };
            let shaken = match shaken {
                Some(shaken) => shaken,
                // One that is nearly done still gets through; one that stalls does not hold up a drain.
                None => tokio::select! {
                    biased;
                    () = place.ordered(Order::Yield) => return Err(yielded(place)),
                    shaken = timeout(SHORT_HEAD, shaking) => shaken.and_then(|shaken| shaken),
                },
            };
            match shaken {
                Ok(Ok(stream)) => Ok(Stream::Tls(Box::new(stream))),
                Ok(Err(Failed::PlainText(stream))) => {
                    self.certificates.failures.count(self.transport, Reason::plain_text);
                    tracing::debug!(%peer, transport = ?self.transport, "plain text instead of TLS");
                    Err(NotEncrypted::PlainText(Stream::Tcp(stream)))
                }
                Ok(Err(Failed::Handshake(error))) => {
                    let reason = reason(&error);
                    self.certificates.failures.count(self.transport, reason);
                    if reason == Reason::broken_off {
                        tracing::debug!(%peer, transport = ?self.transport, %error, "a TLS handshake broke off");
                    } else {
                        // At the info level, for people who set up certificates.
                        tracing::info!(%peer, transport = ?self.transport, %error, "a TLS handshake failed");
                    }
                    Err(NotEncrypted::Over)
                }
                Ok(Err(Failed::Silent)) => Err(NotEncrypted::Over),
                Err(_) => Err(NotEncrypted::Cut(CutReason::handshake)),
            }
        }

        async fn shake(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Failed> {
            let mut first = [0];
            match stream.peek(&mut first).await {
                Ok(0) | Err(_) => return Err(Failed::Silent),
                Ok(_) if first[0] != HANDSHAKE => return Err(Failed::PlainText(stream)),
                Ok(_) => {}
            }
            let acceptor = TlsAcceptor::from(self.certificates.config(self.transport));
            acceptor.accept(stream).await.map_err(Failed::Handshake)
        }
    }

    fn yielded(place: &ConnectionPlace) -> NotEncrypted {
        if place.order_now() == Order::Yield {
            NotEncrypted::Cut(CutReason::vacated)
        } else {
            NotEncrypted::Over
        }
    }

    fn reason(error: &io::Error) -> Reason {
        let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<Error>()) else {
            return Reason::broken_off;
        };
        match error {
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => Reason::certificate,
            Error::AlertReceived(_) => Reason::refused,
            _ => Reason::protocol,
        }
    }
}
