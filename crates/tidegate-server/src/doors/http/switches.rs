//! `/v1/switches`: lists degrade switches, and turns them off and on by hand or by a signal.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use serde_json::{Value, json};
use tidegate::policy::span;
use tidegate::switches::{Off, Standing};
use tidegate::{Criticality, Tick};

use super::request_body;
use crate::app::App;
use crate::engine::SwitchedBy;
use crate::json;
use crate::problem::Problem;
use crate::span::moment;
use crate::spelling::{nearest, quoted};

/// The longest body, in bytes: room for a reason of 255 bytes.
const MAX_BODY: usize = 4096;
/// The longest time for which a switch can be off, unless it is off until turned on.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);
const EXAMPLE: &str =
    r#"{"state": "off", "below": "critical", "for": "10min", "reason": "the image service is moved"}"#;

/// The body of a `PUT`.
#[derive(Debug)]
struct Put {
    state: String,
    by: Option<String>,
    below: Option<String>,
    lasts: Option<String>,
    reason: Option<String>,
}

/// `GET /v1/switches`: every switch that policies refer to.
pub(crate) fn list(app: &App) -> Response {
    json::shown(&json!({ "switches": app.engine.switches().iter().map(switch_json).collect::<Vec<Value>>() }))
}

/// `PUT /v1/switches/{name}`: turns a switch off or on, and answers its state.
///
/// # Errors
/// 404 that suggests the nearest name if no policy refers to the switch; 400 for a malformed body.
pub(crate) async fn put(app: &App, request: Request<Body>, name: &str) -> Result<Response, Problem> {
    let bytes = request_body::read(request, MAX_BODY).await?;
    let [state, by, below, lasts, reason] =
        request_body::strings(&bytes, EXAMPLE, &["state", "by", "below", "for", "reason"])?;
    let put = Put { state: state.unwrap_or_default(), by, below, lasts, reason };
    let (by, off) = wanted(&put)?;
    app.engine.turn_switch(name, by, off).map_err(|unknown| {
        let meant = nearest(&unknown.name, unknown.known.iter().map(String::as_str));
        let advice = match meant {
            Some(meant) => format!("; did you mean {meant:?}?"),
            None if unknown.known.is_empty() => String::new(),
            None => format!("; they use {}", unknown.known.join(", ")),
        };
        Problem::not_found(format!("no policy uses a switch {}{advice}", quoted(&unknown.name)))
    })?;
    let Put { state, reason, lasts, below, .. } = &put;
    // Signals are not logged, since they repeat all the time.
    if by == SwitchedBy::Hand {
        tracing::info!(switch = name, state, below, lasts, reason, "a switch is turned by hand");
    }
    let all = app.engine.switches();
    let one = all.iter().filter(|one| one.name == name);
    Ok(json::shown(&json!({ "switches": one.map(switch_json).collect::<Vec<Value>>() })))
}

fn wanted(put: &Put) -> Result<(SwitchedBy, Option<Off>), Problem> {
    let refuse = |field: &str, detail: String| Problem::bad_request(detail).with("field", field);
    let word = |field: &str, said: &str, words: &[&'static str]| {
        // With only two words, a misspelt third is often as near to one as to the other.
        let advice = match nearest(said, words.iter().copied()).filter(|_| words.len() > 2) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("use {}", words.join(", ")),
        };
        refuse(field, format!("`{field}` is {}; {advice}", quoted(said)))
    };
    let by = match put.by.as_deref() {
        None | Some("hand") => SwitchedBy::Hand,
        Some("signal") => SwitchedBy::Signal,
        Some(other) => return Err(word("by", other, &["hand", "signal"])),
    };
    match put.state.as_str() {
        "off" => {}
        "on" => {
            let more = [("below", &put.below), ("for", &put.lasts), ("reason", &put.reason)];
            return match more.into_iter().find(|(_, said)| said.is_some()) {
                Some((field, _)) => {
                    Err(refuse(field, format!("a switch that is on has no `{field}`; leave it out")))
                }
                None => Ok((by, None)),
            };
        }
        other => return Err(word("state", other, &["on", "off"])),
    }
    let reason = request_body::reason(put.reason.clone())?;
    let mut off = match put.below.as_deref() {
        None => Off::for_all(&reason),
        Some(below) => {
            let level = Criticality::ALL.into_iter().find(|level| level.as_str() == below);
            let words = Criticality::ALL.map(Criticality::as_str);
            let level = level.ok_or_else(|| word("below", below, &words))?;
            if level == Criticality::Sheddable {
                let detail = "no request is below `sheddable`, so the switch would be off for nobody; use sheddable-plus, critical or \
                     critical-plus, or leave out `below` to turn it off for all";
                return Err(refuse("below", detail.to_owned()));
            }
            Off::below(level, &reason)
        }
    };
    if let Some(text) = &put.lasts {
        let lasts = match span(text) {
            Ok(lasts) if lasts > Duration::ZERO && lasts <= LONGEST => lasts,
            Ok(_) => {
                let detail = format!(
                    "{} is not a time for a switch to be off; use up to 30d, or leave it out",
                    quoted(text)
                );
                return Err(refuse("for", detail));
            }
            Err(error) => return Err(refuse("for", error.to_string())),
        };
        off = off.lasting(lasts);
    }
    Ok((by, Some(off)))
}

fn switch_json(one: &Standing) -> Value {
    let off = |off: &Option<(Off, Option<Tick>)>| {
        let (off, until) = off.as_ref()?;
        let until = until.and_then(|until| moment(until, Duration::ZERO));
        Some(
            json!({ "below": off.on_from().map(Criticality::as_str), "until": until, "reason": off.reason() }),
        )
    };
    let (by_hand, by_signal) = (off(&one.by_hand), off(&one.by_signal));
    let state = if by_hand.is_some() || by_signal.is_some() { "off" } else { "on" };
    json!({ "name": one.name, "state": state, "by_hand": by_hand, "by_signal": by_signal })
}
