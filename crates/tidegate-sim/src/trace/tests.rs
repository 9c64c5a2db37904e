//! The manual's examples, errors, and the policies of a file.

use serde_json::Value;
use tidegate::config::{Config, Format};
use tidegate::policy::{GrammarError, WrittenRate};

use super::*;

fn run(input: &str) -> (String, Result<TraceTally, String>) {
    let mut trace = Trace::of_limit(|rate, burst| {
        let rate: WrittenRate =
            rate.unwrap_or("10/s").parse().map_err(|error: GrammarError| error.to_string())?;
        let WrittenRate::Per { count, .. } = rate else {
            return Err("a trace has no `unlimited`".to_owned());
        };
        let builder = Quota::per(count, rate.period().unwrap()).burst(burst.unwrap_or(5));
        builder.gcra().map_err(|error| error.to_string())
    })
    .unwrap();
    let mut out = Vec::new();
    let result = trace.run(input.as_bytes(), &mut out).map_err(|error| error.to_string());
    (String::from_utf8(out).unwrap(), result)
}

/// The blocks of `docs/trace.md`: input and output.
#[test]
fn the_examples_of_the_manual_are_true() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/trace.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> = manual.split("```").skip(1).step_by(2).collect();
    let block = |name: &str| {
        blocks
            .iter()
            .filter_map(move |block| block.strip_prefix(name))
            .map(str::trim_start)
            .collect::<Vec<_>>()
    };
    let (ins, outs) = (block("jsonl in"), block("jsonl out"));
    assert!(!ins.is_empty() && ins.len() == outs.len());
    for (input, want) in ins.into_iter().zip(outs) {
        let (out, result) = run(input);
        result.unwrap();
        assert_eq!(out, want);
    }
}

#[test]
fn mistakes_name_their_line() {
    let rows = [
        (r#"{"t":0,"key":"a","cost":0}"#, "line 1: cost 0 asks for nothing; use op `peek` to look"),
        (r#"{"key":"a"}"#, "line 1: missing field `t` at column 11"),
        ("\n\n{", "line 3: EOF while parsing an object at column 1"),
        (
            r#"{"t":0,"op":"alow"}"#,
            "line 1: unknown variant `alow`, expected one of `allow`, `reserve`, `peek`, `settle`, `cancel`, `change` at column 18",
        ),
        (
            r#"{"t":0,"op":"cancel","id":"x"}"#,
            "line 1: no allowed line before has the id \"x\", or it was settled",
        ),
        (r#"{"t":0,"op":"change"}"#, "line 1: op `change` needs a `rate`, a `burst` or both"),
        (
            r#"{"t":0,"op":"change","rate":"5/M"}"#,
            "line 1: \"M\" could be minute or month; write min or month",
        ),
        (r#"{"t":0,"op":"allow","max_wait":5}"#, "line 1: op `allow` has no field `max_wait`"),
        (
            r#"{"t":0,"op":"settle","id":"x"}"#,
            "line 1: op `settle` needs `used`, the units really spent; 0 undoes it",
        ),
        (
            r#"{"t":0,"key":"a","id":"x"}

{"t":2,"key":"a","id":"x"}"#,
            "line 3: the id \"x\" is that of line 1, which is not settled yet; settle that first, or take another id",
        ),
        (
            r#"{"t":0,"key":"a","id":"x"}
{"t":1,"op":"cancel","id":"x"}
{"t":2,"op":"cancel","id":"x"}"#,
            "line 3: no allowed line before has the id \"x\", or it was settled",
        ),
        (r#"{"t":0,"op":"settle","used":1}"#, "line 1: op `settle` needs the `id` of an earlier line"),
        (
            r#"{"t":0,"attrs":{"user.plan":"pro"}}"#,
            "line 1: `attrs` has no effect with a limit given by flags: only policy files have tiers and overrides",
        ),
    ];
    for (input, want) in rows {
        assert_eq!(run(input).1.unwrap_err(), want, "{input}");
    }
}

#[test]
fn algorithms_have_the_names_that_policies_write() {
    assert_eq!(algorithm(&Quota::per_second(1).gcra().unwrap()), "gcra");
    assert_eq!(algorithm(&Quota::per_second(1).sliding_log().unwrap()), "sliding-log");
}

/// States must not be written by default: for a sliding log, the output would grow with the square of the input.
#[test]
fn states_are_written_when_asked_for_only() {
    let trace = || Trace::of_limit(|_, _| Ok(Quota::per_second(2_000).sliding_log().unwrap())).unwrap();
    let input: String = (0..2_000).map(|t| format!("{{\"t\":{t}}}\n")).collect();
    let run = |mut trace: Trace<'_>, input: &str| {
        let mut out = Vec::new();
        trace.run(input.as_bytes(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let out = run(trace(), &input);
    assert!(out.lines().all(|line| line.len() < 200 && !line.contains("state")), "{}", out.len());
    let with = run(trace().with_states(), "{\"t\":0}\n");
    assert!(with.contains(r#""state":{"algorithm":"sliding-log","bytes":""#), "{with}");
}

/// A time before the last *change* of a key counts as the time of that change; a refusal changes nothing.
#[test]
fn an_earlier_time_counts_as_the_last_change() {
    let second = 1_000_000_000;
    let line = |t: u64, cost: u64| format!("{{\"t\":{t},\"cost\":{cost}}}\n");
    // Five units spent at 1 s, a refusal at 1.3 s; then at 1.2 s two units are back, not three.
    let out = run(&(line(second, 5) + &line(second + 300_000_000, 5) + &line(second + 200_000_000, 3))).0;
    assert!(
        out.lines()
            .last()
            .unwrap()
            .contains(r#""allowed":false,"wait":0,"retry":"after","retry_after":100000000"#),
        "{out}"
    );
    // A time before the change at 1 s counts as 1 s.
    let out = run(&(line(second, 5) + &line(0, 1))).0;
    assert!(out.lines().last().unwrap().contains(r#""retry_after":100000000,"remaining":0"#), "{out}");
}

/// Ids must not be remembered after they are settled: a long trace would fill the memory.
#[test]
fn an_id_is_forgotten_once_it_is_settled() {
    let mut trace = Trace::of_limit(|_, _| Ok(Quota::per_second(10).burst(5).gcra().unwrap())).unwrap();
    trace.most_held = 2;
    let mut run = |input: &str| {
        let result = trace.run(input.as_bytes(), io::sink()).map(drop);
        (result.map_err(|error| error.to_string()), trace.held.len())
    };
    let round = "{\"t\":0,\"id\":\"x\"}\n{\"t\":0,\"op\":\"cancel\",\"id\":\"x\"}\n";
    assert_eq!(run(&round.repeat(100)), (Ok(()), 0));
    let mistake = "line 3: 2 charges with an `id` are not settled yet, and a trace holds no more; settle or cancel some, or leave out \
                   the `id` of those that never are";
    let three = "{\"t\":0,\"id\":\"a\"}\n{\"t\":0,\"id\":\"b\"}\n{\"t\":0,\"id\":\"c\"}\n";
    assert_eq!(run(three), (Err(mistake.to_owned()), 2));
}

// The policies of a file in a trace: all their limits, tiers and overrides, charged all or none.

fn traced(policies: &str, input: &str) -> Result<Vec<Value>, String> {
    let file = format!("version: 1\npolicies:\n{policies}");
    let (config, _) = Config::parse(&file, "test", Format::Yaml).expect("a good file");
    let mut out = Vec::new();
    let mut trace = Trace::of_policies(config.policies)?;
    trace.run(input.as_bytes(), &mut out).map_err(|error| error.to_string())?;
    Ok(out.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

const TWO_LIMITS: &str = "
  - name: api
    by: [user.id]
    limit: [{ rate: 10/s, burst: 5 }, { rate: 3/h, algorithm: sliding-log }]
";

/// All limits of a policy must be charged, not only the first: four requests an hour passed where three were allowed.
#[test]
fn all_limits_of_a_policy_are_charged_or_none() {
    let line = "{\"t\":0,\"key\":\"ann\"}\n";
    let lines = traced(TWO_LIMITS, &line.repeat(4)).unwrap();
    let allowed: Vec<_> = lines.iter().map(|line| line["allowed"].as_bool().unwrap()).collect();
    assert_eq!(allowed, [true, true, true, false]);
    let limits = lines[3]["limits"].as_array().unwrap();
    let seen: Vec<_> = limits
        .iter()
        .map(|limit| {
            (
                limit["limit"].as_str().unwrap(),
                limit["allowed"].as_bool().unwrap(),
                limit["remaining"].as_u64().unwrap(),
            )
        })
        .collect();
    // The first limit alone would allow it, but is not charged because the second refuses.
    assert_eq!(seen, [("gcra 10/s burst 5", true, 2), ("sliding-log 3/h", false, 0)]);
    assert_eq!(
        (&lines[3]["retry"], &lines[3]["retry_after"]),
        (&"after".into(), &3_600_000_000_000_u64.into())
    );
}

#[test]
fn settling_settles_every_limit_of_a_line() {
    let input = r#"{"t":0,"key":"ann","cost":3,"id":"call"}
{"t":0,"op":"settle","id":"call","used":1}
{"t":0,"key":"ann","op":"peek"}
"#;
    let lines = traced(TWO_LIMITS, input).unwrap();
    let left = |line: &Value| -> Vec<u64> {
        line["limits"].as_array().unwrap().iter().map(|limit| limit["remaining"].as_u64().unwrap()).collect()
    };
    assert_eq!((left(&lines[0]), left(&lines[1]), left(&lines[2])), (vec![2, 0], vec![4, 2], vec![4, 2]));
    assert!(lines[1].get("allowed").is_none());
}

#[test]
fn tiers_and_overrides_hold_where_a_line_names_their_attributes() {
    let policies = "
  - name: api
    by: [user.id]
    limit:
      rate: { by: user.plan, values: { pro: 10/min }, otherwise: 2/min }
      overrides: [{ key: { user.id: root }, rate: unlimited }]
";
    let input = r#"{"t":0,"key":"ann","cost":3}
{"t":0,"key":"ann","cost":3,"attrs":{"user.plan":"pro"}}
{"t":0,"key":"root","cost":300}
"#;
    let lines = traced(policies, input).unwrap();
    let shown: Vec<_> = lines
        .iter()
        .map(|line| {
            (line["allowed"].as_bool().unwrap(), line["limits"][0]["limit"].as_str().map(str::to_owned))
        })
        .collect();
    assert_eq!(
        shown,
        [(false, Some("gcra 2/min".to_owned())), (true, Some("gcra 10/min".to_owned())), (true, None)]
    );
    let unknown = traced(policies, r#"{"t":0,"key":"ann","attrs":{"user.plam":"pro"}}"#).unwrap_err();
    assert!(unknown.contains("\"user.plam\"") && unknown.contains("user.plan"), "{unknown}");
}

#[test]
fn a_shadow_is_shown_and_refuses_nobody() {
    let policies = "
  - { name: tight, mode: shadow, limit: { rate: 1/h } }
  - { name: wide, limit: { rate: 9/h } }
";
    let lines = traced(policies, "{\"t\":0}\n{\"t\":0}\n").unwrap();
    let (whole, tight) = (&lines[1], &lines[1]["limits"][0]);
    assert_eq!(
        (whole["allowed"].as_bool(), tight["allowed"].as_bool(), tight["binding"].as_bool()),
        (Some(true), Some(false), Some(false))
    );
    let off = traced("  - { name: gone, mode: off, limit: { rate: 1/h } }\n", "").unwrap_err();
    assert!(off.contains("gone") && off.contains("mode: off"), "{off}");
}

#[test]
fn a_deny_list_refuses_before_any_limit() {
    let policies = "
  - name: api
    by: [client.ip]
    access: { deny: [\"client.ip=203.0.113.9\"] }
    limit: { rate: 1/h }
";
    let lines =
        traced(policies, "{\"t\":0,\"key\":\"203.0.113.9\"}\n{\"t\":0,\"key\":\"203.0.113.8\"}\n").unwrap();
    assert_eq!((lines[0]["allowed"].as_bool(), lines[1]["allowed"].as_bool()), (Some(false), Some(true)));
    assert_eq!(lines[0]["denied_by_list"].as_str(), Some("203.0.113.9/32"));
}
