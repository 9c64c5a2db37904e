//! Generated traffic under the policies of a file: attributes, priorities, and what matches them.

use crate::verbs::Desk;

/// A file whose policies match by path, method, attribute and direction.
const MATCHED: &str = "version: 1
policies:
  - { name: login, match: { path: /login, method: POST }, limit: { rate: 1/h, burst: 2 } }
  - { name: api, match: { path: /api/**, not: { path: /api/open } }, limit: { rate: 1/h, burst: 3 } }
  - { name: gold, match: { attributes: { user.tier: gold } }, limit: { rate: 1/h, burst: 4 } }
  - { name: ours, direction: outbound, limit: { rate: 1/h, burst: 5 } }
  - { name: all, limit: { rate: 1/h, burst: 100, keep_for: { critical: 90% } } }
";

/// What a policy matched and denied.
fn told(value: &serde_json::Value, policy: &str) -> (u64, u64) {
    let policies = value["runs"][0]["policies"].as_array().unwrap();
    let one = policies.iter().find(|one| one["name"] == policy).unwrap();
    (one["matched"].as_u64().unwrap(), one["denied"].as_u64().unwrap())
}

#[test]
fn generated_requests_are_matched_by_the_attributes_of_their_segment() {
    let desk = Desk::new();
    desk.write("limits.yaml", MATCHED);
    let traffic = "burst 6 with request.path=/login with request.method=POST, burst 5 with request.path=/login, \
                   burst 7 with request.path=/api/open, burst 8 with request.path=/api/x with user.tier=gold, \
                   burst 9 with request.direction=outbound";
    let ran = desk.run(&["simulate", "-c", "limits.yaml", "--traffic", traffic, "-o", "json"]).code(0);
    let value = ran.json();
    let seen = ["login", "api", "gold", "ours"].map(|policy| told(&value, policy).0);
    assert_eq!(seen, [6, 8, 8, 9]);
    assert!(!ran.err.contains("applied to all"), "{ran:?}");
}

#[test]
fn the_priority_of_a_segment_is_that_of_its_requests() {
    let desk = Desk::new();
    desk.write("limits.yaml", MATCHED);
    let denied = |priority: &str| {
        let traffic = format!("burst 50 {priority}");
        let run = ["simulate", "-c", "limits.yaml", "all", "--traffic", &traffic, "-o", "json"];
        told(&desk.run(&run).code(0).json(), "all").1
    };
    assert_eq!((denied(""), denied("priority sheddable")), (0, 40));
}

/// A real file gave nonsense without a remark: each policy was applied to all requests.
#[test]
fn policies_that_the_traffic_cannot_match_are_applied_to_all_and_told() {
    let desk = Desk::new();
    desk.write("limits.yaml", MATCHED);
    let run = |traffic: &str| {
        desk.run(&["simulate", "-c", "limits.yaml", "--traffic", traffic, "-o", "json"]).code(0)
    };
    let ran = run("burst 6");
    assert_eq!(told(&ran.json(), "gold").0, 6);
    for remark in [
        "the traffic names no request.method and no request.path, so login was applied to all of them",
        "the traffic names no request.path, so api was applied to all of them; to match it, name it in the traffic, as in \
         burst 5 with request.path=/login",
        "the traffic names no user.tier, so gold was applied",
        "the traffic names no request.direction, so ours was applied",
    ] {
        assert!(ran.err.contains(remark), "{remark}: {}", ran.err);
    }
    let partly = run("burst 6 with request.path=/login");
    assert_eq!((told(&partly.json(), "login").0, told(&partly.json(), "gold").0), (0, 6));
    assert!(
        partly
            .err
            .contains("no request fits login; its match reads request.method, and the traffic names none"),
        "{partly:?}"
    );
}

#[test]
fn attributes_choose_tiers_and_replace_the_key() {
    let desk = Desk::new();
    desk.write(
        "limits.yaml",
        "version: 1\npolicies:\n  - name: p\n    by: [user.id]\n    \
         limit: { rate: { by: user.tier, values: { gold: 9/h }, otherwise: 2/h } }\n",
    );
    let traffic = "burst 10 key a, burst 10 key b with user.tier=gold, burst 5 key c with user.id=a";
    let run = ["simulate", "-c", "limits.yaml", "--traffic", traffic, "-o", "json"];
    assert_eq!(told(&desk.run(&run).code(0).json(), "p"), (25, 8 + 1 + 5));
}
