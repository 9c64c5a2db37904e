//! TLS for the doors: the server's certificate, its key, and the authorities of client certificates.
//!
//! The files are read at the start, and again when they change, on `SIGHUP` and on a reload ([`Certificates::renew`]).
//! Unusable files then change nothing; the log, a metric and `readyz?verbose` report them. An open connection keeps the
//! certificate that it began with.
//!
//! TLS is provided by rustls with the cryptography of ring, versions 1.2 and 1.3, with the defaults of rustls for
//! everything else.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod certificates;
mod error;
#[cfg(feature = "tls")]
mod files;

#[cfg(not(feature = "tls"))]
pub(crate) use self::absent::Certificates;
#[cfg(not(feature = "tls"))]
pub use self::absent::check_tls;
#[cfg(feature = "tls")]
pub(crate) use self::certificates::Certificates;
pub use self::error::TlsError;
#[cfg(feature = "tls")]
pub use self::files::check_tls;
