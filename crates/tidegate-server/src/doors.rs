//! The doors: one for each protocol by which requests enter. Doors know the gate; the gate knows no protocol.

#[cfg(feature = "grpc")]
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
