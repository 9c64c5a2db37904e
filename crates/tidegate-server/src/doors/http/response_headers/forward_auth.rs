//! Headers of forward-auth for the proxy and the application behind it: the decision id, the policy that refused, and
//! the ticket.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate::http_answer::server_parts::{insert, push_escaped};
use ulid::{ULID_LEN, Ulid};

use crate::engine::TicketAnswer;

/// The id of the decision, for logs.
const DECISION_ID: HeaderName = HeaderName::from_static("x-tidegate-decision-id");
/// The policy that refused, for proxies that write the answer themselves and can insert the value of a header.
const POLICY: HeaderName = HeaderName::from_static("x-tidegate-policy");
/// The longest policy name in the header, in bytes: the whole head must fit the 4 KiB buffer into which nginx reads it.
const LONGEST_POLICY: usize = 128;
/// The ticket that settles the decision, if a policy expects a settlement.
const TICKET: HeaderName = HeaderName::from_static("x-tidegate-ticket");
/// Why there is no ticket, or one for the places alone, although a policy expects a settlement.
const TICKET_ERROR: HeaderName = HeaderName::from_static("x-tidegate-ticket-error");

/// Writes the policy that refused. The name is percent-encoded as in a path, so that it can stand between quotes in any
/// language. A long name is cut.
pub(crate) fn write_refusing_policy(name: &str, out: &mut HeaderMap) {
    let mut value = String::new();
    push_escaped(name, LONGEST_POLICY, &mut value);
    insert(out, POLICY, value);
}

/// Writes the headers with the decision id and the ticket.
pub(crate) fn write_decision(id: Option<Ulid>, answer: Option<&TicketAnswer>, out: &mut HeaderMap) {
    // Letters and digits only, which any header can carry.
    if let Some(Ok(value)) = id.map(|id| HeaderValue::from_str(id.array_to_str(&mut [0; ULID_LEN]))) {
        out.insert(DECISION_ID, value);
    }
    let Some(TicketAnswer { ticket, error }) = answer else { return };
    if let Some(ticket) = ticket {
        insert(out, TICKET, ticket.to_string());
    }
    if let Some(error) = error {
        insert(out, TICKET_ERROR, error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policys_name_is_one_word_that_no_quote_ends_and_is_bounded() {
        let written = |name: &str| {
            let mut out = HeaderMap::new();
            write_refusing_policy(name, &mut out);
            out[POLICY].to_str().unwrap().to_owned()
        };
        assert_eq!(written("per-ip_2.x~"), "per-ip_2.x~");
        assert_eq!(written("a \"b\\\r\n</ä"), "a%20%22b%5C%0D%0A%3C%2F%C3%A4");
        assert_eq!(written(&"x".repeat(100_000)), "x".repeat(128));
        assert_eq!(written(&"ä".repeat(100)), "%C3%A4".repeat(21), "no escape is cut in two");
    }
}
