//! What forward-auth tells the application behind the proxy: which decision let the request pass, and with what to settle it.

use http::header::{HeaderMap, HeaderName};
use ulid::Ulid;

use super::insert::insert;
use crate::engine::TicketAnswer;

/// The id of the decision, for logs.
const DECISION_ID: HeaderName = HeaderName::from_static("x-tidegate-decision-id");
/// What settles the decision, where a policy expects that.
const TICKET: HeaderName = HeaderName::from_static("x-tidegate-ticket");
/// Why there is no ticket, or one of the places alone, although a policy expects one.
const TICKET_ERROR: HeaderName = HeaderName::from_static("x-tidegate-ticket-error");

/// Writes the headers that name and settle a decision.
pub(crate) fn write_decision(id: Option<Ulid>, answer: Option<&TicketAnswer>, out: &mut HeaderMap) {
    if let Some(id) = id {
        insert(out, DECISION_ID, id.to_string());
    }
    let Some(TicketAnswer { ticket, error }) = answer else { return };
    if let Some(ticket) = ticket {
        insert(out, TICKET, ticket.to_string());
    }
    if let Some(error) = error {
        insert(out, TICKET_ERROR, error.to_string());
    }
}
