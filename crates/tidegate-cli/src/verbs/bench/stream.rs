//! The transport of a connection: TCP, or TLS over TCP.

use std::fmt::Debug;

use tokio::io::{AsyncRead, AsyncWrite};

/// A transport, without a protocol.
pub(super) trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Debug + Send + Unpin> Stream for S {}
