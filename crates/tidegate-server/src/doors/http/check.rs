//! `POST /v1/check` and `/v1/peek`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::json;
use smallvec::SmallVec;
use tidegate::config::{Config, Format};
use tidegate::gate::Charged;
use tidegate::policy::PolicySet;
use tokio::runtime::Handle;

use super::answer::Reply;
use super::explain::explained;
use super::policies;
use super::request_body::{self, CheckBody, MAX_PROPOSED, MAX_PROPOSED_BODY};
use super::routes::Query;
use crate::active_config::ActiveConfig;
use crate::app::App;
use crate::body::{Body, Response, json};
use crate::decider::{Conclusion, NoTicket, TicketFor, Want};
use crate::metrics::Transport;
use crate::problem::{Delayed, Problem};
use crate::requests;
use crate::settings::Refused;

/// After a check that met more limits than this, others have their turn.
const MANY: usize = 64;

/// Decides one request: `/v1/check`, or without charging `/v1/peek`.
pub(crate) async fn check(app: &App, request: Request<Body>, want: Want) -> Result<Response, Problem> {
    let bytes = request_body::read(request, request_body::MAX_BODY).await?;
    let asked = request_body::check(&bytes)?;
    let live = app.decider.live();
    let only = named(&live.set, &asked)?;
    let ticket = if want == Want::Take { TicketFor::Caller(asked.ticket) } else { TicketFor::Nobody };
    let (mut held, only) = (Charged::default(), only.as_deref());
    let keep = ticket.keeps(&live).then_some(&mut held);
    let conclusion =
        app.decider.deciding.decide(&live, asked.check(), only, want, keep, Transport::http).await;
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
/// [`NoTicket`] if a place was taken and no ticket can return it; then everything is undone.
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
    let (decider, request) = (&app.decider, &asked.request);
    let id = (want == Want::Take).then(|| decider.telemetry.name(live, &asked.check(), only, conclusion));
    let ticket = decider.tickets.make_or_undo(request, conclusion, held, ticket, id).await?;
    let facts = conclusion.facts(live, &decider.metrics);
    Ok(Reply { decider, request, conclusion, facts, want, id, ticket })
}

/// Returns the indices in `set`, which need not be in force, of the policies that a caller named.
///
/// # Errors
/// 400 for an unknown policy name.
pub(crate) fn named(set: &PolicySet, asked: &CheckBody<'_>) -> Result<Option<SmallVec<[usize; 4]>>, Problem> {
    let Some(names) = &asked.policies else { return Ok(None) };
    let find = |name: &Cow<'_, str>| {
        requests::find(set, name).map_err(|none| {
            let advice = if none.meant.is_none() { "; GET /v1/policies lists them" } else { "" };
            Problem::bad_request(format!("{none}{advice}")).with("field", "policies")
        })
    };
    names.iter().map(find).collect::<Result<_, _>>().map(Some)
}

// `POST /v1/dry-run`: how a request would be decided, now or after a change of the policies. Charges nothing.
//
// Proposed policies are evaluated over the present counters: a policy finds its keys by its name, so the answer is
// that of the first check after a reload. They are never in force, and have no series.

/// The longest body that is answered on a thread of connections, in a turn of long work.
const SHORT: usize = 1024;

struct Proposed {
    set: Arc<PolicySet>,
    warnings: Vec<String>,
}

/// Answers how a request would be decided.
///
/// # Errors
/// 400 for a malformed body, 413 for too long a text, 422 with every mistake in it, 503 while the most texts that
/// may be read at once are being read.
pub(crate) async fn dry_run(app: &Arc<App>, request: Request<Body>) -> Result<Response, Problem> {
    let reveal = Query::of(request.uri(), &["reveal"])?.flag("reveal")?;
    let bytes = request_body::read(request, MAX_PROPOSED_BODY).await?;
    if bytes.len() <= SHORT {
        drop(app.first_long_turn().await?);
        return answer(app, &bytes, reveal).await;
    }
    let Ok(place) = Arc::clone(&app.proposals).try_acquire_owned() else {
        let detail = "the largest number of proposed texts is being read already; try again in a second";
        return Err(Problem::unavailable(detail));
    };
    let (app, runtime) = (Arc::clone(app), Handle::current());
    let answering = move || {
        // Held by the work, which goes on when the caller hangs up.
        let _place = place;
        runtime.block_on(answer(&app, &bytes, reveal))
    };
    // Reading thousands of policies, asking them, writing and dropping them takes longer than others should wait.
    let answered = tokio::task::spawn_blocking(answering).await;
    answered.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the dry run failed"))?
}

async fn answer(app: &App, bytes: &[u8], reveal: bool) -> Result<Response, Problem> {
    let asked = request_body::dry_run(bytes)?;
    let live = app.decider.live();
    let proposed = match &asked.config {
        Some(text) => Some(proposed(app, text)?),
        None => None,
    };
    let set = proposed.as_ref().map_or(&live.set, |proposed| &proposed.set);
    let only = named(set, &asked.check)?;
    let conclusion = app.decider.deciding.dry_run(set, asked.check.check(), only.as_deref()).await;
    // Without headers, whose facts only policies in force have.
    let reply = Reply::of_look(&app.decider, &asked.check.request, &conclusion);
    let mut answer = explained(app, set, &reply, only.as_deref(), reveal);
    answer["status"] = reply.status().as_u16().into();
    answer["config"] = json!(if proposed.is_some() { "proposed" } else { "in-force" });
    answer["warnings"] = json!(proposed.map(|proposed| proposed.warnings).unwrap_or_default());
    Ok(json::shown(&answer))
}

fn proposed(app: &App, text: &str) -> Result<Proposed, Problem> {
    if text.len() > MAX_PROPOSED {
        let detail = format!("`config` has {} bytes; at most {MAX_PROPOSED} are read here", text.len());
        let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
        return Err(problem.with("field", "config").with("max_bytes", MAX_PROPOSED));
    }
    let read = Config::parse_to_serve(text, "config", Format::of_text(text));
    let (config, warnings) = read.map_err(|mistakes| policies::of_mistakes(&mistakes))?;
    app.decider.fits(&config.policies).map_err(|Refused { diagnostics }| policies::of_lines(diagnostics))?;
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok(Proposed { set: config.policies, warnings })
}
