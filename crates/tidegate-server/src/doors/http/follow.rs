//! `POST /v1/report` and `/v1/refund`: the second half of a decision.

use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode};
use serde_json::json;
use tidegate::Report;
use ulid::Ulid;

use super::App;
use super::body;
use super::problem::{Problem, quoted};
use crate::engine::Unfollowed;
use crate::recent::NoFollow;

/// Tells how the work ended: charges or resets `charge: on-failure` policies.
pub(crate) async fn report(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = body::read(request.into_body(), body::MAX_BODY).await?;
    let followed = body::report(&bytes)?;
    let id = decision_id(followed.decision_id.as_deref().unwrap_or_default())?;
    let report = Report::from_status(followed.status.unwrap_or_default());
    app.engine.report(id, report).map_err(|why| refuse(id, "reported", why))?;
    let outcome = match report {
        Report::Success => "success",
        Report::Failure => "failure",
        Report::Ignored => "ignored",
    };
    Ok(super::ok(&json!({ "decision_id": id.to_string(), "outcome": outcome })))
}

/// Gives back what was charged, or part of it.
pub(crate) async fn refund(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = body::read(request.into_body(), body::MAX_BODY).await?;
    let followed = body::refund(&bytes)?;
    let id = decision_id(followed.decision_id.as_deref().unwrap_or_default())?;
    app.engine.refund(id, followed.cost).map_err(|why| refuse(id, "refunded", why))?;
    let cost = followed.cost.map(tidegate::Cost::units);
    Ok(super::ok(&json!({ "decision_id": id.to_string(), "refunded": cost })))
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
