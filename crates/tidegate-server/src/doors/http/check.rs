//! `POST /v1/check`, `/v1/check/batch` and `/v1/peek`.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, StatusCode};
use smallvec::SmallVec;
use tidegate::policy::PolicySet;

use super::answer::Reply;
use super::request_body::{self, CheckBody, MAX_BATCH_LIMITS};
use crate::app::App;
use crate::engine::{Conclusion, Held, NoTicket, TicketFor, Want};
use crate::json;
use crate::live::Live;
use crate::metrics::Transport;
use crate::problem::Problem;
use crate::requests;

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
    let held = &mut Held::default();
    let answer =
        decide(app, &live, &asked, only.as_deref(), want, ticket, held, |reply| reply.response(&live)).await;
    answer.map_err(|none| unreturnable(&none, StatusCode::BAD_REQUEST))
}

/// Decides many requests, in order. All are read before the first is charged. An engine is asked for all of them in one
/// exchange.
pub(crate) async fn batch(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = request_body::read(request, request_body::MAX_BATCH_BODY).await?;
    let checks = request_body::batch(&bytes)?;
    let live = app.engine.live();
    let mut chosen = Vec::with_capacity(checks.len());
    for (at, asked) in checks.iter().enumerate() {
        chosen.push(named(&live, asked).map_err(|problem| problem.with("index", at))?);
    }
    let asked: Vec<_> =
        checks.iter().zip(&chosen).map(|(asked, only)| (asked.check(), only.as_deref())).collect();
    // In an answer, a ticket takes as much room for each limit as the limit's own entry.
    let tickets = checks.iter().any(|asked| TicketFor::Caller(asked.ticket).keeps(&live));
    let most_limits = if tickets { MAX_BATCH_LIMITS / 2 } else { MAX_BATCH_LIMITS };
    let conclusions = app.engine.decide_each(&live, &asked, most_limits).await;
    let in_batch = |reply: Reply<'_, '_>| reply.in_batch();
    let mut answers = Vec::with_capacity(checks.len());
    for ((asked, only), (conclusion, mut held)) in checks.iter().zip(&chosen).zip(conclusions) {
        let decided = Decided { conclusion: &conclusion, held: &mut held };
        let (ticket, only) = (TicketFor::Caller(asked.ticket), only.as_deref());
        let answer = conclude(app, &live, asked, only, Want::Take, ticket, decided, in_batch).await;
        answers.push(answer.unwrap_or_else(|none| unreturnable(&none, StatusCode::BAD_REQUEST).in_batch()));
    }
    answers.resize_with(checks.len(), || undecided(most_limits));
    let mut response = json::bytes(&answers).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The answer to a check of a batch that was not decided, because the answers before it are long enough already.
fn undecided(most_limits: usize) -> serde_json::Value {
    let detail = format!(
        "not decided, and nothing was charged: a batch is answered with {most_limits} limits; ask again"
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).in_batch()
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
    live: &Live,
    asked: &CheckBody<'_>,
    only: Option<&[usize]>,
    want: Want,
    ticket: TicketFor,
    held: &mut Held,
    answer: impl FnOnce(Reply<'_, '_>) -> A,
) -> Result<A, NoTicket> {
    let keep = ticket.keeps(live).then_some(&mut *held);
    let conclusion = app.engine.decide(live, asked.check(), only, want, keep, Transport::http).await;
    let decided = Decided { conclusion: &conclusion, held };
    conclude(app, live, asked, only, want, ticket, decided, answer).await
}

/// A decision and its charges.
pub(crate) struct Decided<'a> {
    pub(crate) conclusion: &'a Conclusion,
    pub(crate) held: &'a mut Held,
}

/// Makes the answer to a decision, with the errors of [`decide`].
#[allow(clippy::too_many_arguments, reason = "what was asked, and what is wanted of the answer")]
pub(crate) async fn conclude<A>(
    app: &App,
    live: &Live,
    asked: &CheckBody<'_>,
    only: Option<&[usize]>,
    want: Want,
    ticket: TicketFor,
    Decided { conclusion, held }: Decided<'_>,
    answer: impl FnOnce(Reply<'_, '_>) -> A,
) -> Result<A, NoTicket> {
    let check = asked.check();
    let named = requests::conclude(&app.engine, live, &check, only, want, ticket, conclusion, held).await?;
    let facts = app.engine.facts(live, conclusion);
    let (request, id, ticket) = (&asked.request, named.id, named.ticket.as_ref());
    let engine = &app.engine;
    Ok(answer(Reply { engine, request, conclusion, facts: &facts, want, id, ticket }))
}

/// Returns the indices of the policies that a caller named.
///
/// # Errors
/// 400 for an unknown policy name.
pub(crate) fn named(live: &Live, asked: &CheckBody<'_>) -> Result<Option<SmallVec<[usize; 4]>>, Problem> {
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
