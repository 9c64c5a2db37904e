//! The TLS handshake of a connection, before a door serves it. It lasts at most [`Timeouts::head`], and its
//! connection can lose its place like one with an incomplete head. The first byte is checked before, so that a
//! plain-text caller is told so in its own protocol.
//!
//! [`Timeouts::head`]: crate::options::Timeouts::head

use std::sync::Arc;

use super::stream::Stream;
use crate::metrics::{CutReason, Transport};
use crate::tls::Certificates;

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

    use super::{NotEncrypted, Tls};
    use crate::connections::places::ConnectionPlace;
    use crate::connections::stream::Stream;
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

    use super::{NotEncrypted, Tls};
    use crate::connections::connection::SHORT_HEAD;
    use crate::connections::places::{ConnectionPlace, NEVER, Order};
    use crate::connections::stream::Stream;
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
