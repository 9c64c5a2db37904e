//! The RESP door: what Redis clients ask, in the commands of redis-cell and in our own.
//!
//! | command | what |
//! |---|---|
//! | `CL.THROTTLE key max_burst count period [quantity]` | a limit that the caller brings, as redis-cell has it |
//! | `TG.CHECK policy name value [name value ...] [COST n] [PEEK] [TICKET]` | decides by the policies; `*` asks all that match |
//! | `TG.SETTLE ticket [COST n] [FAILED]` | settles a decision by what its work spent |
//! | `TG.RESET policy name value [name value ...]` | forgets what one key has spent |
//! | `PING`, `ECHO`, `HELLO`, `AUTH`, `SELECT`, `CLIENT`, `COMMAND`, `CONFIG`, `INFO`, `QUIT` | as Redis has them, as far as clients need |
//!
//! Commands of one read are decided one after the other and answered with one write. Whatever is wrong with one command is an error of
//! that command alone; only bytes that are no command at all close the connection.

mod command;
mod connection;
mod own;
mod redis;
mod reply;
mod throttle;

use std::sync::Arc;

use tokio::net::TcpStream;

use crate::app::App;
use crate::connections::{Door, Place};
use crate::options::Timeouts;

use self::throttle::Quotas;

/// The RESP door of one server.
#[derive(Debug)]
pub(crate) struct RespDoor {
    app: Arc<App>,
    quotas: Quotas,
}

impl RespDoor {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { app, quotas: Quotas::default() }
    }
}

impl Door for RespDoor {
    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        _: std::net::SocketAddr,
        place: &Place,
        timeouts: Timeouts,
    ) {
        connection::serve(stream, &self, place, timeouts).await;
    }
}

/// What a connection has agreed on.
#[derive(Debug, Default)]
struct Session {
    /// Whether replies are of the protocol's third version.
    resp3: bool,
    /// Whether the token was shown, or none is needed.
    trusted: bool,
    /// What the client calls itself.
    name: Vec<u8>,
    /// Whether the connection ends after the replies that are written.
    closing: bool,
}
