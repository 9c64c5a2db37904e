//! What clients in other languages ask, over plain HTTP: the scenarios of `clients/scenarios.json`, whose words
//! `clients/README.md` explains. Each client runs the same file, so what it expects is what the server does.
//!
//! What a client does by itself is done here in its simplest form: it waits, tries again, and decides by `on_error`.

#![allow(clippy::disallowed_methods, reason = "real servers take their own time, and the file bounds it")]

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tidegate_testkit::{Process, folder, free_port, within};

use crate::walks::raw::{Answer, read_all};
use crate::walks::serving::Desk;

/// The path of a check, which `on_error` decides if the server is gone.
const CHECK: &str = "/v1/check";

/// A scenario's client.
struct Caller {
    token: String,
    opens: bool,
    deadline: Duration,
}

/// The server of all scenarios. Its counters are lost when it is killed.
struct Runner {
    // Dropped before the folder that it runs in.
    server: Process,
    addr: SocketAddr,
    token: String,
    _desk: Desk,
}

/// How a step failed, or what it got.
type Got = Result<Value, Value>;

#[test]
fn the_scenarios_of_all_clients_hold() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/scenarios.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(file["form"], 1);
    let runner = &mut Runner::start(&file);
    let scenarios = file["scenarios"].as_array().unwrap();
    let wrong: Vec<_> = scenarios.iter().filter_map(|scenario| runner.run(scenario).err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");

    // The comparison is no rubber stamp.
    let asked = json!({ "attributes": { "app": "rate", "user.id": "compared" } });
    for wrong in [
        json!({ "allowed": false }),
        json!({ "remaining": 7 }),
        json!({ "no-such-field": 1 }),
        json!({ "took": { "at_least": 9 } }),
        json!({ "error": { "kind": "input" } }),
    ] {
        let scenario = json!({ "name": "wrong", "steps": [{ "peek": asked, "expect": wrong }] });
        assert!(runner.run(&scenario).is_err(), "{scenario}");
    }
}

impl Runner {
    fn start(file: &Value) -> Self {
        let desk = Desk::with(&file["policy_file"].to_string());
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let token = text(&file["token"]).to_owned();
        let mut command = desk.command(&["serve", "--http", &addr.to_string(), "-c", "p.yaml"]);
        command.env("TIDEGATE_TOKEN", &token);
        let runner = Self { server: Process::start(command, folder()), addr, token, _desk: desk };
        runner.until_up();
        runner
    }

    fn until_up(&self) {
        within("the server listens", || TcpStream::connect(self.addr).is_ok());
    }

    fn run(&mut self, scenario: &Value) -> Result<(), String> {
        let client = &scenario["client"];
        let caller = Caller {
            token: client["token"].as_str().unwrap_or(&self.token).to_owned(),
            opens: client["on_error"] == "open",
            deadline: Duration::from_secs_f64(client["deadline"].as_f64().unwrap_or(10.0)),
        };
        let mut tickets = HashMap::new();
        for (number, step) in (1..).zip(scenario["steps"].as_array().unwrap()) {
            for _ in 0..step["times"].as_u64().unwrap_or(1) {
                let begin = Instant::now();
                let got = self.step(&caller, &mut tickets, step);
                let took = begin.elapsed().as_secs_f64();
                compared(&step["expect"], &got, took)
                    .map_err(|why| format!("{}, step {number}: {why}", text(&scenario["name"])))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, caller: &Caller, tickets: &mut HashMap<String, String>, step: &Value) -> Got {
        let (word, what) = doing(step);
        match word {
            "server" => self.told(text(what)),
            "pause" => pause(Duration::from_secs_f64(what.as_f64().unwrap())),
            "peek" => return Ok(self.decide(caller, "/v1/peek", what)?.0),
            "check" | "acquire" | "spend" => {
                let (mut got, ticket) = self.decide(caller, CHECK, what)?;
                if let (Some(ticket), Some(name)) = (&ticket, step["as"].as_str()) {
                    tickets.insert(name.to_owned(), ticket.clone());
                }
                if let ("spend", Some(ticket)) = (word, ticket) {
                    let undone = json!({ "outcome": "undone" });
                    let fields = if step["raises"] == true { &undone } else { &step["settle"] };
                    let settled = self.settle(caller, &ticket, fields)?;
                    let both = got.as_object_mut().unwrap();
                    both.extend(settled.as_object().unwrap().clone());
                }
                return Ok(got);
            }
            "settle" | "release" => {
                let mut fields = what.clone();
                let map = fields.as_object_mut().unwrap();
                let of = map.remove("of").map(|of| tickets[text(&of)].clone());
                let ticket = of.unwrap_or_else(|| text(&map["ticket"]).to_owned());
                if word == "release" {
                    map.entry("outcome").or_insert_with(|| json!("success"));
                }
                return self.settle(caller, &ticket, &fields);
            }
            "extend" => {
                let name = text(&what["of"]);
                let (_, body) = self.asked(caller, "/v1/extend", &json!({ "ticket": tickets[name] }))?;
                tickets.insert(name.to_owned(), text(&body["ticket"]).to_owned());
                let places = body["places"].as_array().unwrap().iter();
                let lapses = places.map(|place| place["lapses_after_ms"].as_u64().unwrap()).min();
                return Ok(json!({ "lapses_after": seconds(lapses.unwrap()) }));
            }
            unknown => panic!("an unknown step: {unknown}"),
        }
        Ok(json!({}))
    }

    fn told(&mut self, word: &str) {
        match word {
            "kill" => self.server.kill(),
            "start" => {
                self.server.start_again();
                self.until_up();
            }
            "pause" => self.server.signal("-STOP"),
            "resume" => self.server.signal("-CONT"),
            unknown => panic!("the server cannot {unknown}"),
        }
    }

    /// Asks for a decision, and waits as it says. Returns the decision and its ticket.
    fn decide(&self, caller: &Caller, path: &str, asked: &Value) -> Result<(Value, Option<String>), Value> {
        let (mut body, begin) = (asked.clone(), Instant::now());
        let wait = body.as_object_mut().unwrap().remove("wait").and_then(|wait| wait.as_f64());
        let wait = Duration::from_secs_f64(wait.unwrap_or(0.0));
        let (status, answer) = loop {
            let (status, answer) = match self.decided(caller, path, &body) {
                Ok(decided) => decided,
                Err(error) if path == CHECK && error["kind"] == "unavailable" => {
                    return Ok((unchecked(caller.opens), None));
                }
                Err(error) => return Err(error),
            };
            let again = answer["retry_after_ms"].as_u64().map(Duration::from_millis);
            match again.filter(|again| begin.elapsed() + *again < wait) {
                Some(again) => pause(again),
                None => break (status, answer),
            }
        };
        pause(Duration::from_millis(answer["delay_ms"].as_u64().unwrap()));
        let limits = answer["policies"].as_array().unwrap();
        let shadows = limits.iter().filter(|limit| limit["shadow"] == true && limit["decision"] == "denied");
        let retry_after = answer["retry_after_ms"].as_u64().map(seconds);
        let mut got = json!({
            "allowed": answer["decision"] != "denied",
            "checked": true,
            "limited": !limits.is_empty() || !answer["policy"].is_null(),
            "status": status,
            "ticket": answer["ticket"].is_string(),
            "retry_after": retry_after,
            "delay": seconds(answer["delay_ms"].as_u64().unwrap()),
            "marked": answer.get("marked").unwrap_or(&json!([])),
            "would_deny": shadows.map(|limit| limit["name"].clone()).collect::<Vec<_>>(),
            "message": answer["detail"],
        });
        for name in ["decision", "policy", "remaining", "limit", "retry"] {
            got[name] = answer[name].clone();
        }
        Ok((got, answer["ticket"].as_str().map(str::to_owned)))
    }

    /// Asks, and returns the answer with its status if it is a decision.
    fn decided(&self, caller: &Caller, path: &str, body: &Value) -> Result<(u16, Value), Value> {
        let answer = self.ask(caller, path, body)?;
        let fields: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        if fields.get("decision").is_none() {
            return Err(failure(&answer));
        }
        // The header says the same as the body, in whole seconds.
        let header = answer.header("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
        assert_eq!(header, fields["retry_after_ms"].as_u64().map(|ms| ms.div_ceil(1000)), "{answer:?}");
        Ok((answer.status, fields))
    }

    fn settle(&self, caller: &Caller, ticket: &str, fields: &Value) -> Got {
        let mut body = fields.as_object().unwrap().clone();
        body.insert("ticket".to_owned(), json!(ticket));
        let (_, answer) = self.asked(caller, "/v1/settle", &Value::Object(body))?;
        let parts = answer["policies"].as_array().unwrap().iter();
        let charges: Map<_, _> = parts.map(|part| (text(&part["name"]).to_owned(), part.clone())).collect();
        Ok(json!({ "outcome": answer["outcome"], "charges": charges, "message": answer["note"] }))
    }

    /// Asks, and returns the answer with its status if that is 200.
    fn asked(&self, caller: &Caller, path: &str, body: &Value) -> Result<(u16, Value), Value> {
        let answer = self.ask(caller, path, body)?;
        if answer.status == 200 { Ok((200, answer.json())) } else { Err(failure(&answer)) }
    }

    fn ask(&self, caller: &Caller, path: &str, body: &Value) -> Result<Answer, Value> {
        self.exchanged(caller, path, &body.to_string()).map_err(|error| {
            let within = caller.deadline.as_secs_f64();
            json!({ "kind": "unavailable", "message": format!("{error}, within {within} s") })
        })
    }

    fn exchanged(&self, caller: &Caller, path: &str, body: &str) -> io::Result<Answer> {
        let mut stream = TcpStream::connect_timeout(&self.addr, caller.deadline)?;
        stream.set_read_timeout(Some(caller.deadline))?;
        stream.set_write_timeout(Some(caller.deadline))?;
        let (host, token, length) = (self.addr, &caller.token, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        read_all(&mut stream)?.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Returns the word of a step that says what it does, and its value.
fn doing(step: &Value) -> (&str, &Value) {
    let steps = ["check", "peek", "spend", "acquire", "release", "extend", "server", "pause", "settle"];
    // A step that spends has a `settle` beside it.
    let found = steps.into_iter().find_map(|word| Some((word, step.get(word)?)));
    found.unwrap_or_else(|| panic!("an unknown step: {step}"))
}

/// Returns what `on_error` decides.
fn unchecked(opens: bool) -> Value {
    json!({
        "allowed": opens, "checked": false, "limited": false, "decision": "unchecked", "policy": null,
        "status": if opens { 200 } else { 503 }, "ticket": false, "retry": if opens { None } else { Some("unknown") },
    })
}

/// Returns the error that an answer is, by the table in `clients/README.md`.
fn failure(answer: &Answer) -> Value {
    let kind = match answer.status {
        400 | 404 | 405 | 413 | 415 | 422 | 431 => "input",
        401 | 403 => "access",
        409 | 410 | 421 => "ticket",
        _ => "unavailable",
    };
    let problem: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    json!({ "kind": kind, "status": answer.status, "message": problem["detail"] })
}

/// Compares what a step got with what the file expects.
fn compared(expected: &Value, got: &Got, took: f64) -> Result<(), String> {
    let empty = Map::new();
    let expected = expected.as_object().unwrap_or(&empty);
    if let Some(took_at) = expected.get("took") {
        equal("took", took_at, &json!(took))?;
    }
    let got = match (expected.get("error"), got) {
        (None, Ok(got)) => got,
        (Some(error), Err(got)) => return fields(error.as_object().unwrap(), got),
        (_, got) => return Err(format!("{got:?} instead of {expected:?}")),
    };
    let mut rest = expected.clone();
    rest.remove("took");
    if let Some(charges) = rest.remove("charges") {
        let charges = charges.as_object().unwrap();
        if charges.is_empty() {
            equal("charges", &json!({}), &got["charges"])?;
        }
        for (name, charge) in charges {
            let mut settled = got["charges"][name].clone();
            settled["message"] = settled["note"].clone();
            fields(charge.as_object().unwrap(), &settled).map_err(|why| format!("{name}: {why}"))?;
        }
    }
    fields(&rest, got)
}

/// Compares each expected field. Texts are parts of the `message`.
fn fields(expected: &Map<String, Value>, got: &Value) -> Result<(), String> {
    for (name, value) in expected {
        let texts = match name.as_str() {
            "note" => vec![value],
            "says" => value.as_array().unwrap().iter().collect(),
            _ => {
                equal(name, value, got.get(name).ok_or_else(|| format!("no {name} in {got}"))?)?;
                continue;
            }
        };
        let message = got["message"].as_str().unwrap_or_default();
        if let Some(missing) = texts.into_iter().find(|part| !message.contains(text(part))) {
            return Err(format!("{missing} is not in {message:?}"));
        }
    }
    Ok(())
}

fn equal(name: &str, expected: &Value, got: &Value) -> Result<(), String> {
    let bounds = (expected.get("at_least"), expected.get("at_most"));
    let holds = if bounds == (None, None) {
        expected == got
    } else {
        let bound = |value: Option<&Value>, missing| value.map_or(missing, |value| value.as_f64().unwrap());
        let (least, most) = (bound(bounds.0, 0.0), bound(bounds.1, f64::INFINITY));
        got.as_f64().is_some_and(|got| least <= got && got <= most)
    };
    if holds { Ok(()) } else { Err(format!("{name} is {got} instead of {expected}")) }
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn seconds(millis: u64) -> f64 {
    Duration::from_millis(millis).as_secs_f64()
}

/// Waits for so long, in which other programs do what they do.
fn pause(span: Duration) {
    let until = Instant::now() + span;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
