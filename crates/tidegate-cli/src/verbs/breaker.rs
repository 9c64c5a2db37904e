//! Lists the breakers of a running server, and forces their states.

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::{Breaker, Breakers, Forcing, PolicyKey};
use crate::exit::Exit;
use crate::online::policy_key::{encoded, query, with_end, with_options};
use crate::online::{self, ServerUrl};
use crate::output::Printer;
use crate::styled::Styled;
use crate::table::{table, text};

pub(crate) fn run(breakers: &Breakers, printer: &Printer) -> Result<Exit> {
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
        Breaker::Auto(which) => put(&server, which, &json!({ "state": "auto" }))?,
    };
    printer.value(&answer, |_| Ok(listed(&answer)))?;
    if let Some(note) = answer["note"].as_str() {
        printer.remark(note);
    }
    Ok(Exit::Done)
}

fn force(server: &ServerUrl, state: &str, forcing: &Forcing) -> Result<Value> {
    let body = with_end(json!({ "state": state }), forcing.lasts.as_deref(), forcing.reason.as_deref());
    put(server, &forcing.which, &body)
}

fn put(server: &ServerUrl, which: &PolicyKey, body: &Value) -> Result<Value> {
    let path = format!("/v1/breakers/{}{}", encoded(&which.policy), query(which));
    online::put(server, &path, body).map_err(with_options)
}

fn listed(answer: &Value) -> Styled {
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
