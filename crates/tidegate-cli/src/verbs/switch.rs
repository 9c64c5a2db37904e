//! Lists the degrade switches of a running server, and turns them off or keeps them on by hand.

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::{Switch, Switches, TurnedOff};
use crate::exit::Exit;
use crate::online::policy_key::{encoded, with_end};
use crate::online::{self, ServerUrl};
use crate::output::Printer;
use crate::styled::{Look, Styled};
use crate::table::{Cell, table, text};

pub(crate) fn run(switches: &Switches, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(&switches.server)?;
    let answer = match &switches.does {
        Switch::List => online::ask(&server, "/v1/switches", None)?,
        Switch::Off(off) => online::put(&server, &path(&off.name), &wanted(off))?,
        Switch::On(on) => {
            let body = with_end(json!({ "state": "on" }), on.lasts.as_deref(), on.reason.as_deref());
            online::put(&server, &path(&on.name), &body)?
        }
    };
    printer.value(&answer, |_| Ok(listed(&answer)))?;
    if matches!(switches.does, Switch::On(_)) && answer["switches"][0]["state"] == "off" {
        printer.remark("a signal keeps this switch off; it is on when the source of the signal turns it on, or when the time of its last signal is over; --for TIME keeps it on until then");
        return Ok(Exit::No);
    }
    Ok(Exit::Done)
}

fn path(name: &str) -> String {
    format!("/v1/switches/{}", encoded(name))
}

fn wanted(off: &TurnedOff) -> Value {
    let mut body = with_end(json!({ "state": "off" }), off.lasts.as_deref(), off.reason.as_deref());
    if let Some(level) = off.below {
        body["below"] = level.as_str().into();
    }
    body
}

/// Lists the switches: one that was set has a row for each who set it.
fn listed(answer: &Value) -> Styled {
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
            rows.push(row(one, Some(Look::Doubtful), words));
        }
        if rows.len() == before {
            rows.push(row(one, None, ["-"; 4].map(str::to_owned)));
        }
    }
    table(&["SWITCH", "STATE", "BY", "PRIORITIES", "UNTIL", "WHY"], &[], rows)
}

fn row(one: &Value, look: Option<Look>, words: [String; 4]) -> Vec<Cell> {
    let named = [Cell::from(text(&one["name"])), Cell::looking(text(&one["state"]), look)];
    named.into_iter().chain(words.map(Cell::from)).collect()
}
