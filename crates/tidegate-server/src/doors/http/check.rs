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
    let held = &mut Charged::default();
    let answer = decide(app, &live, &asked, only.as_deref(), want, ticket, held, |reply| {
        (reply.response(&live), reply.conclusion.met())
    })
    .await;
    let (mut response, met) = answer.map_err(|none| unreturnable(&none, StatusCode::BAD_REQUEST))?;
    if met > MANY {
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

/// Decides a request and makes its answer. Afterwards `held` has the charges, if they may become a ticket or be undone.
///
/// # Errors
/// [`NoTicket`] if a place was taken and no ticket could be made that returns it; then everything is undone. Otherwise
/// a few callers with long keys could hold all places until their time to live is over.
#[allow(clippy::too_many_arguments, reason = "what is asked, and what is wanted of the answer")]
pub(crate) async fn decide<A>(
    app: &App,
    live: &ActiveConfig,
    asked: &CheckBody<'_>,
    only: Option<&[usize]>,
    want: Want,
    ticket: TicketFor,
    held: &mut Charged,
    answer: impl FnOnce(Reply<'_, '_>) -> A,
) -> Result<A, NoTicket> {
    let keep = ticket.keeps(live).then_some(&mut *held);
    let conclusion = app.engine.deciding.decide(live, asked.check(), only, want, keep, Transport::http).await;
    let decided = Decided { conclusion: &conclusion, held };
    conclude(app, live, asked, only, want, ticket, decided, answer).await
}

/// A decision and its charges.
pub(crate) struct Decided<'a> {
    pub(crate) conclusion: &'a Conclusion,
    pub(crate) held: &'a mut Charged,
}

/// Makes the answer to a decision, with the errors of [`decide`].
#[allow(clippy::too_many_arguments, reason = "what was asked, and what is wanted of the answer")]
pub(crate) async fn conclude<A>(
    app: &App,
    live: &ActiveConfig,
    asked: &CheckBody<'_>,
    only: Option<&[usize]>,
    want: Want,
    ticket: TicketFor,
    Decided { conclusion, held }: Decided<'_>,
    answer: impl FnOnce(Reply<'_, '_>) -> A,
) -> Result<A, NoTicket> {
    let check = asked.check();
    let named = requests::conclude(&app.engine, live, &check, only, want, ticket, conclusion, held).await?;
    let facts = conclusion.facts(live, &app.engine.metrics);
    let (request, id, ticket) = (&asked.request, named.id, named.ticket.as_ref());
    let engine = &app.engine;
    Ok(answer(Reply { engine, request, conclusion, facts: &facts, want, id, ticket }))
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
