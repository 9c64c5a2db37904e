//! The gRPC door, over real sockets: its decisions, its answers to bad input, and tests with real Envoy and a Python
//! client.

use crate::running;

mod bad_input;
pub(crate) mod client;
mod connections;
mod decisions;
mod details;
#[cfg(feature = "tls")]
mod encrypted;
mod imported;
mod limitador;
mod load;
#[cfg(feature = "tls")]
use crate::tls::made;
mod priority;
mod quota;
mod quota_parts;
mod real;
mod reflected;
mod unmatched;
mod watch;

use std::net::SocketAddr;

use running::{Running, start_with};
use tidegate_server::ServerOptions;

/// Starts a server with a gRPC door; returns its address.
async fn started(policies: &str) -> (Running, SocketAddr) {
    started_with(policies, |_| {}).await
}

/// Starts a server with other options.
async fn started_with(policies: &str, change: impl FnOnce(&mut ServerOptions)) -> (Running, SocketAddr) {
    let free = tidegate_testkit::free_address();
    let server = start_with(policies, |mut options| {
        options.grpc = Some(free.into());
        change(&mut options);
        options
    })
    .await;
    (server, free)
}
