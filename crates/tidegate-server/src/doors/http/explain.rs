//! `/v1/explain`: explains a decision, and what would let the request pass.
//!
//! `POST` takes the body of a check. `GET ?id=` takes the id of a recent refusal, which is decided anew, since counters
//! have moved. Nothing is charged. `lines` is the answer for a terminal, `reasons` the same for programs.

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tidegate::explain::Explanation;
use tidegate::policy::{Policy, PolicySet};
use ulid::Ulid;

use super::answer::Reply;
use super::check::{decide, named, unreturnable};
use super::query::Query;
use super::request_body::{self, CheckBody};
use crate::app::App;
use crate::engine::{Conclusion, Held, TicketFor, Want};
use crate::json;
use crate::live::Live;
use crate::problem::Problem;
use crate::refused_requests::Stated;
use crate::spelling::quoted;

/// Decides without charging, and explains the decision.
pub(crate) async fn explain(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let query = Query::of(&parts.uri, &["id", "reveal"])?;
    let reveal = query.flag("reveal")?;
    let live = app.engine.live();
    if let Some(id) = query.get("id") {
        let id = decision_id(id)?;
        let (stated, remembered) = app.engine.find(id).ok_or_else(|| unknown(id))?;
        let remembered = remembered.ok_or_else(|| {
            let detail =
                format!("the request of decision {id} was too long to be kept; POST the body of the check");
            Problem::conflict(detail)
        })?;
        let still = |name: &&str| live.set.find(name).is_some();
        let names = remembered.only().map(|names| names.iter().map(|name| &**name).filter(still));
        let policies = names.map(|names| names.map(Into::into).collect());
        let Stated { cost, priority } = stated;
        let asked = CheckBody { request: remembered.descriptor(), cost, priority, policies, ticket: None };
        return answer(app, &live, &asked, reveal).await;
    }
    if parts.method == Method::GET {
        let detail = "say which decision: GET /v1/explain?id=DECISION_ID, or POST the body of a check";
        return Err(Problem::bad_request(detail).with("field", "id"));
    }
    let bytes = request_body::read(Request::from_parts(parts, body), request_body::MAX_BODY).await?;
    let asked = request_body::check(&bytes)?;
    answer(app, &live, &asked, reveal).await
}

async fn answer(app: &App, live: &Live, asked: &CheckBody<'_>, reveal: bool) -> Result<Response, Problem> {
    let only = named(live, asked)?;
    let (ticket, held) = (TicketFor::Nobody, &mut Held::default());
    let answered = decide(app, live, asked, only.as_deref(), Want::Peek, ticket, held, |reply| {
        explained(app, &live.set, reply, only.as_deref(), reveal)
    });
    answered.await.map(|body| json::shown(&body)).map_err(|none| unreturnable(&none, StatusCode::BAD_REQUEST))
}

/// Returns a decision with its reasons, under the policy set of that decision. `only`: the policies that were asked.
pub(super) fn explained(
    app: &App,
    set: &PolicySet,
    reply: Reply<'_, '_>,
    only: Option<&[usize]>,
    reveal: bool,
) -> Value {
    let (conclusion, request) = (reply.conclusion, reply.request);
    let mut answer = reply.value();
    let Conclusion::Decided(decision) = conclusion else { return answer };
    let chosen = |place| only.is_none_or(|only| only.contains(&place));
    let key = |policy: &Policy| app.redact.key(set, policy, request, reveal);
    let explanation = Explanation::of(set, request, decision, chosen, key);
    answer["lines"] = explanation.to_string().lines().collect();
    answer["reasons"] = json!(explanation.reasons);
    answer
}

/// Parses a decision id.
fn decision_id(text: &str) -> Result<Ulid, Problem> {
    Ulid::from_string(text).map_err(|_| {
        let detail = format!("{} is not a decision id, which has 26 letters and digits", quoted(text));
        Problem::bad_request(detail).with("field", "id")
    })
}

/// Makes the problem for an id that is not remembered.
fn unknown(id: Ulid) -> Problem {
    let detail = format!(
        "decision {id} is not known here: it was allowed (only refused requests are remembered), belongs to another \
         server, is older than the last restart, or was forgotten; POST the body of the check"
    );
    Problem::not_found(detail)
}
