//! What encrypts the doors: the server's certificate, its key, and whose certificates callers may show.
//!
//! Files are read at the start and again when they change, on `SIGHUP` and on a reload ([`Certificates::renew`]). Files that cannot be used
//! then change nothing: the log, a metric and `readyz?verbose` say so. A connection keeps what it began with.
//!
//! TLS is rustls with the cryptography of ring, versions 1.2 and 1.3, with the defaults of rustls for everything else.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod certificates;
mod error;
#[cfg(feature = "tls")]
mod files;
#[cfg(feature = "tls")]
mod validity;

#[cfg(not(feature = "tls"))]
pub(crate) use self::absent::Certificates;
#[cfg(not(feature = "tls"))]
pub use self::absent::check_tls;
#[cfg(feature = "tls")]
pub(crate) use self::certificates::Certificates;
pub use self::error::TlsError;
#[cfg(feature = "tls")]
pub use self::files::check_tls;
