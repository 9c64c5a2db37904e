//! What a connection speaks over: the network as it is, or TLS on it.

use std::fmt::Debug;

use tokio::io::{AsyncRead, AsyncWrite};

/// A connection without its protocol.
pub(super) trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Debug + Send + Unpin> Stream for S {}
