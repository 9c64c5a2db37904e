//! `/v1/forward-auth`: a proxy asks for a decision on each request before it passes the request on.
//!
//! nginx (`auth_request`), Caddy (`forward_auth`) and Traefik (ForwardAuth) send a sub-request that carries the
//! original one in headers. A 2xx lets the request pass. Caddy and Traefik pass any other answer to the client
//! unchanged, with its headers. So a refusal is written for the public, even if the sub-request has a token: the token
//! is the proxy's, but its client reads the answer. nginx accepts only 401 and 403 as refusals, so its usual
//! `status` is 403.
//!
//! Whatever the proxy does not replace in the sub-request comes from the caller. So nothing in it changes how the door
//! works but the three headers of the configured family, and the priority if the file names a header for it. The query
//! is not read at all, since Caddy passes on the caller's query.
//!
//! A browser's preflight passes uncharged, because otherwise a page would be refused before it asked for anything.
//! Deny-lists, deadlines and blocks still apply to it. The answer to a delayed request is held back, since proxies cannot delay requests; a
//! caller that hangs up before that has spent nothing.

mod original;

use std::net::SocketAddr;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CACHE_CONTROL, COOKIE, HeaderMap, HeaderName, HeaderValue,
    ORIGIN,
};
use http::{Request, StatusCode};
use tidegate::Charged;
use tidegate::gate::ticket::Ticket;
use tidegate::http_answer::server_parts::{insert, push_escaped};
use ulid::{ULID_LEN, Ulid};

use self::original::{Original, add_others};
use super::check::{reply_to, unreturnable};
use super::request_body::CheckBody;
use crate::app::App;
use crate::engine::{TicketAnswer, TicketFor, Want};
use crate::metrics::{RequestOutcome, Transport};
use crate::problem::Problem;
use crate::uncovered_requests::Misdirected;

/// Undoes the charges if it is dropped before the caller was answered.
struct HungUp<'a> {
    app: &'a App,
    held: Option<Charged>,
    ticket: Option<Ticket>,
}

impl Drop for HungUp<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.app.engine.tickets.undo_unwatched(&held);
            if let Some(ticket) = &self.ticket {
                self.app.engine.tickets.withdraw(ticket);
            }
        }
    }
}

/// Decides the original request.
///
/// # Cancel safety
/// If dropped while the answer is delayed, it has spent nothing.
pub(crate) async fn forward_auth(
    app: &App,
    request: Request<Body>,
    peer: SocketAddr,
) -> Result<Response, Problem> {
    let live = app.engine.live();
    let proxy = &live.proxy;
    let headers = request.headers();
    let read = proxy
        .forward_auth()
        .and_then(|forward_auth| Ok((forward_auth, Original::of(headers, peer.ip(), proxy)?)));
    let (forward_auth, original) = read.inspect_err(|problem| {
        if problem.is_of_proxy() {
            app.engine.telemetry.misdirected(&Misdirected::SubRequest(problem.detail().to_owned()));
        }
    })?;
    let preflight = !forward_auth.charge_preflights && is_preflight(original.method, headers);
    let Original { descriptor: request, priority, .. } = original;
    let mut asked = CheckBody { request, cost: None, priority, policies: None, ticket: None };
    if preflight && !app.engine.deciding.refuses_before_limits(&asked.check()) {
        app.engine.metrics.requests.count(Transport::http, RequestOutcome::allowed);
        let unlimited = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
        return Ok((StatusCode::OK, unlimited).into_response());
    }
    let denied = proxy.deny_status();
    let mut held = Charged::default();
    let keep = TicketFor::Proxied.keeps(&live).then_some(&mut held);
    let conclusion =
        app.engine.deciding.decide(&live, asked.check(), None, Want::Take, keep, Transport::http).await;
    if conclusion.met() == 0 {
        live.unmet.note_sub_request(&live.set);
    }
    if !conclusion.allowed() {
        add_others(headers, proxy, &mut asked.request);
    }
    let proxied = TicketFor::Proxied;
    let reply = reply_to(app, &live, &asked, None, Want::Take, proxied, &conclusion, &held).await;
    let too_long = denied.unwrap_or(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    let reply = reply.map_err(|none| unreturnable(&none, too_long))?;
    let mut response = reply.to_proxy(&live, denied);
    write_decision(reply.id, reply.ticket.as_ref(), response.headers_mut());
    let wait = reply.wait();
    if !wait.is_zero() {
        let ticket = reply.ticket.and_then(|answer| answer.ticket);
        let mut hung_up = HungUp { app, held: Some(held), ticket };
        tokio::time::sleep(wait).await;
        hung_up.held = None;
    }
    Ok(response)
}

/// Returns whether a request is a CORS preflight, which a browser sends by itself before a page's request.
///
/// # Source
/// The Fetch standard, "CORS-preflight fetch": the method, its two headers, and never credentials.
fn is_preflight(method: &str, headers: &HeaderMap) -> bool {
    let says = |name: HeaderName| headers.get(name).is_some_and(|value| !value.is_empty());
    method == "OPTIONS"
        && says(ORIGIN)
        && says(ACCESS_CONTROL_REQUEST_METHOD)
        && !headers.contains_key(AUTHORIZATION)
        && !headers.contains_key(COOKIE)
}

// The headers of forward-auth. The library writes those of rate limits ([`tidegate::http_answer`]).

// Headers of forward-auth for the proxy and the application behind it: the decision id, the policy that refused, and
// the ticket.

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

/// Reads a sub-request like the door, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use std::net::IpAddr;

    use http::HeaderMap;
    use tidegate::policy::Named;

    use super::{Original, add_others};
    use crate::proxy::Proxy;
    use crate::settings::Settings;

    /// The most attributes from headers that no policy names.
    pub const MAX_ATTRIBUTES: usize = super::super::request_body::MAX_ATTRIBUTES;

    /// A forward-auth door made from settings.
    #[derive(Debug)]
    pub struct ForwardAuthDoor(Proxy);

    impl ForwardAuthDoor {
        /// Makes the door.
        #[must_use]
        pub fn new(settings: &Settings) -> Self {
            Self(Proxy::new(settings))
        }

        /// Returns the attributes that the policies name.
        #[must_use]
        pub fn named(&self) -> &Named {
            &self.0.named
        }

        /// Returns the attributes of the original request; `None` if the sub-request is refused.
        #[must_use]
        pub fn attributes(&self, headers: &HeaderMap, peer: IpAddr) -> Option<Vec<(String, String)>> {
            let mut request = Original::of(headers, peer, &self.0).ok()?.descriptor;
            add_others(headers, &self.0, &mut request);
            let pairs = request.pairs();
            Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        }
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
