//! `POST /v1/settle`: the second half of a decision.
//!
//! Takes the ticket of the check, and what was spent, how the work ended, or what is given back. A ticket has two
//! halves, outcome and spending; a settlement settles those that it speaks of, each once.

use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::{Value, json};
use tidegate::gate::ticket::{Extended, HeldPlace, SealError, Ticket, TicketError};
use tidegate::gate::{Fate, Part, SettledCharge};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::policy::{CostError, Usage};
use tidegate::visible::excerpt;
use tidegate::{Cost, Outcome, Tick};
use ulid::Ulid;

use super::request_body::{self, SettlementBody};
use crate::app::App;
use crate::body::{Body, Response, json};
use crate::decider::{SettleError, SettledTicket, Settlement, Spent};
use crate::problem::Problem;
use crate::requests::WorkEnd;
use crate::text::nearest;

/// Notes of an answer: the outcome changes no limit.
const NOTHING_WAITED: &str = "no policy with `charge: on-failure` was charged by this decision and no place was taken, so the outcome changes no limit; it ends the work \
     for `in-flight` and `latency`, if nothing has ended it before";

/// The note of a settlement whose other half was settled before.
const TOLD_BEFORE: &str = "how the work ended was reported before, so this settles only what was spent";

const SPENT_BEFORE: &str = "what was spent was settled before, so this reports only how the work ended";

/// The note of a settlement with a cost that changes nothing.
const NOT_BY_COST: &str =
    "no policy that this decision charged settles by `cost`, so the cost changes nothing";

/// How many names a note has.
const NAMES: usize = 8;

/// The note of a settlement that may leave one half of the ticket open.
const AWAITS_OUTCOME: &str =
    "places and charges of failures wait for a `status` or an `outcome`, unless one was sent before";

/// The note of an outcome by itself.
const AWAITS_SPENT: &str = "what was spent may still be told with a `cost` or `attributes`, unless it was before; until then the charge stays";

/// Settles a decision, or gives units back.
pub(crate) async fn settle(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = request_body::read(request, request_body::MAX_BODY).await?;
    let SettlementBody { ticket, usage, ended, refund } = request_body::settle(&bytes)?;
    let part = match (ended, &usage) {
        (None, _) => Part::Spent,
        (Some(WorkEnd::Undone), _) | (Some(_), Some(_)) => Part::All,
        (Some(_), None) => Part::Outcome,
    };
    let is_refund = refund.is_some();
    let (outcome, spent) = match (ended, usage, refund) {
        (_, _, Some(refund)) => (Outcome::Ignored, Spent::Refund(refund.units().and_then(Cost::new))),
        (Some(WorkEnd::Undone), _, _) => (Outcome::Ignored, Spent::Undone),
        (Some(WorkEnd::With(outcome)), usage, _) => (outcome, usage.map_or(Spent::AsCharged, Spent::Usage)),
        (None, usage, _) => (Outcome::Ignored, usage.map_or(Spent::AsCharged, Spent::Usage)),
    };
    let settlement = Settlement { part, outcome, spent };
    let live = app.decider.live();
    let ticket = ticket.parse::<Ticket>().map_err(|error| refuse(error.into()))?;
    let answered = app.decider.tickets.settle(&live, &ticket, &settlement, |settled| {
        let mut answer = json!({
            "decision_id": settled.id.to_string(),
            "outcome": ended.map(WorkEnd::word),
            "policies": settled.charges.iter().map(|(one, why)| part_of(one, why.as_ref())).collect::<Vec<_>>(),
        });
        let (other_half, spent) = (settled.part != part, settled.part != Part::Outcome);
        if other_half && spent {
            answer["outcome"] = Value::Null;
        }
        let (idle_cost, idle_values) = match &settlement.spent {
            Spent::Usage(usage) if spent => (not_by_cost(usage, &settled), not_by_values(usage, &settled)),
            _ => (None, None),
        };
        let notes = [
            (part == Part::Outcome && settled.charges.is_empty(), NOTHING_WAITED),
            (other_half && spent, TOLD_BEFORE),
            (other_half && !spent, SPENT_BEFORE),
            (idle_cost.is_some(), idle_cost.as_deref().unwrap_or_default()),
            (idle_values.is_some(), idle_values.as_deref().unwrap_or_default()),
            (part == Part::Outcome && settled.awaits_spent, AWAITS_SPENT),
            (part == Part::Spent && !is_refund && settled.awaits_outcome, AWAITS_OUTCOME),
        ];
        let notes: Vec<&str> = notes.into_iter().filter_map(|(holds, note)| holds.then_some(note)).collect();
        if !notes.is_empty() {
            answer["note"] = notes.join("; ").into();
        }
        answer
    });
    answered.await.map(|answer| json::ok(&answer)).map_err(refuse)
}

/// Says that a cost changes nothing, and what would.
fn not_by_cost(usage: &Usage<'_>, settled: &SettledTicket<'_>) -> Option<String> {
    if usage.cost.is_none() || settled.by_cost {
        return None;
    }
    if settled.by_values.is_empty() || usage.names().next().is_some() {
        return Some(NOT_BY_COST.to_owned());
    }
    let names = settled.by_values.iter().take(NAMES);
    let values: Vec<String> = names.map(|name| format!("\"{}\": N", excerpt(name))).collect();
    Some(format!("{NOT_BY_COST}; what does is \"attributes\": {{{}}}", values.join(", ")))
}

/// Says that the values change nothing, and what would.
fn not_by_values(usage: &Usage<'_>, settled: &SettledTicket<'_>) -> Option<String> {
    let mut names: Vec<&str> = usage.names().collect();
    let is_used = !settled.by_values.is_empty() || usage.cost.is_some() && settled.by_cost;
    let first = names.first().copied().filter(|_| !is_used)?;
    let sum = ["llm.input", "llm.output"];
    let by = if sum.iter().all(|name| names.contains(name)) { sum.join(" + ") } else { excerpt(first) };
    names.truncate(NAMES);
    let names: Vec<String> = names.into_iter().map(excerpt).collect();
    let or_cost = if settled.by_cost { ", or send a `cost`" } else { "" };
    Some(format!(
        "no policy that this decision charged settles by {}, so they change nothing; a policy settles by them with \
         `settle: {by}` in its `cost`{or_cost}",
        names.join(", ")
    ))
}

fn part_of(one: &SettledCharge<'_>, why: Option<&CostError>) -> Value {
    let mut part = json!({
        "name": one.policy,
        "charged": one.charged.units(),
        "used": one.used,
        "remaining": one.standing.remaining,
        "debt": one.standing.debt,
        "limit": one.standing.limit,
        "reset_after_ms": millis_up(one.standing.reset_after),
    });
    fate(&mut part, one.fate);
    if let Some(why) = why {
        part["note"] = format!("{why}; the charge stays").into();
    }
    part
}

fn fate(part: &mut Value, fate: Fate) {
    let (effect, units) = match fate {
        Fate::Kept => ("kept", None),
        Fate::Forgotten => ("forgotten", None),
        Fate::Returned(units) => ("returned", Some(units)),
        Fate::Owed(units) => ("owed", Some(units)),
    };
    part["effect"] = effect.into();
    if let Some(units) = units {
        part[effect] = units.into();
    }
}

pub(super) fn refuse(why: SettleError) -> Problem {
    match why {
        SettleError::Unknown(unknown) => {
            let meant = nearest(&unknown.name, unknown.known.iter().map(String::as_str));
            let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            Problem::bad_request(format!("{unknown}{advice}"))
                .with("field", "attributes")
                .with("attribute", unknown.name)
        }
        SettleError::AwaitsReport(id) => Problem::conflict(format!(
            "the charge of decision {id} is settled by how the work ended and cannot be refunded; if the work was not done, POST /v1/settle \
             with `\"outcome\": \"undone\"` gives it back"
        )),
        SettleError::TooMuch { id, charged } => {
            let detail = format!("decision {id} charged {charged}; a refund is at most that much");
            Problem::bad_request(detail).with("field", "refund").with("charged", charged)
        }
        SettleError::Ticket(error) => {
            let status = match &error {
                TicketError::Store(store) => {
                    let detail =
                        format!("the store did not settle it and nothing changed; try again ({store})");
                    return Problem::unavailable(detail);
                }
                TicketError::Settled
                | TicketError::NotExtended { .. }
                | TicketError::Seal(SealError::TooLong { .. }) => StatusCode::CONFLICT,
                TicketError::Seal(_) => StatusCode::INTERNAL_SERVER_ERROR,
                TicketError::Expired { .. } => StatusCode::GONE,
                TicketError::Elsewhere { .. } => StatusCode::MISDIRECTED_REQUEST,
                _ => StatusCode::BAD_REQUEST,
            };
            let problem = Problem::new(status, error.to_string()).with("field", "ticket");
            match error {
                TicketError::Elsewhere { issuer, .. } => problem.with("issuer", &*issuer),
                _ => problem,
            }
        }
    }
}

/// `POST /v1/extend`: holds the places of a ticket longer, and answers the ticket that returns them from then on.
pub(super) async fn extend(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = request_body::read(request, request_body::MAX_BODY).await?;
    let SettlementBody { ticket, .. } = request_body::extend(&bytes)?;
    let ticket = ticket.parse::<Ticket>().map_err(|error| refuse(error.into()))?;
    let extended = app.decider.tickets.extend(&ticket).await.map_err(|error| refuse(error.into()))?;
    Ok(json::ok(&answer(&extended, app.decider.now())))
}

fn answer(extended: &Extended, now: Tick) -> Value {
    // Down: a holder who is told a second must not come late.
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
