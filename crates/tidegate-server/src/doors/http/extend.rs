//! `POST /v1/extend`: holds the places of a check longer, for work that takes longer than their time to live.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use serde_json::{Value, json};
use tidegate::Tick;
use tidegate::gate::ticket::{Extended, HeldPlace, Ticket};
use ulid::Ulid;

use super::request_body::{self, SettlementBody};
use super::settle::refuse;
use crate::app::App;
use crate::json;
use crate::problem::Problem;

/// Holds the places of a ticket longer, and answers the ticket that returns them from then on.
pub(super) async fn extend(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = request_body::read(request, request_body::MAX_BODY).await?;
    let SettlementBody { ticket, .. } = request_body::extend(&bytes)?;
    let ticket = ticket.parse::<Ticket>().map_err(|error| refuse(error.into()))?;
    let extended = app.engine.tickets.extend(&ticket).await.map_err(|error| refuse(error.into()))?;
    Ok(json::ok(&answer(&extended, app.engine.now())))
}

fn answer(extended: &Extended, now: Tick) -> Value {
    // Rounded down: a holder who is told a second must not come late.
    let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let place = |one: &HeldPlace| {
        let lapses = (one.lapses != Tick::MAX).then(|| millis(one.lapses.since(now)));
        json!({ "name": one.policy, "places": one.places.units(), "lapses_after_ms": lapses, "shadow": one.shadow })
    };
    json!({
        "decision_id": Ulid::from(extended.id).to_string(),
        "ticket": extended.ticket.to_string(),
        "expires_after_ms": millis(extended.expires.since(now)),
        "places": extended.places.iter().map(place).collect::<Vec<_>>(),
    })
}
