//! `/v1/signals`: lists the numbers that policies depend on, and takes reported signals.

use axum::body::Body;
use axum::response::Response;
use http::Request;
use serde_json::{Value, json};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::policy::SignalError;

use super::request_body;
use crate::app::App;
use crate::json;
use crate::problem::Problem;
use crate::spelling::{nearest, quoted};

/// The longest report, in bytes: a number and its name.
const MAX_BODY: usize = 1 << 10;

/// `GET /v1/signals`: every number that conditions and moving rates depend on: the value that they go by, which is null
/// if none is known or the last one is stale for all of them, and the last one.
pub(crate) fn list(app: &App) -> Response {
    let numbers = app.engine.conditions.sources().into_iter().map(|one| {
        json!({
            "name": one.source.to_string(),
            "value": one.value,
            "last": one.last,
            "age_ms": one.age.map(millis_up),
        })
    });
    json::ok(&json!({ "signals": numbers.collect::<Vec<Value>>() }))
}

/// `POST /v1/signals/{name}`: takes the value of a signal, `{"value": 1200}`.
///
/// # Errors
/// 404 that suggests the nearest name if no policy uses the signal; 400 if the body is not a finite number.
pub(crate) async fn report(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let path = request.uri().path().to_owned();
    let name = path.strip_prefix("/v1/signals/").unwrap_or_default();
    let bytes = request_body::read(request, MAX_BODY).await?;
    let value = request_body::signal(&bytes)?;
    app.engine.conditions.report_signal(name, value).map_err(|error| match error {
        SignalError::Unknown { name, known } => {
            let meant = nearest(&name, known.iter().map(String::as_str));
            let advice = match meant {
                Some(meant) => format!("; did you mean {meant:?}?"),
                None if known.is_empty() => String::new(),
                None => format!("; they use {}", known.join(", ")),
            };
            Problem::not_found(format!("no policy and no switch uses a signal {}{advice}", quoted(&name)))
        }
        other => Problem::bad_request(other.to_string()),
    })?;
    Ok(json::ok(&json!({ "signal": name, "value": value })))
}
