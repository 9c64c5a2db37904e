//! The policies of a file in a trace: all their limits, tiers and overrides, charged all or none.

use serde_json::Value;
use tidegate::config::{Config, Format};

use super::*;

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
