//! Small verbs on a running server: whether it is ready, its drain, its degrade switches, its breakers.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate_sim::grouped;

use crate::args::{Breaker, Breakers, Drain, Forcing, PolicyKey, Switch, Switches, TurnedOff, WhichServer};
use crate::exit::Exit;
use crate::online::{self, ServerUrl, encoded, query, with_end, with_options};
use crate::outcome::span;
use crate::output::Printer;
use crate::styled::{Cell, Look, Styled, table, text};

// For container health checks and for scripts that wait.

pub(crate) fn ready(asked: &WhichServer, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(asked)?;
    let ready = online::is_ready(&server)?;
    let said = if ready {
        "ready"
    } else {
        "not ready: the server is drained, or it is stopping and only finishes requests that it has begun"
    };
    printer.value(&json!({ "ready": ready, "server": server.to_string() }), |_| Ok(said.to_owned()))?;
    Ok(if ready { Exit::Done } else { Exit::No })
}

/// The path of the drain.
const DRAIN: &str = "/v1/drain";

/// How often a drain is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn drain(drain: &Drain, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(&drain.server)?;
    if drain.undo {
        let answer = online::delete(&server, DRAIN)?;
        printer.value(&answer, |_| Ok("the server is ready again".to_owned()))?;
        return Ok(Exit::Done);
    }
    online::ask(&server, DRAIN, Some(&json!({})))?;
    printer.remark("the server is not ready any more, and still answers");
    let answer = online::until(&server, DRAIN, LOOK_EVERY, drain.within, |state| state["may_stop"] == true)?;
    let may_stop = answer["may_stop"] == true;
    printer.value(&answer, |_| Ok(drained(&answer, may_stop)))?;
    Ok(if may_stop { Exit::Done } else { Exit::No })
}

/// What a drain has done, and what it still waits for.
fn drained(state: &Value, may_stop: bool) -> String {
    let number = |value: &Value| grouped(value.as_u64().unwrap_or_default());
    let quiet = Duration::from_millis(state["quiet_ms"].as_u64().unwrap_or_default());
    let mut done = match may_stop {
        true => format!("the server may be stopped: no request for {}", span(quiet)),
        false => format!(
            "the server may not be stopped yet: {} requests since the drain began, the last {} ago",
            number(&state["requests"]),
            span(quiet)
        ),
    };
    let leases = &state["leases"];
    if leases.is_object() {
        let [held, returned, burned] = ["held", "returned", "burned"].map(|name| number(&leases[name]));
        done += &format!("; of its leases {returned} units are given back, {burned} lost, {held} held");
    }
    match state["part_handed_over"].as_bool() {
        Some(true) => done += "; other nodes have its part of the limits",
        Some(false) => done += "; its part of the limits is handed over when requests cease",
        None => {}
    }
    if !may_stop {
        done += "\ntake it out of the load balancer and run this again, or end it with --undo";
    }
    done
}

pub(crate) fn switch(switches: &Switches, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(&switches.server)?;
    let answer = match &switches.does {
        Switch::List => online::ask(&server, "/v1/switches", None)?,
        Switch::Off(off) => online::put(&server, &switch_path(&off.name), &wanted_switch(off))?,
        Switch::On(on) => {
            let body = with_end(json!({ "state": "on" }), on.lasts.as_deref(), on.reason.as_deref());
            online::put(&server, &switch_path(&on.name), &body)?
        }
    };
    printer.value(&answer, |_| Ok(listed_switches(&answer)))?;
    if matches!(switches.does, Switch::On(_)) && answer["switches"][0]["state"] == "off" {
        printer.remark("a signal keeps this switch off; it is on when the source of the signal turns it on, or when the time of its last signal is over; --for TIME keeps it on until then");
        return Ok(Exit::No);
    }
    Ok(Exit::Done)
}

fn switch_path(name: &str) -> String {
    format!("/v1/switches/{}", encoded(name))
}

fn wanted_switch(off: &TurnedOff) -> Value {
    let mut body = with_end(json!({ "state": "off" }), off.lasts.as_deref(), off.reason.as_deref());
    if let Some(level) = off.below {
        body["below"] = level.as_str().into();
    }
    body
}

/// A switch that was set has a row for each who set it.
fn listed_switches(answer: &Value) -> Styled {
    let switches = answer["switches"].as_array().map_or(&[][..], Vec::as_slice);
    if switches.is_empty() {
        return "the policy file names no switch".into();
    }
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for one in switches {
        let causes = [("hand", &one["by_hand"]), ("signal", &one["by_signal"])];
        let before = rows.len();
        for (by, off) in causes.into_iter().filter(|(_, off)| off.is_object()) {
            let off_for = off["below"].as_str().map_or("all".to_owned(), |level| format!("below {level}"));
            let priorities = if off["state"] == "on" { "none".to_owned() } else { off_for };
            let words = [by.to_owned(), priorities, text(&off["until"]), text(&off["reason"])];
            rows.push(switch_row(one, Some(Look::Doubtful), words));
        }
        if rows.len() == before {
            rows.push(switch_row(one, None, ["-"; 4].map(str::to_owned)));
        }
    }
    table(&["SWITCH", "STATE", "BY", "PRIORITIES", "UNTIL", "WHY"], &[], rows)
}

fn switch_row(one: &Value, look: Option<Look>, words: [String; 4]) -> Vec<Cell> {
    let named = [Cell::from(text(&one["name"])), Cell::looking(text(&one["state"]), look)];
    named.into_iter().chain(words.map(Cell::from)).collect()
}

pub(crate) fn breaker(breakers: &Breakers, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(&breakers.server)?;
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
        Breaker::Auto(which) => put_breaker(&server, which, &json!({ "state": "auto" }))?,
    };
    printer.value(&answer, |_| Ok(listed_breakers(&answer)))?;
    if let Some(note) = answer["note"].as_str() {
        printer.remark(note);
    }
    Ok(Exit::Done)
}

fn force(server: &ServerUrl, state: &str, forcing: &Forcing) -> Result<Value> {
    let body = with_end(json!({ "state": state }), forcing.lasts.as_deref(), forcing.reason.as_deref());
    put_breaker(server, &forcing.which, &body)
}

fn put_breaker(server: &ServerUrl, which: &PolicyKey, body: &Value) -> Result<Value> {
    let path = format!("/v1/breakers/{}{}", encoded(&which.policy), query(which));
    online::put(server, &path, body).map_err(with_options)
}

fn listed_breakers(answer: &Value) -> Styled {
    let breakers = answer["breakers"].as_array().map_or(&[][..], Vec::as_slice);
    if breakers.is_empty() {
        return "no breaker has opened".to_owned().into();
    }
    let rows = breakers.iter().map(|one| {
        let why = if one["tripped_by"].is_string() { &one["tripped_by"] } else { &one["reason"] };
        vec![
            text(&one["policy"]),
            text(&one["key"]),
            limit(one, breakers),
            text(&one["mode"]),
            text(&one["state"]),
            text(&one["since"]),
            if one["probe_due"] == true { "probe due".to_owned() } else { text(&one["until"]) },
            would_have_opened(one).or_else(|| shed(one)).unwrap_or_else(|| text(why)),
        ]
    });
    table(&["POLICY", "KEY", "LIMIT", "MODE", "STATE", "SINCE", "UNTIL", "WHY"], &[], rows)
}

/// Returns the limit of a breaker as the file has it, after its number if the key has several breakers.
fn limit(one: &Value, all: &[Value]) -> String {
    let is_same = |other: &&Value| other["policy"] == one["policy"] && other["key"] == one["key"];
    match (all.iter().filter(is_same).nth(1), one["limit_number"].as_u64()) {
        (Some(_), Some(number)) => format!("{number}: {}", text(&one["limit"])),
        _ => text(&one["limit"]),
    }
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
