//! Where requests enter: protocols know the gate, the gate knows no protocol.

#[cfg(feature = "grpc")]
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
