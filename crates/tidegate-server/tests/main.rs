//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod api;
mod doors;
#[cfg(feature = "grpc")]
mod grpc;
mod openapi;
#[cfg(all(feature = "grpc", feature = "otel"))]
mod otlp;
mod proxies;
#[cfg(unix)]
#[path = "../../tidegate-cli/tests/attack/proxy.rs"]
mod proxy;
mod resp;
mod running;
mod signals;
#[cfg(all(feature = "grpc", feature = "tls"))]
mod tls;
#[cfg(unix)]
#[path = "../../tidegate-cli/tests/attack/waiting.rs"]
mod waiting;
