//! `PUT` and `DELETE /v1/policies/{name}`: changes policies that the API owns.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{ETAG, HeaderValue};
use http::{Method, Request, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::entity_tags::Conditions;
use super::policies::{json_and_tag, tag_in};
use super::refused_policies;
use super::request_body;
use crate::active_config::ActiveConfig;
use crate::api_policies::MAX_TEXT;
use crate::app::App;
use crate::json;
use crate::problem::Problem;
use crate::reload::{Changed, NotChanged};

/// Puts or deletes a policy.
///
/// # Errors
/// 404 for a policy to delete that does not exist, 409 for a policy that the API does not own, 412 if a condition does
/// not hold, 413 if the text is too long, 422 with every mistake, and 503 if the policy cannot be stored. Nothing has
/// changed then.
pub(crate) async fn change(app: &Arc<App>, request: Request<Body>, name: &str) -> Result<Response, Problem> {
    let name = percent_decode_str(name).decode_utf8();
    let name = name.map_err(|_| Problem::bad_request("the name of a policy is UTF-8"))?.into_owned();
    let conditions = Conditions::of(request.headers());
    let text = if *request.method() == Method::PUT {
        let bytes = request_body::read(request, MAX_TEXT).await?;
        let text = String::from_utf8(bytes.to_vec());
        Some(text.map_err(|_| Problem::bad_request("the body is not UTF-8; a policy is YAML or JSON"))?)
    } else {
        None
    };
    let deleted = text.is_none();
    let holds = {
        let name = name.clone();
        move |live: &ActiveConfig| conditions.hold(tag_in(live, &name).as_deref())
    };
    // In its own task: if the caller hangs up, a stored policy is still put in force.
    let changing = {
        let (app, name) = (Arc::clone(app), name.clone());
        async move { app.reload.change(&app.engine, &name, text.as_deref(), holds).await }
    };
    let changed = tokio::spawn(changing).await;
    let failed =
        || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the change failed; the log has the reason");
    let changed = changed.map_err(|_| failed())?.map_err(|why| not_changed(&name, why))?;
    let Changed { live, new, kept, warnings } = changed;
    let told = json!({ "survives_restart": kept, "warnings": warnings });
    if deleted {
        let mut answer = json!({ "policy": name, "deleted": true });
        extend(&mut answer, told);
        return Ok(json::shown(&answer));
    }
    let (_, policy) = live.set.find(&name).ok_or_else(failed)?;
    let (mut answer, tag) = json_and_tag(app, &live, policy);
    extend(&mut answer, told);
    let mut response = json::shown(&answer);
    *response.status_mut() = if new { StatusCode::CREATED } else { StatusCode::OK };
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

fn extend(answer: &mut serde_json::Value, more: serde_json::Value) {
    if let (Some(answer), serde_json::Value::Object(more)) = (answer.as_object_mut(), more) {
        answer.extend(more);
    }
}

fn not_changed(name: &str, why: NotChanged) -> Problem {
    let detail = format!("policy {name:?}: {why}");
    match why {
        NotChanged::Cluster(_) => Problem::conflict(detail).with("owner", "cluster"),
        NotChanged::File(place) => Problem::conflict(detail).with("owner", "file").with("place", place),
        NotChanged::Program => Problem::conflict(detail).with("owner", "program"),
        NotChanged::NoRoom(_) => Problem::conflict(detail),
        NotChanged::NoPolicy => Problem::not_found(detail),
        NotChanged::Condition => Problem::new(StatusCode::PRECONDITION_FAILED, detail),
        NotChanged::Mistakes(mistakes) => refused_policies::of_mistakes(&mistakes),
        NotChanged::Unfit(refused) => refused_policies::of_lines(refused.diagnostics),
        NotChanged::NotSaved(_) => Problem::unavailable(detail),
    }
}
