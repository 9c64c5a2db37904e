//! `/v1/switches`: lists degrade switches, and turns them by hand or by a signal.

use std::time::Duration;

use http::Request;
use serde_json::{Value, json};
use tidegate::Tick;
use tidegate::gate::switches::{Off, Standing};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::policy::{SignalError, Source, Trigger};
use tidegate::priority::Criticality;
use tidegate::visible;

use super::request_body;
use crate::app::App;
use crate::body::{Body, Response, json};
use crate::decider::{Setting, SwitchedBy};
use crate::problem::Problem;
use crate::text::{moment, nearest, quoted};

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

/// `GET /v1/switches`: every switch of policies or of the section `switches`.
pub(crate) fn list(app: &App) -> Response {
    json::shown(
        &json!({ "switches": app.decider.conditions.switches().iter().map(switch_json).collect::<Vec<Value>>() }),
    )
}

/// `PUT /v1/switches/{name}`: turns a switch, and answers its state.
///
/// # Errors
/// 404 with the nearest name for an unknown switch; 400 for a malformed body.
pub(crate) async fn put(app: &App, request: Request<Body>, name: &str) -> Result<Response, Problem> {
    let token = app.access.name_of(request.headers());
    let bytes = request_body::read(request, request_body::MAX_OPERATOR_BODY).await?;
    let [state, by, below, lasts, reason] =
        request_body::strings(&bytes, EXAMPLE, &["state", "by", "below", "for", "reason"])?;
    let put = Put { state: state.unwrap_or_default(), by, below, lasts, reason };
    let (by, setting) = wanted(&put)?;
    let before = app.decider.sight().and_then(|_| is_off(app, name));
    app.decider.conditions.turn_switch(name, by, setting).map_err(|unknown| {
        let advice = advice(&unknown.name, &unknown.known, "there are");
        Problem::not_found(format!("there is no switch {}{advice}", quoted(&unknown.name)))
    })?;
    let Put { state, reason, lasts, below, .. } = &put;
    // Signals are not logged, since they repeat all the time.
    if by == SwitchedBy::Hand {
        tracing::info!(
            token = token.as_deref(),
            switch = name,
            state,
            below,
            lasts,
            reason,
            "a switch is turned by hand"
        );
    }
    // A signal is a change only if it turns the switch.
    if by == SwitchedBy::Hand || app.decider.sight().is_some_and(|_| before != is_off(app, name)) {
        let who = token.as_deref().unwrap_or_default();
        app.decider.tell_change("switch", who, reason.as_deref().unwrap_or_default(), || {
            let below = below.as_deref().map_or_else(String::new, |below| format!(" below {below}"));
            let lasts = lasts.as_deref().map_or_else(String::new, |lasts| format!(" for {lasts}"));
            let by = if by == SwitchedBy::Signal { " by a signal" } else { "" };
            format!("switch {} is turned {state}{below}{lasts}{by}", visible::name(name))
        });
    }
    let all = app.decider.conditions.switches();
    let one = all.iter().filter(|one| one.name == name);
    Ok(json::shown(&json!({ "switches": one.map(switch_json).collect::<Vec<Value>>() })))
}

/// Returns whether a switch is off; `None` if there is none of that name.
fn is_off(app: &App, name: &str) -> Option<bool> {
    let all = app.decider.conditions.switches();
    all.iter().find(|one| one.name == name).map(|one| one.off().is_some())
}

/// Returns the known name that was probably meant, or all of them.
fn advice(name: &str, known: &[String], all: &str) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(meant) => format!("; did you mean {meant:?}?"),
        None if known.is_empty() => String::new(),
        None => format!("; {all} {}", known.join(", ")),
    }
}

fn wanted(put: &Put) -> Result<(SwitchedBy, Setting), Problem> {
    let refuse = |field: &str, detail: String| Problem::bad_request(detail).with("field", field);
    let word = |field: &str, said: &str, words: &[&'static str]| {
        // Of two words, a misspelt third is often as near to one as to the other.
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
        "on" => return on(put, by).map(|setting| (by, setting)),
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
        off = off.lasting(lasts(text, "off")?);
    }
    Ok((by, Setting::Off(off)))
}

/// Reads `"state": "on"`; with `for` the switch is kept on for that time.
fn on(put: &Put, by: SwitchedBy) -> Result<Setting, Problem> {
    let refuse = |field: &str, detail: String| Err(Problem::bad_request(detail).with("field", field));
    if put.below.is_some() {
        return refuse("below", "a switch that is on has no `below`; leave it out".to_owned());
    }
    match (&put.lasts, by) {
        (None, _) if put.reason.is_some() => {
            let detail = "a `reason` to be on needs `for`: the time for which the switch is kept on, whatever signals say";
            refuse("reason", detail.to_owned())
        }
        (None, _) => Ok(Setting::On),
        (Some(_), SwitchedBy::Signal) => {
            refuse("for", "a signal keeps no switch on; leave out `for`, or send it by hand".to_owned())
        }
        (Some(text), SwitchedBy::Hand) => {
            let time = lasts(text, "on")?;
            Ok(Setting::KeptOn(time, request_body::reason(put.reason.clone())?))
        }
    }
}

fn lasts(text: &str, state: &str) -> Result<Duration, Problem> {
    let not = format!("a time for a switch to be {state}; use up to 30d, or leave it out");
    request_body::lasts(text, &not)
}

fn switch_json(one: &Standing) -> Value {
    let part = |part: &Option<(Off, Option<Tick>)>| {
        let (off, until) = part.as_ref()?;
        let until = until.and_then(|until| moment(until, Duration::ZERO));
        let below = off.on_from().filter(|_| !off.is_for_nobody()).map(Criticality::as_str);
        let mut shown = json!({ "below": below, "until": until, "reason": off.reason() });
        if off.is_for_nobody() {
            shown["state"] = "on".into();
        }
        Some(shown)
    };
    let (by_hand, by_signal) = (part(&one.by_hand), part(&one.by_signal));
    let state = if one.off().is_some() { "off" } else { "on" };
    let mut shown = json!({ "name": one.name, "state": state, "by_hand": by_hand, "by_signal": by_signal });
    if !one.triggers.is_empty() {
        shown["triggers"] = one.triggers.iter().map(|trigger| trigger_json(trigger)).collect();
    }
    shown
}

fn trigger_json(trigger: &Trigger) -> Value {
    json!({
        "off_when": trigger.off_when().to_string(),
        "below": trigger.on_from().map(Criticality::as_str),
        "hold_ms": millis_up(trigger.hold_time()),
        "for_ms": millis_up(trigger.lasting_time()),
    })
}

// `/v1/signals`: the numbers that policies depend on.

/// The longest report, in bytes: a number and its name.
const MAX_REPORT: usize = 1 << 10;

/// `GET /v1/signals`: every number that conditions and moving rates depend on, with its last value. `value` is what
/// they go by: null if none is known or the last one is stale for all of them.
pub(crate) fn list_signals(app: &App) -> Response {
    let numbers = app.decider.conditions.sources().into_iter().map(|one| {
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
/// 404 with the nearest name if nothing uses the signal; 400 if the body is not a finite number.
pub(crate) async fn report(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let path = request.uri().path().to_owned();
    let token = app.access.name_of(request.headers()).unwrap_or_default();
    let name = path.strip_prefix("/v1/signals/").unwrap_or_default();
    let bytes = request_body::read(request, MAX_REPORT).await?;
    let value = request_body::signal(&bytes)?;
    // Reports come all the time: a change is that a number becomes known.
    let begins = app.decider.sight().is_some_and(|_| !is_known(app, name));
    app.decider.conditions.report_signal(name, value).map_err(|error| match error {
        SignalError::Unknown { name, known } => {
            let advice = advice(&name, &known, "they use");
            Problem::not_found(format!("no policy and no switch uses a signal {}{advice}", quoted(&name)))
        }
        other => Problem::bad_request(other.to_string()),
    })?;
    if begins {
        app.decider.tell_change("signal", &token, "", || {
            format!("signal {} is known now: {value}", visible::name(name))
        });
    }
    Ok(json::ok(&json!({ "signal": name, "value": value })))
}

/// Returns whether the number of a signal is known at present.
fn is_known(app: &App, name: &str) -> bool {
    let all = app.decider.conditions.sources();
    all.iter().any(|one| matches!(&one.source, Source::Signal(own) if **own == *name) && one.value.is_some())
}
