//! Names of attributes that are short forms of known ones.

use tidegate::config::{Config, Format};

use super::{policy, yaml};

/// Regression: a policy by such a name passed the check and limited nobody.
#[test]
fn short_names_of_attributes_are_told_the_long_ones() {
    let meant = |place: &str, key: &str, name: &str, meant: &str| {
        format!(
            "{place}  warn   policy \"p\": {key}: no request has \"{name}\" unless its caller sends that name; did you mean {meant}?"
        )
    };
    for (lines, expected) in [
        (&["by: [ip]", "limit: { rate: 1/s }"][..], meant("t:5:10", "by", "ip", "client.ip")),
        (
            &["by: [http_x_api_key]", "limit: { rate: 1/s }"],
            meant("t:5:10", "by", "http_x_api_key", "request.header.x-api-key"),
        ),
        (&["by: [jwt.sub]", "limit: { rate: 1/s }"], meant("t:5:10", "by", "jwt.sub", "user.id")),
        (&["by: [user]", "limit: { rate: 1/s }"], meant("t:5:10", "by", "user", "user.id")),
        (&["by: [User.ID]", "limit: { rate: 1/s }"], meant("t:5:10", "by", "User.ID", "user.id")),
        (
            &["match: { not: { attributes: { path: /x } } }", "limit: { rate: 1/s }"],
            meant("t:5:35", "match.not.attributes", "path", "request.path"),
        ),
        (
            &["limit: { rate: { by: tier, values: { free: 1/s }, otherwise: 2/s } }"],
            meant("t:5:26", "by", "tier", "user.tier"),
        ),
        (
            &["access: { deny: [user=eve] }", "limit: { rate: 1/s }"],
            meant("t:5:22", "access.deny", "user", "user.id"),
        ),
        (
            &["match: { attributes: { rls.domian: shop } }", "limit: { rate: 1/s }"],
            meant("t:5:28", "match.attributes", "rls.domian", "rls.domain"),
        ),
        (&["by: [rls.key, user]", "limit: { rate: 1/s }"], meant("t:5:10", "by", "rls.key", "rls.keys")),
    ] {
        assert_eq!(policy(lines), [expected], "{lines:?}");
    }
    for free in [
        "by: [tenant]",
        "by: [user.id, client.id]",
        "by: [user]\n    match: { attributes: { rls.domain: shop } }",
        "by: [rls.entry.client_ip, rls.call]\n    match: { attributes: { rls.index: \"0\", rls.keys: user } }",
    ] {
        assert_eq!(policy(&[free, "limit: { rate: 1/s }"]), [""; 0], "{free}");
    }
    let told = policy(&["by: [rls.namespace]", "limit: { rate: 1/s }"]);
    assert!(
        told.len() == 1
            && told[0].ends_with("; there are rls.domain, rls.keys, rls.index, rls.call and rls.entry.KEY"),
        "{told:?}"
    );
    let envoy =
        "version: 1\nserver: { grpc: 8081 }\npolicies: [{ name: p, by: [user], limit: { rate: 1/s } }]\n";
    assert_eq!(yaml(envoy), [""; 0], "an entry of a descriptor may have any name");
    let (_, of_a_program) = Config::parse(
        "version: 1\npolicies: [{ name: p, by: [user], limit: { rate: 1/s } }]\n",
        "t",
        Format::Yaml,
    )
    .unwrap();
    assert!(of_a_program.is_empty(), "a program sets what it likes: {of_a_program:?}");
}

/// Whoever sends another address with each request was limited by none of them.
#[test]
fn a_key_by_an_address_that_the_caller_writes_is_told() {
    for header in ["x-forwarded-for", "x-real-ip", "forwarded", "cf-connecting-ip", "true-client-ip"] {
        let expected = format!(
            "t:5:10  warn   policy \"p\": by: the caller writes the header {header}, another with each request if it likes; write by: [client.ip], and the networks of your proxies as client_ip.trusted_proxies"
        );
        let by = format!("by: [request.header.{header}]");
        assert_eq!(policy(&[&*by, "limit: { rate: 1/s }"]), [expected], "{header}");
    }
    for free in [
        "by: [request.header.x-api-key]",
        "by: [request.header.x-forwarded-for, client.ip]",
        "by: [request.header.x-forwarded-host]",
        "by: [request.header.x-real-ip]\n    match: { attributes: { rls.domain: shop } }",
    ] {
        assert_eq!(policy(&[free, "limit: { rate: 1/s }"]), [""; 0], "{free}");
    }
}
