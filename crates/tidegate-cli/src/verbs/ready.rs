//! Asks a running server whether it is ready, for container health checks and for scripts that wait.

use anyhow::Result;
use serde_json::json;

use crate::args::WhichServer;
use crate::exit::Exit;
use crate::online::{self, ServerUrl};
use crate::output::Printer;

pub(crate) fn run(asked: &WhichServer, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(asked)?;
    let ready = online::is_ready(&server)?;
    let said = if ready {
        "ready"
    } else {
        "not ready: the server is stopping, and only finishes requests that it has begun"
    };
    printer.value(&json!({ "ready": ready, "server": server.to_string() }), |_| Ok(said.to_owned()))?;
    Ok(if ready { Exit::Done } else { Exit::No })
}
