//! The output of `-o json` matches its schema, and all documents follow the same conventions.
//!
//! A verb that prints a new property fails here: add the property to the file in `schemas/` and, if no run below
//! prints it, to one of the runs.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::verbs::{Desk, sample};

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 10/s, burst: 20 }
    shadow_limit: { rate: 2/min }
  - name: work
    limit: { algorithm: concurrency, max: 3 }
  - name: search
    match: { path: /api/search }
    limit: { rate: 1/min, max_wait: 1s, algorithm: leaky-bucket }
";

/// Returns the schema of a document, as the command prints it.
pub(crate) fn schema(desk: &Desk, document: &str) -> Value {
    desk.run(&["config", "schema", "--of", document]).code(0).json()
}

const BREAKER: &str = "version: 1\npolicies:\n  - { name: calls, limit: { algorithm: breaker } }\n";

/// A breaker that refuses a share of the calls instead of opening.
const SHEDS: &str =
    "version: 1\npolicies:\n  - { name: calls, limit: { algorithm: breaker, shed_at_most: 90% } }\n";

/// Policies that let requests over their limits pass.
const OVER: &str = "version: 1\nclient_ip: { trusted_proxies: [] }\npolicies:\n  - { name: soft, over: mark, limit: { rate: 1/h } }\n  - { name: heavy, over: demote, limit: { rate: 2/h } }\n";

/// Traffic that trips a breaker and fills places.
const FAILING: &str = "steady 50/s 3s taking 20ms..90ms failing 80%, steady 50/s 20s taking 20ms";

/// A log of failing calls, and of one call that a half-open breaker lets through.
fn failing() -> String {
    let times = (0..30).chain([59]);
    let line =
        |at: u32| format!("{{\"time\":\"2026-01-01T00:00:{at:02}Z\",\"status\":500,\"duration_ms\":80}}\n");
    times.flat_map(|at| [line(at), line(at), line(at)]).collect()
}

/// Runs for each document that together print all its properties.
fn runs(log: &str) -> Vec<(&'static str, Vec<Vec<&str>>)> {
    let csv = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/llm-calls.csv");
    let limit = ["--rate", "5/s", "--burst", "20"];
    vec![
        (
            "replay",
            vec![
                vec![
                    "replay",
                    log,
                    "-c",
                    "p.yaml",
                    "--hold",
                    "20ms",
                    "--fail-if",
                    "denied > 5%",
                    "--fail-if",
                    "late > 9",
                ],
                [&["replay", log, "--compare", "fixed-window,sliding-log"][..], &limit].concat(),
                [&["replay", log, "--hit", "3"][..], &limit].concat(),
                [&["replay", log, "odd.log", "--max-malformed", "0%"][..], &limit].concat(),
                vec!["replay", "failing.jsonl", "-c", "breaker.yaml"],
                vec!["replay", "failing.jsonl", "-c", "sheds.yaml"],
                vec!["replay", log, "-c", "over.yaml"],
                [
                    &[
                        "replay",
                        csv,
                        "--by",
                        "tenant",
                        "--cost",
                        "int(generated_tokens) > 200 ? int(nothing) : 1",
                    ][..],
                    &limit,
                ]
                .concat(),
                [&["replay", csv, "--by", ""][..], &limit].concat(),
            ],
        ),
        (
            "simulate",
            vec![
                [&["simulate", "--traffic", "burst 50, idle 1min"][..], &limit].concat(),
                vec!["simulate", "-c", "p.yaml", "--traffic", "steady 10/s 3s", "--hold", "1.5s"],
                vec!["simulate", "--rate", "5/us", "--traffic", "burst 50"],
                vec!["simulate", "-c", "breaker.yaml", "--traffic", FAILING],
                vec!["simulate", "-c", "sheds.yaml", "--traffic", FAILING],
                vec!["simulate", "-c", "over.yaml", "--traffic", "burst 5"],
                vec!["simulate", "--limit", "{algorithm: concurrency, max: 2}", "--traffic", FAILING],
            ],
        ),
        (
            "suggest",
            vec![
                vec!["suggest", log],
                vec!["suggest", log, "--keep", "98%"],
                vec!["suggest", log, "--per", "1h"],
                vec!["suggest", "rotating.log"],
                vec!["suggest", csv, "--by", "tenant", "--cost", "int(total_tokens)"],
            ],
        ),
        (
            "explain",
            vec![
                vec!["explain", "-c", "p.yaml", "--attr", "client.ip=203.0.113.9"],
                vec!["explain", "-c", "p.yaml", "--attr", "client.ip=203.0.113.9", "--cost", "21"],
                vec!["explain", "-c", "p.yaml", "--attr", "request.path=/api/search"],
                vec!["explain", "-c", "over.yaml", "--cost", "3"],
            ],
        ),
        (
            "config-check",
            vec![
                vec!["config", "check", "p.yaml", "bad.yaml", "gone.yaml", "engine.yaml"],
                vec!["serve", "-c", "p.yaml", "--check"],
            ],
        ),
        ("config-origin", vec![vec!["config", "show", "-c", "p.yaml", "--origin"]]),
        ("config-fmt", vec![vec!["config", "fmt", "p.yaml", "--check"], vec!["config", "fmt", "p.yaml"]]),
        ("init", vec![vec!["init", "new.yaml"], vec!["init", "-"]]),
        ("completions", vec![vec!["completions", "bash"]]),
        ("man", vec![vec!["man", "pages"]]),
    ]
}

/// Properties that no run above prints.
const SELDOM: [&str; 29] = [
    // Properties of a running server: the tests of `serve` check its explanation against the schema.
    "charged",
    "cost",
    "debt",
    "decision_id",
    "demoted",
    "line",
    "lines",
    "marked",
    "name",
    "policies",
    "priority",
    "remaining",
    "reset_after_ms",
    "reset_at",
    "server",
    "shadow",
    "store_error",
    "cause",
    "configuration",
    "decided_at",
    "in_force",
    "limits_left_out",
    "now",
    "number",
    "refused_by",
    "from",
    "policy_then",
    "state_known",
    "with",
];

#[test]
fn every_document_is_what_its_schema_says_and_the_same_on_every_run() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    desk.write("bad.yaml", "version: 1\npolicies:\n  - name: a\n    limit: { rate: 5/M, bust: 1 }\n");
    let good = "203.0.113.9 - - [02/Mar/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n";
    let engine = "version: 1\nstore: { kind: etcd, url: 'http://127.0.0.1:1', nodes: 2 }";
    desk.write("engine.yaml", FILE.replace("version: 1", engine));
    desk.write("odd.log", format!("{good}rubbish\n"));
    desk.write("failing.jsonl", failing());
    desk.write("over.yaml", OVER);
    desk.write("breaker.yaml", BREAKER);
    desk.write("sheds.yaml", SHEDS);
    desk.write("rotating.log", crate::verbs::suggest::rotating());
    let log = sample("access.log");
    for (document, runs) in runs(&log) {
        let schema = schema(&desk, document);
        let mut printed = BTreeSet::new();
        for run in runs {
            let printed_once = desk.run(&[&run[..], &["-o", "json"]].concat());
            let value = printed_once.json();
            // The document must not contain the time that the replay took.
            if ["replay", "simulate", "suggest"].contains(&document) && !run.contains(&"odd.log") {
                let again = desk.run(&[&run[..], &["-o", "json"]].concat()).out;
                assert_eq!(printed_once.out, again, "a document is the same on every run: {run:?}");
            }
            holds(&schema, &value, &format!("{run:?}; the schema is schemas/{document}.json or shared.json"));
            names(&value, &mut printed);
        }
        let told = properties(&schema);
        let idle: Vec<_> =
            told.iter().filter(|name| !printed.contains(*name) && !SELDOM.contains(&name.as_str())).collect();
        assert!(
            idle.is_empty(),
            "no run printed {idle:?} of schemas/{document}.json: take them out, or add a run that does"
        );
    }
}

/// Requires that a document matches its schema.
#[track_caller]
pub(crate) fn holds(schema: &Value, value: &Value, what: &str) {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    let faults: Vec<String> =
        validator.iter_errors(value).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    assert!(faults.is_empty(), "{what}: {faults:#?}");
}

fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.insert(name.clone());
                names(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        _ => {}
    }
}

/// Returns the names of all properties in a schema.
fn properties(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    each_property(schema, &mut |name, _| {
        found.insert(name.to_owned());
    });
    found
}

fn each_property(schema: &Value, with: &mut impl FnMut(&str, &Value)) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let ("properties", Value::Object(properties)) = (name.as_str(), value) {
                    properties.iter().for_each(|(name, property)| with(name, property));
                }
                each_property(value, with);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| each_property(item, with)),
        _ => {}
    }
}

/// Names tell the units: `_ms` milliseconds, `_share` 0 to 1, `_at` RFC 3339. Seconds, nanoseconds, percent and
/// Rust's own `{"secs":1,"nanos":0}` must not appear.
#[test]
fn a_name_tells_the_unit() {
    let desk = Desk::new();
    for (document, _) in runs("") {
        let schema = schema(&desk, document);
        assert!(schema["title"].as_str().unwrap().starts_with("What `tidegate "), "{document}");
        let definitions = schema["$defs"].clone();
        each_property(&schema, &mut |name, property| {
            let property = match property["$ref"].as_str() {
                Some(path) if property.get("type").is_none() => {
                    &definitions[path.rsplit('/').next().unwrap()]
                }
                _ => property,
            };
            let is_snake = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
            assert!(is_snake, "{document}: {name}");
            for unit in ["_secs", "_seconds", "_nanos", "_ns", "_us", "_micros", "_percent", "_pct", "_ratio"]
            {
                assert!(!name.ends_with(unit), "{document}: {name}");
            }
            assert!(
                !["secs", "seconds", "nanos", "elapsed", "percent"].contains(&name),
                "{document}: {name}"
            );
            let is = |kind: &str| match &property["type"] {
                Value::Array(kinds) => kinds.contains(&kind.into()),
                one => one == kind,
            };
            if name.ends_with("_ms") {
                assert!(is("number") || is("integer"), "{document}: {name}");
            }
            if name.ends_with("_share") {
                assert_eq!(
                    (&property["minimum"], &property["maximum"]),
                    (&0.into(), &1.into()),
                    "{document}: {name}"
                );
            }
            assert_eq!(name.ends_with("_at"), property["format"] == "date-time", "{document}: {name}");
        });
    }
}

#[test]
fn the_file_in_effect_is_a_policy_file() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    let schema = schema(&desk, "policy-file");
    assert_eq!(schema, desk.run(&["config", "schema"]).code(0).json());
    holds(
        &schema,
        &desk.run(&["config", "show", "-c", "p.yaml", "-o", "json"]).code(0).json(),
        "config show",
    );
}
