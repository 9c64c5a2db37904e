//! `POST /v1/check` and `/v1/peek`.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode};
use smallvec::SmallVec;
use tidegate::Charged;
use tidegate::policy::PolicySet;

use super::answer::Reply;
use super::request_body::{self, CheckBody};
use crate::active_config::ActiveConfig;
use crate::app::App;
use crate::engine::{Conclusion, NoTicket, TicketFor, Want};
use crate::metrics::Transport;
use crate::problem::{Delayed, Problem};
use crate::requests;

/// After a check that met more limits than this, others have their turn.
const MANY: usize = 64;

/// Decides one request and charges its cost.
pub(crate) async fn check(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    one(app, request, Want::Take).await
}

/// Decides one request and charges nothing.
pub(crate) async fn peek(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    one(app, request, Want::Peek).await
}

async fn one(app: &App, request: Request<Body>, want: Want) -> Result<Response, Problem> {
    let bytes = request_body::read(request, request_body::MAX_BODY).await?;
    let asked = request_body::check(&bytes)?;
    let live = app.engine.live();
    let only = named(&live, &asked)?;
    let ticket = if want == Want::Take { TicketFor::Caller(asked.ticket) } else { TicketFor::Nobody };
    let (mut held, only) = (Charged::default(), only.as_deref());
    let keep = ticket.keeps(&live).then_some(&mut held);
    let conclusion =
        app.engine.deciding.decide(&live, asked.check(), only, want, keep, Transport::http).await;
    let reply = reply_to(app, &live, &asked, only, want, ticket, &conclusion, &held).await;
    let reply = reply.map_err(|none| unreturnable(&none, StatusCode::BAD_REQUEST))?;
    let mut response = reply.response(&live);
    if conclusion.met() > MANY {
        response.extensions_mut().insert(Delayed(Duration::ZERO));
    }
    Ok(response)
}

/// Refuses a request whose place nobody could return.
pub(crate) fn unreturnable(none: &NoTicket, status: StatusCode) -> Problem {
    let detail = format!("refused, since the place that it takes could not be returned: {none}");
    let problem = Problem::new(status, detail);
    match &none.policy {
        Some(policy) => problem.with("policy", policy.as_str()),
        None => problem,
    }
}

/// Makes the reply to a decision: gives it its id and its ticket. `held` has its charges, which may be undone here.
///
/// # Errors
/// [`NoTicket`] if a place was taken and no ticket could be made that returns it; then everything is undone.
#[allow(clippy::too_many_arguments, reason = "what was asked, and what came of it")]
pub(crate) async fn reply_to<'a, 'd>(
    app: &'a App,
    live: &'a ActiveConfig,
    asked: &'a CheckBody<'d>,
    only: Option<&[usize]>,
    want: Want,
    ticket: TicketFor,
    conclusion: &'a Conclusion,
    held: &Charged,
) -> Result<Reply<'a, 'd>, NoTicket> {
    let (engine, request) = (&app.engine, &asked.request);
    let id = (want == Want::Take).then(|| engine.telemetry.name(live, &asked.check(), only, conclusion));
    let ticket = engine.tickets.make_or_undo(request, conclusion, held, ticket, id).await?;
    let facts = conclusion.facts(live, &engine.metrics);
    Ok(Reply { engine, request, conclusion, facts, want, id, ticket })
}

/// Returns the indices of the policies that a caller named.
///
/// # Errors
/// 400 for an unknown policy name.
pub(crate) fn named(
    live: &ActiveConfig,
    asked: &CheckBody<'_>,
) -> Result<Option<SmallVec<[usize; 4]>>, Problem> {
    named_among(&live.set, asked)
}

/// Returns the indices in `set` of the policies that a caller named. The set need not be in force.
///
/// # Errors
/// As [`named`].
pub(crate) fn named_among(
    set: &PolicySet,
    asked: &CheckBody<'_>,
) -> Result<Option<SmallVec<[usize; 4]>>, Problem> {
    let Some(names) = &asked.policies else { return Ok(None) };
    let find = |name: &Cow<'_, str>| {
        requests::find(set, name).map_err(|none| {
            let advice = if none.meant.is_none() { "; GET /v1/policies lists them" } else { "" };
            Problem::bad_request(format!("{none}{advice}")).with("field", "policies")
        })
    };
    names.iter().map(find).collect::<Result<_, _>>().map(Some)
}
