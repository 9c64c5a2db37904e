//! `POST /v1/report` and `/v1/refund`: the second half of a decision.

use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode};
use serde_json::json;
use tidegate::Report;
use tidegate::gate::{Fate, Followed};
use ulid::Ulid;

use super::App;
use super::body;
use super::problem::{Problem, quoted};
use crate::engine::Unfollowed;
use crate::recent::NoFollow;

/// What a report says that changes nothing.
const NOTHING_WAITED: &str =
    "no policy with `charge: on-failure` was charged by this decision, so the report changes nothing";

/// Tells how the work ended: keeps, forgets or gives back what `charge: on-failure` policies took.
pub(crate) async fn report(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = body::read(request.into_body(), body::MAX_BODY).await?;
    let followed = body::report(&bytes)?;
    let id = decision_id(followed.decision_id.as_deref().unwrap_or_default())?;
    let report = Report::from_status(followed.status.unwrap_or_default());
    let outcome = match report {
        Report::Success => "success",
        Report::Failure => "failure",
        Report::Ignored => "ignored",
    };
    let answer = app.engine.report(id, report, |policies| {
        let parts = policies.iter().map(|one| {
            let mut part = json!({ "name": one.policy, "charged": one.charged.units() });
            let (effect, returned) = match one.fate {
                Fate::Kept | Fate::Owed(_) => ("kept", None),
                Fate::Forgotten => ("forgotten", None),
                Fate::Returned(units) => ("returned", Some(units)),
            };
            part["effect"] = effect.into();
            if let Some(units) = returned {
                part["returned"] = units.into();
            }
            part
        });
        let mut answer = json!({ "decision_id": id.to_string(), "outcome": outcome });
        answer["policies"] = parts.collect();
        if policies.is_empty() {
            answer["note"] = NOTHING_WAITED.into();
        }
        answer
    });
    Ok(super::ok(&answer.map_err(|why| refuse(id, "reported", why))?))
}

/// Gives back what was charged, or part of it.
pub(crate) async fn refund(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = body::read(request.into_body(), body::MAX_BODY).await?;
    let followed = body::refund(&bytes)?;
    let id = decision_id(followed.decision_id.as_deref().unwrap_or_default())?;
    let answer = app.engine.refund(id, followed.cost, |policies| {
        let returned = |one: &Followed<'_>| if let Fate::Returned(units) = one.fate { units } else { 0 };
        let part = |one: &Followed<'_>| {
            json!({ "name": one.policy, "charged": one.charged.units(), "refunded": returned(one) })
        };
        json!({
            "decision_id": id.to_string(),
            "refunded": policies.iter().map(returned).max().unwrap_or(0),
            "policies": policies.iter().map(part).collect::<Vec<_>>(),
        })
    });
    Ok(super::ok(&answer.map_err(|why| refuse(id, "refunded", why))?))
}

/// Reads an id.
///
/// # Errors
/// 400 when it is none.
pub(crate) fn decision_id(text: &str) -> Result<Ulid, Problem> {
    Ulid::from_string(text).map_err(|_| {
        let detail =
            format!("{} is no decision id; it is the 26 letters and digits a check answered", quoted(text));
        Problem::bad_request(detail).with("field", "decision_id")
    })
}

/// Says that an id leads nowhere.
pub(crate) fn unknown(id: Ulid) -> Problem {
    let detail = format!(
        "decision {id} is not known here: it is another server's, older than its restart, or forgotten"
    );
    Problem::not_found(detail)
}

fn refuse(id: Ulid, done: &str, why: Unfollowed) -> Problem {
    match why {
        Unfollowed::Not(NoFollow::Unknown) => unknown(id),
        Unfollowed::Not(NoFollow::Twice) => Problem::conflict(format!("decision {id} was {done} already")),
        Unfollowed::Not(NoFollow::NothingCharged) => {
            Problem::conflict(format!("decision {id} charged nothing, so there is nothing to give back"))
        }
        Unfollowed::Not(NoFollow::AwaitsReport) => Problem::conflict(format!(
            "what decision {id} charged waits for a report; where the work was not done, report 503 and it is given back"
        )),
        Unfollowed::Not(NoFollow::TooLong) => Problem::conflict(format!(
            "the keys that decision {id} charged were too long to be remembered, so nothing can follow it"
        )),
        Unfollowed::Not(NoFollow::TooMuch { charged }) => {
            let detail = format!("decision {id} charged {charged}; a refund is at most that");
            Problem::bad_request(detail).with("field", "cost").with("charged", charged)
        }
        Unfollowed::Store(error) => {
            let detail = format!("the store did not settle it and nothing changed; try again ({error})");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }
}
