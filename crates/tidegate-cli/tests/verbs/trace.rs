//! Operations in, answers out, to the nanosecond.

use serde_json::Value;

use crate::{Desk, repository};

/// The pairs of what goes in and what comes out in docs/trace.md.
fn documented() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(repository("docs/trace.md")).unwrap();
    let blocks = |kind: &str| -> Vec<String> {
        let open = format!("```jsonl {kind}\n");
        text.split(&open).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
    };
    let (given, answers) = (blocks("in"), blocks("out"));
    assert_eq!(given.len(), answers.len());
    given.into_iter().zip(answers).collect()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn the_documented_traces_answer_as_documented() {
    let desk = Desk::new();
    let documented = documented();
    assert!(documented.len() >= 3);
    for (given, expected) in documented {
        let limit = ["simulate", "--algorithm", "gcra", "--rate", "10/s", "--burst", "5", "--trace"];
        let ran = desk.run_with(&[&limit[..], &["-"]].concat(), given.as_str()).code(0);
        let (mut got, mut expected) = (lines(&ran.out), lines(&expected));
        for (got, expected) in got.iter_mut().zip(&mut expected) {
            // The page cuts the bytes of the states short.
            if let (Some(got), Some(expected)) = (got.get_mut("state"), expected.get_mut("state")) {
                let bytes = expected["bytes"].as_str().unwrap().trim_end_matches('…');
                assert!(got["bytes"].as_str().unwrap().starts_with(bytes));
                got["bytes"] = expected["bytes"].take();
                expected["bytes"] = got["bytes"].clone();
            }
        }
        assert_eq!(got, expected, "{given}");
        // A file is read as standard input is.
        desk.write("trace.jsonl", &given);
        assert_eq!(desk.run(&[&limit[..], &["trace.jsonl"]].concat()).code(0).out, ran.out);
    }
}

const EVERY_OP: &str = r#"{"t":0,"key":"a"}
{"t":0,"key":"a","op":"peek","cost":2}
{"t":100000000,"key":"a","op":"reserve","id":"later"}
{"t":100000000,"op":"cancel","id":"later"}
{"t":200000000,"key":"b","op":"reserve","max_wait":50000000}
{"t":200000000,"key":"a","op":"refund"}
{"t":3000000000,"op":"change","rate":"20/s"}
{"t":3000000000,"key":"a"}
"#;

#[track_caller]
fn runs(algorithm: &str, set: &[&str]) {
    let set: Vec<&str> = set.iter().flat_map(|pair| ["--set", pair]).collect();
    let limit = ["simulate", "--trace", "-", "--rate", "10/s", "--algorithm", algorithm];
    let ran = Desk::new().run_with(&[&limit[..], &set].concat(), EVERY_OP).code(0);
    let answers = lines(&ran.out);
    assert_eq!(answers.len(), 8, "{algorithm}: {ran:?}");
    let allowed = |at: usize| answers[at]["allowed"].as_bool();
    assert_eq!((allowed(0), allowed(7)), (Some(true), Some(true)), "{algorithm}: {ran:?}");
    for answer in answers.iter().filter(|answer| answer["op"] != "change") {
        assert!(!answer["state"]["bytes"].as_str().unwrap().is_empty(), "{algorithm}: {answer}");
    }
    assert!(ran.err.contains("8 operations"), "{ran:?}");
}

#[test]
fn every_algorithm_runs_every_operation() {
    for algorithm in [
        "gcra",
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "sliding-window",
        "sliding-counter",
        "sliding-log",
    ] {
        runs(algorithm, &[]);
    }
    runs("warm-up", &["warm_up=2s"]);
    runs("token-bucket", &["refill=interval"]);
    runs("leaky-bucket", &["queue=5", "max_wait=1s"]);
    runs("sliding-window", &["buckets=4"]);
    runs("fixed-window", &[]);
}

/// Each of these was accepted as a limit and then was none: everything passed, and a trace said "unlimited is no limit to
/// run".
#[test]
fn every_profile_runs_every_operation() {
    runs("x-time", &[]);
    runs("uber-pacer", &[]);
    runs("guava-bursty", &[]);
    runs("guava-warming", &["warm_up=2s"]);
}

#[test]
fn a_line_that_is_not_understood_is_named_and_ends_the_run() {
    let desk = Desk::new();
    let run = |input: &str| desk.run_with(&["simulate", "--rate", "10/s", "--trace", "-"], input);
    for wrong in
        ["{\"t\":x}", "{\"key\":\"a\"}", "{\"t\":2,\"op\":\"alow\"}", "{\"t\":2,\"cost\":0}", "hello"]
    {
        let ran = run(&format!("{{\"t\":0}}\n{{\"t\":1}}\n{wrong}\n{{\"t\":4}}\n")).code(2);
        assert!(ran.err.contains("line 3"), "{wrong}: {ran:?}");
        assert_eq!(ran.out.lines().count(), 2, "what came before was answered: {ran:?}");
    }
    assert!(run("").code(0).out.is_empty());
    assert!(
        desk.run(&["simulate", "--rate", "1/s", "--trace", "gone.jsonl"]).code(1).err.contains("gone.jsonl")
    );
    assert!(desk.run(&["simulate", "--trace", "-"]).code(2).err.contains("needs a limit"));
}

#[test]
fn a_limit_of_a_file_runs_a_trace_too() {
    let desk = Desk::new();
    desk.write("p.yaml", "version: 1\npolicies:\n  - { name: a, limit: { rate: 10/s, burst: 5 } }\n");
    let (given, _) = documented().remove(0);
    let from_file = desk.run_with(&["simulate", "-c", "p.yaml", "--trace", "-"], given.as_str()).code(0);
    let from_flags = desk
        .run_with(&["simulate", "--rate", "10/s", "--burst", "5", "--trace", "-"], given.as_str())
        .code(0);
    assert_eq!(from_file.out, from_flags.out);
}
