//! Limits of Limitador, with a table of descriptors and the limits that they meet.

use tidegate::config::Peer;

use super::door::{Entries, described, imported, limits, told};

#[track_caller]
fn table(text: &str, rows: &[((usize, &Entries<'_>), &[&str])]) {
    let imported = imported(Peer::Limitador, text);
    for ((index, entries), expected) in rows {
        let met = limits(&imported.config.policies, &described("shop", *index, entries));
        assert_eq!(met, *expected, "{entries:?} in\n{}", imported.text);
    }
}

#[test]
fn all_limits_that_match_hold() {
    table(
        "
- namespace: shop
  max_value: 12
  seconds: 30
  conditions: [\"descriptors[0]['req.method'] == 'GET'\"]
  variables: [\"descriptors[0].user\"]
- namespace: shop
  name: writes
  max_value: 4
  seconds: 3600
  conditions:
    - \"descriptors[0]['req.method'] in ['POST', 'PUT'] && descriptors[0].path.startsWith('/api/')\"
    - \"descriptors[0].user != 'root'\"
  variables: [\"descriptors[0]['user']\"]
- namespace: shop
  name: all
  max_value: 1000
  seconds: 1
  conditions: []
  variables: []
- namespace: another
  max_value: 1
  seconds: 1
",
        &[
            (
                (0, &[("req.method", "GET"), ("user", "ann")]),
                &["shop.limit-1: fixed-window 12/30s", "shop.all: fixed-window 1000/s"],
            ),
            (
                (0, &[("path", "/api/x"), ("req.method", "PUT"), ("user", "ann")]),
                &["shop.writes: fixed-window 4/3600s", "shop.all: fixed-window 1000/s"],
            ),
            (
                (0, &[("path", "/api/x"), ("req.method", "PUT"), ("user", "root")]),
                &["shop.all: fixed-window 1000/s"],
            ),
            // A limit does not apply without its variable.
            ((0, &[("req.method", "GET")]), &["shop.all: fixed-window 1000/s"]),
            // A limit applies to the descriptor that it names. A limit that names none is charged once per call.
            ((1, &[("req.method", "GET"), ("user", "ann")]), &[]),
        ],
    );
}

#[test]
fn conditions_are_matches() {
    let meets = |condition: &str, value: Option<&str>| {
        let text = format!("- {{ namespace: shop, max_value: 1, seconds: 1, conditions: [{condition:?}] }}");
        let set = imported(Peer::Limitador, &text).config.policies;
        let with = value.map(|value| ("k", value));
        !limits(&set, &described("shop", 0, with.as_slice())).is_empty()
    };
    for (condition, expected) in [
        ("descriptors[0].k == 'a'", [true, false, false]),
        ("'a' == descriptors[0].k", [true, false, false]),
        ("descriptors[0].k != 'a'", [false, true, false]),
        ("!(descriptors[0].k == 'a')", [false, true, false]),
        ("descriptors[0].k == 'a' || descriptors[0].k == 'b'", [true, true, false]),
        ("descriptors[0].k in ['a', 'b']", [true, true, false]),
        ("!(descriptors[0].k in ['a', 'c'])", [false, true, false]),
        ("descriptors[0].k.startsWith('a')", [true, false, false]),
        ("descriptors[0].k.endsWith('b') && descriptors[0].k != 'a'", [false, true, false]),
        ("descriptors[0].k.contains('a')", [true, false, false]),
        ("'k' in descriptors[0]", [true, true, false]),
        ("has(descriptors[0].k)", [true, true, false]),
        ("!('k' in descriptors[0])", [false, false, true]),
        ("descriptors[0].k != 'b' && descriptors[0].k != 'c'", [true, false, false]),
        ("k == 'a'", [true, false, false]),
    ] {
        let met = [Some("a"), Some("b"), None].map(|value| meets(condition, value));
        assert_eq!(met, expected, "{condition}");
    }
}

#[test]
fn a_limit_of_nothing_refuses() {
    let text = "- { namespace: shop, max_value: 0, seconds: 60, conditions: [\"descriptors[0].k == 'a'\"] }";
    let gate = tidegate::Gate::in_memory(imported(Peer::Limitador, text).config.policies, 10).unwrap();
    let passes = |value| gate.check(&described("shop", 0, &[("k", value)])).now().unwrap().allowed;
    assert_eq!(["a", "b"].map(passes), [false, true]);
}

#[test]
fn what_no_policy_says_is_an_error_with_its_place() {
    let with = |rest: &str| told(Peer::Limitador, &format!("- namespace: shop\n  max_value: 1\n{rest}"));
    for (rest, expected) in [
        ("  seconds: 0\n", "t:3:12  error  a window of 0 seconds limits nothing; write 1 or more"),
        ("", "t:1:3  error  a limit has no seconds"),
        (
            "  seconds: 1\n  policy: x\n",
            "t:4:3  error  unknown key \"policy\" in a limit; possible are namespace, max_value, seconds, name, id, conditions, variables",
        ),
        ("  seconds: 1\n  conditions: [\"1 +\"]\n", "t:4:16  error  \"1 +\" is not an expression in CEL"),
        (
            "  seconds: 1\n  variables: [\"descriptors[0].a + 1\"]\n",
            "t:4:15  error  the variable \"descriptors[0].a + 1\" is not an entry of a descriptor; write descriptors[0].key or descriptors[0]['key']",
        ),
        (
            "  seconds: 1\n  variables: [\"descriptors[0].a\", \"descriptors[1].b\"]\n",
            "t:1:3  error  a limit over several descriptors of a call cannot be a policy, which sees one at a time; have Envoy put the entries into one descriptor, and write descriptors[0] for all",
        ),
    ] {
        assert_eq!(with(rest)[0], expected);
    }
    for condition in [
        "int(descriptors[0].n) > 5",
        "descriptors[0].a == 'x' || descriptors[0].b == 'x'",
        "descriptors.exists(d, d.a == 'x')",
        "limit.name == 'x'",
        "descriptors[0].k == 'a*'",
        "descriptors[0].k == 'a' && descriptors[0].k.startsWith('a')",
    ] {
        let told = with(&format!("  seconds: 1\n  conditions: [{condition:?}]\n"));
        assert!(
            told[0].starts_with("t:4:16  error  the condition ")
                && told[0].contains("supported are: descriptors[0].key == 'value'"),
            "{told:?}"
        );
    }
    assert_eq!(
        told(Peer::Limitador, "domain: shop\n"),
        ["t:1:1  error  this is a file of envoyproxy/ratelimit; read it with --from-envoy"]
    );
}
