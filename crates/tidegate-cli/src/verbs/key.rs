//! Lists and shows the keys of a running server's policies, and resets, blocks and unblocks one key.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use tidegate_sim::grouped;

use crate::args::{Blocking, Key, KeyOrCaller, Keys, PolicyKey};
use crate::exit::{Exit, Mistake};
use crate::online::{self, ServerUrl};
use crate::online::{encoded, options, query, with_end, with_options};
use crate::outcome::span;
use crate::output::Printer;
use crate::styled::{Cell, Look, Styled, table, text};

pub(crate) fn run(keys: &Keys, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(&keys.server)?;
    match &keys.does {
        Key::List { policy, count, from, reveal } => {
            let path = policy.as_deref().map_or_else(|| ALL.to_owned(), path);
            let path = format!("{path}?limit={count}&from={from}&reveal={reveal}");
            let answer = online::ask(&server, &path, None)?;
            let keys = answer["keys"].as_array().map_or(&[][..], Vec::as_slice);
            printer.value(&answer, |printer| Ok(listed(&answer, keys, printer)))?;
            if let Some(next) = answer["next"].as_u64() {
                let known = answer["known"].as_u64().unwrap_or_default();
                printer
                    .remark(&format!("{} keys are known; --from {next} lists the next ones", grouped(known)));
            }
        }
        Key::Get(which) => {
            let answer = match which.caller() {
                Some(_) => online::ask(&server, &path_of_any(which), None)?,
                None => get(&server, &which.of_policy())?,
            };
            printer.value(&answer, |printer| Ok(listed(&answer, std::slice::from_ref(&answer), printer)))?;
        }
        Key::Reset(which) => {
            if which.key.is_empty() && which.policy.contains('=') {
                let what =
                    format!("reset is of one policy; write tidegate key reset POLICY --key {}", which.policy);
                return Err(Mistake(tidegate::visible::line(&what).into_owned()).into());
            }
            // A key that cannot be read may still be reset.
            let before = online::ask(&server, &path_of(which), None).ok();
            let answer = online::delete(&server, &path_of(which)).map_err(with_options)?;
            let spent = before.as_ref().and_then(has_spent);
            if spent == Some(false) && !releases(&answer) {
                let (key, policy) = (pairs(which), &which.policy);
                let nothing = format!("policy {policy:?} has nothing of {key}: nothing was changed");
                let nothing = tidegate::visible::line(&nothing).into_owned();
                printer.value(&answer, |_| Ok(nothing))?;
                return Ok(Exit::No);
            }
            let done = released(&answer, &named(which), spent);
            printer.value(&answer, |_| Ok(done))?;
            only_here(&answer, "other nodes have their own counters for this policy", printer);
        }
        Key::Block(blocking) => {
            checked(&blocking.which)?;
            let answer = block(&server, blocking)?;
            let until = text(&answer["block"]["until"]);
            let mut done = format!("{} is blocked until {until}", named_any(&blocking.which));
            if let Some(network) = answer["network"].as_str().filter(|network| !done.contains(network)) {
                done += &format!(", and so is all of {network}, which shares its key");
            }
            printer.value(&answer, |_| Ok(done))?;
            only_here(&answer, "other nodes do not have this block", printer);
            for value in blocking.which.values().filter(|value| value.contains(['*', '?'])) {
                printer.remark(&format!("{value:?} is taken literally: only this one value is blocked"));
            }
        }
        Key::Unblock(which) => {
            checked(which)?;
            let body = json!({ "block": null });
            let answer = online::put(&server, &path_of_any(which), &body).map_err(with_options)?;
            let was_blocked = answer["unblocked"] == true;
            let state = if was_blocked { "no longer blocked" } else { "not blocked; nothing was changed" };
            printer.value(&answer, |_| Ok(format!("{} is {state}", named_any(which))))?;
            only_here(&answer, "other nodes have blocks of their own", printer);
            return Ok(if was_blocked { Exit::Done } else { Exit::No });
        }
    }
    Ok(Exit::Done)
}

/// Says whether a key has spent anything of any limit; `None` if that of one limit is unknown.
fn has_spent(key: &Value) -> Option<bool> {
    let spent = |limit: &Value| {
        let (remaining, most) = (limit["remaining"].as_u64()?, limit["most"].as_u64()?);
        let number = |name: &str| limit[name].as_u64().unwrap_or_default();
        let is_whole = remaining + number("held_at_most") >= most;
        Some(!is_whole || number("debt") > 0 || number("reset_after_ms") > 0)
    };
    let limits: Vec<Option<bool>> = key["standing"].as_array()?.iter().map(spent).collect();
    if limits.contains(&Some(true)) { Some(true) } else { (!limits.contains(&None)).then_some(false) }
}

/// Says whether the reset of a key has ended anything but what it has spent, or left a breaker forced.
fn releases(answer: &Value) -> bool {
    let some = |name: &str| answer[name].as_u64().is_some_and(|count| count > 0);
    answer["unblocked"] == true || some("places_forgotten") || some("breakers_still_forced")
}

/// What the reset of a key has ended, and what not.
fn released(answer: &Value, key: &str, spent: Option<bool>) -> String {
    let any = if spent == Some(true) { "" } else { ", if any," };
    let mut done = format!("the units that {key} has spent{any} are forgotten");
    match answer["places_forgotten"].as_u64() {
        None | Some(0) => {}
        Some(1) => done += ", and so is 1 place in use: its work goes on beside others",
        Some(places) => {
            done +=
                &format!(", and so are {} places in use: their work goes on beside others", grouped(places));
        }
    }
    if answer["unblocked"] == true {
        done += ", and its block is ended";
    }
    if answer["breakers_still_forced"].as_u64().is_some_and(|forced| forced > 0) {
        done +=
            "; the state that a person has forced its breaker into stays: `tidegate breaker auto` ends it";
    }
    done
}

/// Remarks on a change that other nodes of the engine do not have.
fn only_here(answer: &Value, what: &str, printer: &Printer) {
    if answer["nodes"] == "this" {
        printer.remark(&format!("of this node alone: {what}; do the same on each, with --server"));
    }
}

/// Refuses a bare address, which would be taken for the name of a policy.
fn checked(which: &KeyOrCaller) -> Result<()> {
    let word = which.policy.as_str();
    let (address, length) = word.split_once('/').unwrap_or((word, "0"));
    if which.key.is_empty() && address.parse::<IpAddr>().is_ok() && length.parse::<u8>().is_ok() {
        return Err(Mistake(format!("{word} is an address and no policy; write client.ip={word}")).into());
    }
    Ok(())
}

/// Returns the path of a policy's keys. `/v1/keys/top` lists the keys of all policies, so a policy of that name has its
/// first letter encoded.
fn path(policy: &str) -> String {
    let name = if policy == "top" { "%74op".to_owned() } else { encoded(policy) };
    format!("/v1/keys/{name}")
}

fn path_of(which: &PolicyKey) -> String {
    path(&which.policy) + &query(which)
}

/// The path of the callers that are blocked for all policies.
const ALL: &str = "/v1/keys";

fn path_of_any(which: &KeyOrCaller) -> String {
    match which.caller() {
        Some((name, value)) => format!("{ALL}?{}={}", encoded(name), encoded(value)),
        None => path_of(&which.of_policy()),
    }
}

/// Returns a key and its policy in words, or a caller.
fn named_any(which: &KeyOrCaller) -> String {
    match which.caller() {
        Some((name, value)) => {
            tidegate::visible::line(&format!("{name}={value}, for all policies,")).into_owned()
        }
        None => named(&which.of_policy()),
    }
}

/// Returns a key and its policy in words, on one line.
fn named(which: &PolicyKey) -> String {
    tidegate::visible::line(&format!("{} of policy {:?}", pairs(which), which.policy)).into_owned()
}

/// Returns the attributes of a key, as they were given.
fn pairs(which: &PolicyKey) -> String {
    let pairs: Vec<String> = which.key.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if pairs.is_empty() { "(all)".to_owned() } else { pairs.join(", ") }
}

/// The policy says which attributes a key is made of: if others were sent, or none, the server would take them for the
/// parameters of a list.
fn get(server: &ServerUrl, which: &PolicyKey) -> Result<Value> {
    let policy = online::ask(server, &format!("/v1/policies/{}", encoded(&which.policy)), None)?;
    let by: Vec<&str> = policy["by"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_named = |name: &&str| which.key.iter().any(|(have, _)| have == name);
    // It selects the limit.
    let selects = |name: &str| {
        let limits = policy["limits"].as_array().into_iter().flatten();
        by.contains(&name) || limits.into_iter().any(|limit| limit["tiers"]["by"] == *name)
    };
    let is_whole = by.iter().all(is_named) && which.key.iter().all(|(name, _)| selects(name));
    match (is_whole, options(&policy["by"])) {
        (true, Some(_)) => online::ask(server, &path_of(which), None).map_err(with_options),
        (true, None) => {
            let mut list = online::ask(server, &path(&which.policy), None)?;
            Ok(list["keys"][0].take())
        }
        (false, Some(options)) => {
            let names = by.join("`, `");
            Err(anyhow!("a key of policy {:?} is made of `{names}`; write {options}", which.policy))
        }
        (false, None) => {
            Err(anyhow!("policy {:?} has one key for all requests; leave out --key", which.policy))
        }
    }
}

fn block(server: &ServerUrl, blocking: &Blocking) -> Result<Value> {
    let block = with_end(json!({}), Some(&blocking.lasts), blocking.reason.as_deref());
    online::put(server, &path_of_any(&blocking.which), &json!({ "block": block })).map_err(with_options)
}

/// What each key has left of each limit, how often it was refused or near a limit, and its block.
fn listed(answer: &Value, keys: &[Value], printer: &Printer) -> Styled {
    if keys.is_empty() {
        return match answer["known"].as_u64() {
            Some(known @ 1..) => format!("no more keys: {} are known", grouped(known)),
            _ if answer["policy"].is_null() => "no caller is blocked for all policies".to_owned(),
            _ => "no key is blocked, was refused or came near its limit".to_owned(),
        }
        .into();
    }
    let is_inexact = keys.iter().any(|key| key["error"].as_u64().is_some_and(|error| error > 0));
    let mut header = vec!["KEY", "LEFT", "FULL IN", "DENIED", "NEAR", "BLOCKED UNTIL", "WHY"];
    header.extend(is_inexact.then_some("TOO HIGH BY"));
    header.extend(printer.wide().then_some("LIMITS"));
    let rows = keys.iter().map(|key| {
        let block = &key["block"];
        let count = |name: &str| key[name].as_u64().map_or_else(|| "-".to_owned(), grouped);
        let mut row: Vec<Cell> =
            [text(&key["key"]), each(key, left), each(key, full_in), count("denied"), count("near")]
                .map(Cell::from)
                .into();
        row.push(Cell::looking(text(&block["until"]), block.is_object().then_some(Look::Bad)));
        row.push(text(&block["reason"]).into());
        row.extend(is_inexact.then(|| Cell::from(format!("at most {}", count("error")))));
        row.extend(printer.wide().then(|| Cell::from(each(key, |limit| text(&limit["limit"])))));
        row
    });
    table(&header, &[3, 4], rows)
}

/// Joins what is said about each limit of a key; `-` if its state is unknown.
fn each(key: &Value, words: impl Fn(&Value) -> String) -> String {
    let limits = key["standing"].as_array().map_or(&[][..], Vec::as_slice);
    let words: Vec<String> = limits.iter().map(words).collect();
    if words.is_empty() { "-".to_owned() } else { words.join("; ") }
}

/// Returns the units that a key has left of a limit, or on which attributes they depend.
fn left(limit: &Value) -> String {
    let (Some(remaining), Some(most)) = (limit["remaining"].as_u64(), limit["most"].as_u64()) else {
        let on = limit["depends_on"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let on: Vec<&str> = on.collect();
        return if on.is_empty() { "-".to_owned() } else { format!("depends on {}", on.join(", ")) };
    };
    let debt = match limit["debt"].as_u64() {
        None | Some(0) => String::new(),
        Some(debt) => format!(", owes {}", grouped(debt)),
    };
    let held = match limit["held_at_most"].as_u64() {
        None | Some(0) => String::new(),
        Some(held) => format!(", nodes hold up to {}", grouped(held)),
    };
    let here = if limit["nodes"] == "this" { " on this node" } else { "" };
    format!("{} of {}{here}{debt}{held}", grouped(remaining), grouped(most))
}

fn full_in(limit: &Value) -> String {
    match limit["reset_after_ms"].as_u64() {
        None | Some(0) => "-".to_owned(),
        Some(ms) => span(Duration::from_millis(ms)),
    }
}
