//! Traces: operations in, decisions out, exact to the nanosecond.

use serde_json::Value;

use crate::verbs::{Desk, repository};

/// Returns the pairs of input and output in docs/trace.md.
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
        let (got, expected) = (lines(&ran.out), lines(&expected));
        assert_eq!(got, expected, "{given}");
        // A file gives the same result as standard input.
        desk.write("trace.jsonl", &given);
        assert_eq!(desk.run(&[&limit[..], &["trace.jsonl"]].concat()).code(0).out, ran.out);
    }
}

const EVERY_OP: &str = r#"{"t":0,"key":"a","id":"first"}
{"t":0,"key":"a","op":"peek","cost":2}
{"t":100000000,"key":"a","op":"reserve","id":"later"}
{"t":100000000,"op":"cancel","id":"later"}
{"t":200000000,"key":"b","op":"reserve","max_wait":50000000}
{"t":200000000,"op":"settle","id":"first","used":3}
{"t":3000000000,"op":"change","rate":"20/s"}
{"t":3000000000,"key":"a"}
"#;

#[track_caller]
fn runs(algorithm: &str, set: &[&str]) {
    let set: Vec<&str> = set.iter().flat_map(|pair| ["--set", pair]).collect();
    let limit = ["simulate", "--trace", "-", "--state", "--rate", "10/s", "--algorithm", algorithm];
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

/// Each of these is accepted as a limit, so it must limit: it must not let everything pass, nor fail a trace with
/// "unlimited is no limit to run".
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

/// All limits of a policy from a file must run, with their tiers.
#[test]
fn the_policies_of_a_file_run_a_trace_with_all_their_limits() {
    let desk = Desk::new();
    desk.write(
        "p.yaml",
        "version: 1
policies:
  - name: api
    by: [user.id]
    limit:
      - { rate: { by: user.plan, values: { pro: 100/min }, otherwise: 2/min } }
      - { rate: 3/h, algorithm: fixed-window }
  - { name: other, limit: { rate: 1/h } }
",
    );
    let trace = "{\"t\":0,\"key\":\"ann\",\"cost\":3}\n{\"t\":0,\"key\":\"ann\",\"cost\":3,\"attrs\":{\"user.plan\":\"pro\"}}\n";
    let ran = desk.run_with(&["simulate", "-c", "p.yaml", "api", "--trace", "-"], &*trace.repeat(2)).code(0);
    let lines = lines(&ran.out);
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line["allowed"].as_bool().unwrap(), line["limits"][0]["limit"].as_str().unwrap()))
        .collect();
    let (slow, fast) = ("gcra 2/min", "gcra 100/min");
    assert_eq!(
        seen,
        [(false, slow), (true, fast), (false, slow), (false, fast)],
        "the last by the second limit"
    );
    // Without a name, all policies are checked, as by the gate.
    let all = desk.run_with(&["simulate", "-c", "p.yaml", "--trace", "-"], "{\"t\":0}\n{\"t\":0}\n").code(0);
    assert!(all.out.contains("\"policy\":\"other\""), "{all:?}");
    assert!(all.err.contains("1 allowed, 1 denied"), "{all:?}");
    let change = "{\"t\":0,\"op\":\"change\",\"burst\":9}";
    let refused = desk.run_with(&["simulate", "-c", "p.yaml", "--trace", "-"], change).code(2);
    assert!(refused.err.contains("--rate"), "{refused:?}");
    desk.run(&["simulate", "-c", "p.yaml", "--traffic", "burst 1", "--state"]).code(2);
}

/// The example with a policy file in docs/trace.md.
#[test]
fn the_documented_policies_answer_as_documented() {
    let text = std::fs::read_to_string(repository("docs/trace.md")).unwrap();
    let block = text.split("```console\n").nth(1).unwrap().split("```").next().unwrap();
    let (file, rest) = block.split_once("limits.yaml\n").unwrap().1.split_once("$ echo '").unwrap();
    let (given, rest) = rest.split_once('\'').unwrap();
    let desk = Desk::new();
    desk.write("limits.yaml", file);
    let ran = desk.run_with(&["simulate", "-c", "limits.yaml", "--trace", "-", "-q"], given).code(0);
    assert_eq!(ran.out, rest.split_once('\n').unwrap().1);
}
