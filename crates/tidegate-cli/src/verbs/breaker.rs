//! Lists the breakers of a running server, and forces their states.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use crate::args::{Breaker, Breakers, Forcing, WhichBreaker};
use crate::exit::Exit;
use crate::online::{self, RefusedByServer, ServerUrl, USUAL_SERVER};
use crate::output::Printer;
use crate::styled::Styled;
use crate::table::table;

pub(crate) fn run(breakers: &Breakers, printer: &Printer) -> Result<Exit> {
    let asked = &breakers.server;
    let server = ServerUrl::read(asked.server.as_deref().unwrap_or(USUAL_SERVER), &asked.trust)?;
    let answer = match &breakers.does {
        Breaker::List { policy, reveal } => {
            let of = policy.as_ref().map(|policy| format!("/{}", encoded(policy))).unwrap_or_default();
            let reveal = if *reveal { "?reveal=true" } else { "" };
            online::ask(&server, &format!("/v1/breakers{of}{reveal}"), None)?
        }
        Breaker::ForceOpen(forcing) => force(&server, "open", forcing)?,
        Breaker::ForceClosed(forcing) => force(&server, "closed", forcing)?,
        Breaker::MetricsOnly(forcing) => force(&server, "metrics-only", forcing)?,
        Breaker::Disable(forcing) => force(&server, "disabled", forcing)?,
        Breaker::Auto(which) => put(&server, which, &json!({ "state": "auto" }))?,
    };
    printer.value(&answer, |_| Ok(listed(&answer)))?;
    Ok(Exit::Done)
}

fn force(server: &ServerUrl, state: &str, forcing: &Forcing) -> Result<Value> {
    let mut body = json!({ "state": state });
    if let Some(lasts) = &forcing.lasts {
        body["for"] = lasts.as_str().into();
    }
    if let Some(reason) = &forcing.reason {
        body["reason"] = reason.as_str().into();
    }
    put(server, &forcing.which, &body)
}

/// Puts a breaker into a state. An error about the key names the option that selects one.
fn put(server: &ServerUrl, which: &WhichBreaker, body: &Value) -> Result<Value> {
    online::put(server, &path(which), body).map_err(|error| {
        let problem =
            error.downcast_ref::<RefusedByServer>().map_or(&Value::Null, |refused| &refused.problem);
        let names = problem["key"].as_array().map_or(&[][..], Vec::as_slice);
        let words: Vec<String> =
            names.iter().filter_map(Value::as_str).map(|name| format!("--key {name}=...")).collect();
        match words.is_empty() {
            true => error,
            false => anyhow!("{error}; write {}", words.join(" ")),
        }
    })
}

fn path(which: &WhichBreaker) -> String {
    let mut path = format!("/v1/breakers/{}", encoded(&which.policy));
    for (at, (name, value)) in which.key.iter().enumerate() {
        let sign = if at == 0 { '?' } else { '&' };
        // Writing to a string does not fail.
        let _ = write!(path, "{sign}{}={}", encoded(name), encoded(value));
    }
    path
}

/// Encodes a text for any part of a URL. Outside the query a plus would not mean a space.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

fn listed(answer: &Value) -> Styled {
    let breakers = answer["breakers"].as_array().map_or(&[][..], Vec::as_slice);
    if breakers.is_empty() {
        return "no breaker has opened".to_owned().into();
    }
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let rows = breakers.iter().map(|one| {
        let why = if one["tripped_by"].is_string() { &one["tripped_by"] } else { &one["reason"] };
        vec![
            text(&one["policy"]),
            text(&one["key"]),
            text(&one["state"]),
            text(&one["since"]),
            text(&one["until"]),
            would_have_opened(one).or_else(|| shed(one)).unwrap_or_else(|| text(why)),
        ]
    });
    table(&["POLICY", "KEY", "STATE", "SINCE", "UNTIL", "WHY"], &[], rows)
}

/// Describes why a breaker sheds, and how much; `None` if it does not shed.
fn shed(one: &Value) -> Option<String> {
    let percent = one.get("refused_share")?.as_f64()? * 100.0;
    Some(format!("{}; refuses {percent:.1} % of the calls", one["tripped_by"].as_str()?))
}

/// Describes what a breaker that only measures would have done; `None` if it would have done nothing.
fn would_have_opened(one: &Value) -> Option<String> {
    let would = one.get("would_have_opened")?;
    let times = match would["times"].as_u64()? {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    Some(format!("would have opened {times}, last: {}", would["by"].as_str()?))
}
