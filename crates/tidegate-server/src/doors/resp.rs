//! The RESP door for Redis clients: redis-cell's command, and Tidegate's own.
//!
//! | command | effect |
//! |---|---|
//! | `CL.THROTTLE key max_burst count period [quantity]` | charges a limit that the caller brings along, as redis-cell does |
//! | `TG.CHECK policy name value [name value ...] [COST n] [PRIORITY level] [PEEK] [TICKET]` | decides under a policy, or `*` for all that match |
//! | `TG.SETTLE ticket [COST n] [FAILED]` | settles a decision with what its work spent |
//! | `TG.RESET policy name value [name value ...]` | resets what one key has spent, and ends its block |
//! | `MULTI`, `EXEC`, `DISCARD` | keep commands, and run them together |
//! | `PING`, `ECHO`, `HELLO`, `AUTH`, `SELECT`, `CLIENT`, `COMMAND`, `CONFIG`, `INFO`, `QUIT` | as in Redis, as far as clients need them |
//!
//! The commands of one read are decided one after the other and answered with one write. A wrong command gets an error
//! of its own; only bytes that are not a command at all close the connection.

mod command;
mod connection;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod own;
mod redis;
mod reply;
mod session;
mod throttle;
mod transaction;

use std::sync::Arc;

use crate::connections::{ConnectionPlace, Door, NotEncrypted, Stream};
use crate::options::Timeouts;

pub(crate) use self::session::RespDoor;

impl Door for RespDoor {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: std::net::SocketAddr,
        place: &Arc<ConnectionPlace>,
        timeouts: Timeouts,
    ) {
        let stream = match &self.tls {
            None => stream,
            Some(tls) => match Box::pin(tls.encrypt(stream, peer, place, timeouts)).await {
                Ok(stream) => stream,
                Err(NotEncrypted::PlainText(stream)) => {
                    return connection::refuse_plain_text(stream, place, timeouts).await;
                }
                Err(NotEncrypted::Cut(reason)) => return self.app.engine.metrics.connection_cut(reason),
                Err(NotEncrypted::Over) => return,
            },
        };
        connection::serve(stream, &self, place, timeouts).await;
    }
}
