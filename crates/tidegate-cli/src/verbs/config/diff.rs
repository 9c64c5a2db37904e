//! Compares the policies of a file with those in force on a running server, by what they mean.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tidegate_server::describe_policy;
use tidegate_sim::grouped;

use crate::args::WhichServer;
use crate::exit::{Exit, Mistake};
use crate::online::{self, ServerUrl};
use crate::output::Printer;
use crate::overview::rows;
use crate::policies;
use crate::styled::{Styled, table, text};

/// Exits with 1 if anything differs. Whatever hinders the comparison is exit code 2, also a server that does not answer.
pub(super) fn run(file: &Path, which: &WhichServer, printer: &Printer) -> Result<Exit> {
    let config = policies::read(file, &printer.silent())?;
    let trouble = |error: anyhow::Error| Mistake(format!("{error:#}"));
    let server = ServerUrl::of(which).map_err(trouble)?;
    let answer = online::ask(&server, "/v1/policies", None).map_err(trouble)?;
    let of_file: Vec<Value> = config.policies.policies().iter().map(describe_policy).collect();
    let mut found = compared(&of_file, rows(&answer["policies"]));
    found["server"] = server.to_string().into();
    printer.value(&found, |_| Ok(listed(&found, &server)))?;
    Ok(if rows(&found["policies"]).is_empty() { Exit::Done } else { Exit::No })
}

/// What a running server alone knows of a policy.
const OF_SERVER: [&str; 10] = [
    "owner",
    "text",
    "place",
    "in_force",
    "in_force_below",
    "unreached_since",
    "estimate",
    "estimate_from",
    "places",
    "canary_share",
];
/// The same of a limit.
const OF_SERVER_LIMIT: &str = "per_second_in_force";

/// Compares the policies of a file with those in force. Policies of the API stay whatever the file says.
fn compared(of_file: &[Value], in_force: &[Value]) -> Value {
    let find = |list: &[Value], name: &Value| list.iter().find(|one| one["name"] == *name).cloned();
    let (mut found, mut same, mut of_api) = (Vec::new(), 0_u64, 0_u64);
    for ours in of_file {
        let name = &ours["name"];
        match find(in_force, name).map(without_standing) {
            None => found.push(json!({ "policy": name, "what": "added", "says": says(ours), "parts": [] })),
            Some(theirs) => {
                let mut parts = Vec::new();
                differences("", &theirs, ours, &mut parts);
                if parts.is_empty() {
                    same += 1;
                } else {
                    found.push(
                        json!({ "policy": name, "what": "changed", "says": says(ours), "parts": parts }),
                    );
                }
            }
        }
    }
    for theirs in in_force {
        let name = &theirs["name"];
        if theirs["owner"] == "api" {
            of_api += 1;
        } else if find(of_file, name).is_none() {
            found.push(json!({ "policy": name, "what": "removed", "says": says(theirs), "parts": [] }));
        }
    }
    json!({ "policies": found, "same": same, "of_api": of_api })
}

/// Takes out what no file says.
fn without_standing(mut policy: Value) -> Value {
    if let Value::Object(fields) = &mut policy {
        for name in OF_SERVER {
            fields.remove(name);
        }
        for limit in fields.get_mut("limits").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(limit) = limit {
                limit.remove(OF_SERVER_LIMIT);
            }
        }
    }
    policy
}

/// Lists the parts in which two values differ. What the server does not say at all, because it is older, is no
/// difference of the policy.
fn differences(part: &str, from: &Value, to: &Value, into: &mut Vec<Value>) {
    match (from, to) {
        _ if from == to => {}
        (Value::Object(before), Value::Object(after)) => {
            for name in names(before, after) {
                if part.is_empty() && !before.contains_key(name) {
                    continue;
                }
                let inner = match (part, name) {
                    ("", "limits") => "limit".to_owned(),
                    // The limit itself, in words.
                    (_, "limit") => part.to_owned(),
                    ("", _) => name.to_owned(),
                    _ => format!("{part}.{name}"),
                };
                let value = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                differences(&inner, &value(before), &value(after), into);
            }
        }
        (Value::Array(before), Value::Array(after)) if part == "limit" => {
            let most = before.len().max(after.len());
            for at in 0..most {
                let inner = if most == 1 { part.to_owned() } else { format!("{part} {}", at + 1) };
                let one = |limits: &[Value]| limits.get(at).cloned().unwrap_or_default();
                differences(&inner, &one(before), &one(after), into);
            }
        }
        _ => into.push(json!({ "part": part, "from": from, "to": to })),
    }
}

fn names<'v>(before: &'v Map<String, Value>, after: &'v Map<String, Value>) -> Vec<&'v str> {
    let new = after.keys().filter(|name| !before.contains_key(*name));
    before.keys().chain(new).map(String::as_str).collect()
}

/// A policy in a few words: its mode and its limits.
fn says(policy: &Value) -> String {
    let limits: Vec<String> = rows(&policy["limits"]).iter().map(words).collect();
    format!("{}, {}", text(&policy["mode"]), limits.join("; "))
}

/// A value in words; of a limit those in which it is written.
fn words(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => match fields.get("limit") {
            Some(Value::String(limit)) => limit.clone(),
            _ => value.to_string(),
        },
        other => other.to_string(),
    }
}

fn listed(found: &Value, server: &ServerUrl) -> Styled {
    let count = |name: &str| grouped(found[name].as_u64().unwrap_or_default());
    let differing = rows(&found["policies"]);
    let same = format!("{} the same as in force at {server}", count("same"));
    let of_api = match found["of_api"].as_u64() {
        None | Some(0) => String::new(),
        Some(_) => format!("; {} of the API stay", count("of_api")),
    };
    if differing.is_empty() {
        return format!("no policy differs: {same}{of_api}").into();
    }
    let rows = differing.iter().map(|one| {
        let parts = rows(&one["parts"]).iter();
        let parts: Vec<String> = parts
            .map(|part| format!("{}: {} → {}", text(&part["part"]), words(&part["from"]), words(&part["to"])))
            .collect();
        let how = if parts.is_empty() { text(&one["says"]) } else { parts.join("; ") };
        vec![text(&one["policy"]), text(&one["what"]), how]
    });
    table(&["POLICY", "WHAT", "HOW"], &[], rows) + "\n" + &format!("{same}{of_api}")
}

#[cfg(test)]
mod tests {
    use tidegate::config::{Config, Format};

    use super::*;

    const RUNNING: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - { name: per-ip, by: [client.ip], limit: { rate: 10/s, burst: 20 } }
  - { name: search, match: { path: /api/search }, limit: { rate: 1/min } }
  - { name: reports, mode: shadow, limit: { rate: 1/s } }
";

    fn described(text: &str) -> Vec<Value> {
        let (config, _) = Config::parse(text, "t.yaml", Format::Yaml).unwrap();
        config.policies.policies().iter().map(describe_policy).collect()
    }

    /// The policies as a server shows them.
    fn running() -> Vec<Value> {
        let mut shown = described(RUNNING);
        for policy in &mut shown {
            policy["owner"] = "file".into();
            policy["place"] = "t.yaml:4".into();
            policy["limits"][0]["per_second_in_force"] = 5.into();
        }
        let mut of_api = shown[0].clone();
        (of_api["name"], of_api["owner"]) = ("by-hand".into(), "api".into());
        shown.push(of_api);
        shown
    }

    fn differing(text: &str) -> Vec<String> {
        let found = compared(&described(text), &running());
        assert_eq!(found["of_api"], 1);
        let row = |one: &Value| {
            let parts = rows(&one["parts"]).iter().map(|part| {
                format!("{} {} {}", words(&part["part"]), words(&part["from"]), words(&part["to"]))
            });
            format!(
                "{} {} {}",
                text_of(&one["policy"]),
                text_of(&one["what"]),
                parts.collect::<Vec<_>>().join("; ")
            )
        };
        rows(&found["policies"]).iter().map(row).collect()
    }

    fn text_of(value: &Value) -> &str {
        value.as_str().unwrap()
    }

    #[test]
    fn the_same_policies_do_not_differ_however_they_are_written() {
        assert!(differing(RUNNING).is_empty());
        assert!(differing(&format!("# a remark\n{RUNNING}")).is_empty());
        let enforced = differing(&RUNNING.replace("mode: shadow", "mode: enforce"));
        assert_eq!(enforced, ["reports changed mode shadow enforce"]);
    }

    #[test]
    fn what_comes_goes_and_changes_is_told_by_its_parts() {
        let text = RUNNING
            .replace("burst: 20", "burst: 12")
            .replace("name: reports", "name: accounts")
            .replace("path: /api/search", "path: [/api/search, /api/find]");
        let found = differing(&text);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("per-ip changed limit ") && found[0].contains("12"), "{found:?}");
        assert_eq!(found[1], "search changed match.path /api/search /api/search, /api/find");
        assert_eq!(found[2..], ["accounts added ", "reports removed "]);
    }

    #[test]
    fn a_part_that_an_older_server_does_not_say_is_no_difference() {
        let mut older = running();
        older[0].as_object_mut().unwrap().remove("on_cost_error");
        assert_eq!(compared(&described(RUNNING), &older)["policies"], json!([]));
    }
}
