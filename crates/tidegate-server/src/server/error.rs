//! Why a server does not start.

use std::io;
use std::net::SocketAddr;

use tidegate::config::Address;
use tidegate::gate::ticket::KeyError;
use tidegate::store::CapacityError;

use crate::auth::TokensError;
use crate::otlp::OtlpError;
use crate::settings::Refused;
use crate::ticket_options::TicketKeyError;
use crate::tls::TlsError;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Others could reach the server, and nothing would keep them out.
    #[error(
        "binding {addr}, which others can reach, needs a token; set TIDEGATE_TOKEN to {} or more characters, \
         name a file of tokens (--tokens-file), have callers show certificates (--tls-client-ca), or bind a loopback address as 127.0.0.1:{}",
        crate::auth::SHORTEST,
        addr.port()
    )]
    Open {
        /// The address.
        addr: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address.
        addr: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration has mistakes.
    #[error(transparent)]
    Config(#[from] Refused),
    /// The file of tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The doors cannot be encrypted.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Spans of decisions cannot be sent.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    /// There is not enough memory for the counters.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The ticket key kept beside the counters cannot be used.
    #[error(transparent)]
    TicketKey(#[from] TicketKeyError),
    /// No ticket key was configured, and no random one could be drawn.
    #[error("cannot draw a ticket key")]
    Tickets(#[from] KeyError),
    /// The program was built without gRPC.
    #[error(
        "{addr}: this build does not serve gRPC; build it with the feature `grpc`, or leave out --grpc and server.grpc"
    )]
    NoGrpc {
        /// The address.
        addr: Address,
    },
    /// The system could not start a thread for connections.
    #[error("cannot start a thread for connections")]
    Threads(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
}
