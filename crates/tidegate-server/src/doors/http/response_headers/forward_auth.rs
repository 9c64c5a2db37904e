//! What forward-auth tells the application behind the proxy: which decision let the request pass, and with what to settle it.

use http::header::{HeaderMap, HeaderName};
use tidegate::gate::ticket::Ticket;
use ulid::Ulid;

use super::insert::insert;
use crate::engine::NoTicket;

/// The id of the decision, for logs.
const DECISION_ID: HeaderName = HeaderName::from_static("x-tidegate-decision-id");
/// What settles the decision, where a policy expects that.
const TICKET: HeaderName = HeaderName::from_static("x-tidegate-ticket");
/// Why there is no ticket although a policy expects one.
const TICKET_ERROR: HeaderName = HeaderName::from_static("x-tidegate-ticket-error");

/// Writes the headers that name and settle a decision.
pub(crate) fn write_decision(
    id: Option<Ulid>,
    ticket: Option<&Result<Ticket, NoTicket>>,
    out: &mut HeaderMap,
) {
    if let Some(id) = id {
        insert(out, DECISION_ID, id.to_string());
    }
    match ticket {
        Some(Ok(ticket)) => insert(out, TICKET, ticket.to_string()),
        Some(Err(error)) => insert(out, TICKET_ERROR, error.to_string()),
        None => {}
    }
}
