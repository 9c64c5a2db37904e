//! `/v1/forward-auth`: a proxy asks for a decision before it passes a request on.
//!
//! nginx (`auth_request`), Caddy (`forward_auth`) and Traefik (ForwardAuth) send a sub-request with the original
//! one in headers. A 2xx lets it pass. Caddy and Traefik pass any other answer on to the client, so a refusal is
//! written for the public even if the sub-request has a token: the token is the proxy's, but its client reads the
//! answer. nginx takes only 401 and 403 for refusals, so its usual `status` is 403.
//!
//! What the proxy does not replace comes from the caller. So nothing in it changes how the door works but the three
//! headers of the configured family, and the priority if the file names a header for it. The query is not read, since
//! Caddy passes on the caller's.
//!
//! A browser's preflight passes uncharged, or a page would be refused before it asked for anything; deny-lists,
//! deadlines and blocks still apply. Proxies cannot delay requests, so the answer to a delayed one is held back, and
//! a caller that hangs up before has spent nothing.

mod original;

use std::net::SocketAddr;

use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CACHE_CONTROL, COOKIE, HeaderMap, HeaderName, HeaderValue,
    ORIGIN,
};
use http::{Request, StatusCode};
use tidegate::gate::Charged;

use self::original::{Original, add_others, taken_for_named};
use super::answer::write_decision;
use super::check::{reply_to, unreturnable};
use super::request_body::CheckBody;
use crate::app::App;
use crate::body::{Body, Response};
use crate::decider::{TicketFor, Want};
use crate::doors::HungUp;
use crate::metrics::{RequestOutcome, Transport};
use crate::problem::Problem;
use crate::uncovered_requests::Misdirected;

/// Decides the original request.
///
/// # Cancel safety
/// If dropped while the answer is delayed, it has spent nothing.
pub(crate) async fn forward_auth(
    app: &App,
    request: Request<Body>,
    peer: SocketAddr,
) -> Result<Response, Problem> {
    let live = app.decider.live();
    let proxy = &live.proxy;
    let headers = request.headers();
    let read = proxy
        .forward_auth()
        .and_then(|forward_auth| Ok((forward_auth, Original::of(headers, peer.ip(), proxy)?)));
    let (forward_auth, original) = read.inspect_err(|problem| {
        if problem.is_of_proxy() {
            app.decider.telemetry.misdirected(&Misdirected::SubRequest(problem.detail().to_owned()));
        } else if let Some(header) = taken_for_named(headers, proxy) {
            live.unmet.note_taken_for_named(proxy, header.as_str());
        }
    })?;
    let preflight = !forward_auth.charge_preflights && is_preflight(original.method, headers);
    let Original { descriptor: request, priority, .. } = original;
    let mut asked = CheckBody { request, cost: None, priority, policies: None, ticket: None };
    if preflight && !app.decider.deciding.refuses_before_limits(&asked.check()) {
        app.decider.metrics.requests.count(Transport::http, RequestOutcome::allowed);
        let mut unlimited = Response::default();
        unlimited.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return Ok(unlimited);
    }
    let denied = proxy.deny_status();
    let mut held = Charged::default();
    let keep = TicketFor::Proxied.keeps(&live).then_some(&mut held);
    let conclusion =
        app.decider.deciding.decide(&live, asked.check(), None, Want::Take, keep, Transport::http).await;
    if conclusion.allowed() && conclusion.met() == 0 {
        live.unmet.note_sub_request(&live.set, &asked.request);
    }
    if conclusion.met() > 0 {
        live.unmet.look_at_sub_request(&asked.request);
    }
    if !conclusion.allowed() {
        add_others(headers, proxy, &mut asked.request);
    }
    let proxied = TicketFor::Proxied;
    let too_long = denied.unwrap_or(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    // A block, so that the reply is gone before the delay: it would make the future of every request larger.
    let (response, wait, ticket) = {
        let reply = reply_to(app, &live, &asked, None, Want::Take, proxied, &conclusion, &held).await;
        let reply = reply.map_err(|none| unreturnable(&none, too_long))?;
        let mut response = reply.to_proxy(&live, denied);
        write_decision(reply.id, reply.ticket.as_ref(), response.headers_mut());
        (response, reply.wait(), reply.ticket.and_then(|answer| answer.ticket))
    };
    if !wait.is_zero() {
        let mut hung_up = HungUp { decider: &app.decider, held: Some(held), ticket };
        tokio::time::sleep(wait).await;
        hung_up.held = None;
    }
    Ok(response)
}

/// Returns whether a request is a CORS preflight, which a browser sends by itself.
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

/// Reads a sub-request as the door does.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use std::net::IpAddr;

    use http::HeaderMap;
    use tidegate::policy::Named;

    use super::{Original, add_others};
    use crate::proxy::Proxy;
    use crate::settings::Settings;

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

        /// The attributes of the original request; `None` if the sub-request is refused.
        #[must_use]
        pub fn attributes(&self, headers: &HeaderMap, peer: IpAddr) -> Option<Vec<(String, String)>> {
            let mut request = Original::of(headers, peer, &self.0).ok()?.descriptor;
            add_others(headers, &self.0, &mut request);
            let pairs = request.pairs();
            Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        }
    }
}
