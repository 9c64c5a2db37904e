//! Policies that should be one policy: they do the same, or two laws would react to each other.

use super::yaml;

#[test]
fn two_laws_for_the_same_requests_are_one_too_many() {
    let file = |first: &str, second: &str| {
        yaml(&format!(
            "version: 1\npolicies:\n  - {{ name: a, by: [user.id], {first} }}\n  - {{ name: b, by: [user.id], {second} }}\n"
        ))
    };
    let (climb, vegas) = ("limit: { algorithm: adaptive }", "limit: { algorithm: adaptive, law: vegas }");
    let warning = "t:4:5  warn   policy \"b\": has an adaptive limit for the same requests as \"a\"; each law would react to the other's refusals, so keep one";
    assert_eq!(file(climb, vegas), [warning]);
    for other in ["mode: shadow", "when: \"cpu above 80%, until 70%\"", "direction: outbound"] {
        assert_eq!(file(climb, &format!("{vegas}, {other}")), [""; 0], "{other}");
    }
    assert_eq!(file("limit: { algorithm: concurrency, max: 5 }", vegas), [""; 0]);
    let both = "t:4:5  warn   policy \"b\": has several adaptive limits; each law would react to the others' refusals, so keep one";
    let limits = "limit: [{ algorithm: adaptive }, { algorithm: adaptive, law: vegas }]";
    assert_eq!(file("limit: { rate: 1/s }", limits), [both]);
}

#[test]
fn two_laws_for_some_common_requests_are_one_too_many() {
    let file = |first: &str, second: &str| {
        yaml(&format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [10.0.0.0/8] }}\npolicies:\n  - {{ name: a, {first}, limit: {{ algorithm: adaptive }} }}\n  - {{ name: b, {second}, limit: {{ algorithm: adaptive, law: vegas }} }}\n"
        ))
    };
    let warning = |such_as: &str| {
        format!(
            "t:5:5  warn   policy \"b\": has an adaptive limit for some requests of \"a\" too{such_as}; each law would react to the other's refusals, so keep one for both, or let a `not` exclude those requests from one of them"
        )
    };
    for (first, second, such_as) in [
        ("match: { path: /api/* }", "match: { method: POST }", ", such as method \"POST\", path \"/api/x\""),
        ("by: []", "match: { path: /api/** }", ", such as path \"/api\""),
        (
            "match: { path: /a/** }, by: [user.id]",
            "match: { path: /**/b }, by: [user.id]",
            ", such as path \"/a/b\"",
        ),
        (
            "match: { host: \"*.a.b\" }",
            "match: { attributes: { user.tier: gold } }",
            ", such as host \"x.a.b\", user.tier \"gold\"",
        ),
        (
            "by: [user.id, user.tier], match: { method: GET }",
            "by: [user.tier, user.id]",
            ", such as method \"GET\"",
        ),
        ("match: { attributes: { client.ip: \"10.*\" } }", "by: []", ""),
        (
            "absent: charge, by: [user.id]",
            "absent: skip, by: [user.id], match: { path: /x }",
            ", such as path \"/x\"",
        ),
    ] {
        assert_eq!(file(first, second), [warning(such_as)], "{first} {second}");
    }
    // Each of these says that the two guard different requests, or different resources.
    for (first, second) in [
        ("match: { path: /api/** }", "match: { path: /login }"),
        ("match: { path: /api/** }", "match: { method: POST, not: { path: /api/** } }"),
        ("match: { method: GET }", "match: { not: { method: [GET, HEAD] } }"),
        (
            "match: { attributes: { user.tier: gold } }",
            "match: { attributes: { user.tier: [silver, bronze] } }",
        ),
        ("match: { path: /api/* }, by: [upstream.name]", "match: { method: POST }, by: [user.id]"),
        ("match: { path: /api/* }, by: [upstream.name]", "match: { method: POST }"),
        ("match: { path: /api/* }, when: \"cpu above 80%\"", "match: { method: POST }"),
        ("match: { path: /api/* }, direction: outbound", "match: { method: POST }"),
        ("match: { path: /api/* }, mode: shadow", "match: { method: POST }"),
        ("match: { attributes: { user.id: false } }, absent: charge, by: [user.id]", "by: [user.id]"),
        (
            "match: { attributes: { user.id: false } }, absent: charge, by: [user.id, user.tier]",
            "by: [user.id, user.tier], absent: skip",
        ),
    ] {
        assert_eq!(file(first, second), [""; 0], "{first} {second}");
    }
}

/// Regression guard for the bound on work: ten thousand policies that must all be compared, and two patterns that share
/// no text but take long to compare.
#[test]
fn comparing_laws_is_bounded() {
    let law = "limit: { algorithm: adaptive }";
    let many: String =
        (0..10_000).map(|at| format!("  - {{ name: p{at}, match: {{ path: /p/{at} }}, {law} }}\n")).collect();
    assert_eq!(yaml(&format!("version: 1\npolicies:\n{many}")), [""; 0]);
    let dense = |part: &str| format!("match: {{ attributes: {{ user.id: \"{}\" }} }}", part.repeat(50));
    let told = yaml(&format!(
        "version: 1\npolicies:\n  - {{ name: a, {}, {law} }}\n  - {{ name: b, {}, {law} }}\n",
        dense("*a?b?"),
        dense("*b?a??")
    ));
    assert!(
        told.len() == 1 && told[0].contains("has an adaptive limit perhaps for some requests of \"a\" too;"),
        "{told:?}"
    );
}

/// Regression: policies that differ only in what they do were taken for one policy written twice.
#[test]
fn only_policies_that_do_the_same_are_told_to_be_one_too_many() {
    let two = |second: &str| {
        yaml(&format!(
            "version: 1\nstore: {{ kind: disk }}\npolicies:\n  - {{ name: a, by: [user.id], limit: {{ rate: 1/s }} }}\n  - {{ name: b, by: [user.id], limit: {{ rate: 1/s }}{second} }}\n"
        ))
    };
    let warning =
        "t:5:5  warn   policy \"b\": charges the same requests under the same limits as \"a\"; one is enough";
    assert_eq!(two(""), [warning]);
    assert_eq!(two(", over: deny, absent: skip-if-none"), [warning], "that is what the first one does too");
    for other in [
        "over: mark",
        "over: demote",
        "deadline: 10ms",
        "access: { deny: [user.id=eve] }",
        "access: { status: 404 }",
        "deny: { status: 503 }",
        "deny: { problem: abnormal-usage-detected }",
        "absent: charge",
        "shadow_limit: { rate: 2/s }",
        "canary: { limit: { rate: 2/s }, share: 5%, for: 2h }",
        "near_limit: 50%",
        "on_store_error: deny",
        "durable: strict",
        "cost: { settle: llm.output }",
    ] {
        assert_eq!(two(&format!(", {other}")), [""; 0], "{other}");
    }
    // Regression: a policy was told to be one too many because the key with the mistake was left out of it.
    for mistaken in ["ovr: mark", "on_store_error: dney", "match: { path: x }"] {
        let told = two(&format!(", {mistaken}"));
        assert!(told.len() == 1 && told[0].contains("  error  "), "{mistaken}: {told:?}");
    }
}
