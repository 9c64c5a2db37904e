//! What is nearly right passed every check and limited nobody: names, paths, networks, values and comparisons.

use tidegate::config::Format;

use super::{mistakes, policy, yaml};

/// The lines of a policy, and the end of what is said; empty: nothing.
type Row = (&'static [&'static str], &'static str);

fn told(rows: &[Row]) {
    for (lines, says) in rows {
        let mut whole = lines.to_vec();
        if !lines.iter().any(|line| line.starts_with("limit")) {
            whole.push("limit: { rate: 1/s }");
        }
        let found = policy(&whole);
        match *says {
            "" => assert_eq!(found, [""; 0], "{lines:?}"),
            says => assert!(found.len() == 1 && found[0].ends_with(says), "{lines:?}: {found:#?}"),
        }
    }
}

#[test]
fn names_that_no_request_has() {
    told(&[
        (&["by: \"client.ip,request.path\""], "is 2 names in one; write by: [client.ip, request.path]"),
        (&["by: \"client.ip request.path\""], "is 2 names in one; write by: [client.ip, request.path]"),
        (&["by:", "  - client.ip", "    - user.id"], "is 2 names in one; write by: [client.ip, user.id]"),
        (
            &["match: { path: \"/login?next=/\" }"],
            "the query is cut off before a path is matched; write /login",
        ),
        (&["by: \"{client.ip}\""], "is not the name of an attribute; write client.ip"),
        (
            &["by: [\"header:x-api-key\"]"],
            "\"header:x-api-key\" is not the name of an attribute; write request.header.x-api-key",
        ),
        (&["by: \"header: X-Api-Key\""], "is not the name of an attribute; write request.header.x-api-key"),
        (&["by: [\"${user.id}\"]"], "is not the name of an attribute; write user.id"),
        (
            &["match: { attributes: { \"{user.id}\": ann } }"],
            "match.attributes: \"{user.id}\" is not the name of an attribute; write user.id",
        ),
        (
            &["limit: { rate: { by: \"user.tier,user.id\", values: { a: 1/s }, otherwise: 2/s } }"],
            "is 2 names in one; an attribute has one, as user.tier",
        ),
        (
            &["limit: { rate: { by: user.teir, values: { a: 1/s }, otherwise: unlimited } }"],
            "by: no request has \"user.teir\" unless its caller sends that name; did you mean user.tier?",
        ),
        (&["cost: user.teir", "on_cost_error: deny"], "did you mean user.tier?"),
        (&["cost: { by: user.teir, values: { a: 1 }, otherwise: 1 }"], "did you mean user.tier?"),
        (&["access: { deny: [usr.id=eve] }"], "did you mean user.id?"),
        (&["by: [request.header.x_api_key]"], "write request.header.x-api-key unless \"x_api_key\" is meant"),
        (&["match: { header: { x_api_key: a } }"], "write x-api-key unless \"x_api_key\" is meant"),
        (&["by: [user.uid, client.id, upstream.name, tenant]"], ""),
    ]);
    #[cfg(feature = "cel")]
    told(&[
        (&["cost: 'has(user.teir) ? 1 : 1'"], "did you mean user.tier?"),
        (&["cost: 'request.method == \"post\" ? 1 : 1'"], "methods are upper case; write \"POST\""),
        (
            &["cost: 'client.ip == \"10.0.0.0/8\" ? 1 : 1'"],
            "a network and compared as text; write client.ip.startsWith(\"10.\")",
        ),
    ]);
}

#[test]
fn paths_of_other_systems() {
    let regex = "a path has no regular expressions or parameters here: * is one segment, ** any number, {a,b} either; write";
    for (path, meant) in [
        ("/users/{id}/orders", "/users/*/orders"),
        ("/(api|v1)/**", "/{api,v1}/**"),
        ("/n/[0-9]+", "/n/*"),
        ("~ ^/api", "/api/**"),
        ("^/api/.*$", "/api/**"),
    ] {
        let found = policy(&[&format!("match: {{ path: \"{path}\" }}"), "limit: { rate: 1/s }"]);
        let says = format!("error  policy \"p\": match.path: \"{path}\": {regex} {meant}");
        assert!(found.len() == 1 && found[0].ends_with(&says), "{found:#?}");
    }
    told(&[
        (&["match: { path: \"/api/.*\" }"], "regular expressions or parameters here; write /api/**"),
        (&["match: { path: \"/users/:id\" }"], "regular expressions or parameters here; write /users/*"),
        (
            &["match: { path: /api/ }"],
            "warn   policy \"p\": match.path: /api/ matches /api alone; write /api/** for all below it too",
        ),
        (&["match: { path: \"/api*\" }"], "write /api/** for /api and all below it"),
        (&["match: { path: / }"], "match.path: / matches the root alone; write /** for every path"),
        (&["match: { path: [/, /index.html] }"], ""),
        (&["match: { path: [/**, /v?/*, /.well-known/*, \"/a/*.png\", \"/{api,v1}/**\", /x-*] }"], ""),
        (&["prefix: /x"], "; write match: { path: /x/** }"),
        (&["location: /x/"], "; write match: { path: /x/** }"),
        (&["match: { prefix: /api }"], "; write path: /api/**"),
    ]);
}

/// Such a policy was written to exempt its requests, and did nothing.
#[test]
fn a_policy_that_is_unlimited_exempts_nobody() {
    let expected = [
        "t:6:5  warn   policy \"p\": limits nothing, since its rate is unlimited, and exempts from nothing; write access.allow, or not under match, in the policies that are to spare these requests",
    ];
    for limit in [
        "limit: { rate: unlimited }",
        "limit: [{ rate: unlimited }, { rate: unlimited }]",
        "limit: { rate: { by: user.tier, values: { free: unlimited }, otherwise: unlimited } }",
    ] {
        assert_eq!(policy(&["match: { path: /health }", limit]), expected, "{limit}");
    }
    for right in [
        &["limit: { rate: { by: user.tier, values: { free: 1/s }, otherwise: unlimited } }"][..],
        &["limit: { rate: unlimited }", "access: { deny: [user.id=eve] }"],
        &["limit: { rate: unlimited }", "shadow_limit: { rate: 5/s }"],
        &["limit: { rate: unlimited }", "mode: off"],
        &["limit: { rate: unlimited }", "deadline: 20ms"],
        &["limit: { rate: unlimited }", "match: { attributes: { rls.domain: shop } }"],
    ] {
        assert_eq!(policy(right), [""; 0], "{right:?}");
    }
}

#[test]
fn networks_and_addresses() {
    let bits = "10.0.0.5/8 has host bits; write 10.0.0.5 for that address alone, or 10.0.0.0/8 for the whole network";
    told(&[
        (&["access: { allow: [10.0.0.5/8] }"], bits),
        (&["access: { deny: [client.ip=10.0.0.5/8] }"], bits),
        (&["match: { attributes: { client.ip: 10.0.0.5/8 } }"], bits),
        (
            &[
                "by: client.ip",
                "limit: { rate: 1/s, overrides: [{ key: { client.ip: 10.0.0.5/8 }, rate: 9/s }] }",
            ],
            bits,
        ),
        (
            &[
                "by: client.ip",
                "limit: { rate: 1/s, overrides: [{ key: { client.ip: \"2001:db8::1\" }, rate: 9/s }] }",
            ],
            "write access: { allow: [2001:db8::/64] } to exempt that network, or client_ip: { ipv6_prefix: 128 } for a counter of each address",
        ),
        (&["match: { attributes: { client.ip: 10.0.0.0/8 } }"], "; in a match write \"10.*\""),
        (&["match: { client.ip: 10.0.0.0/8 }"], "; write attributes: { client.ip: \"10.*\" }"),
    ]);
    let doors =
        yaml("version: 1\nserver: { http: 9000, admin: 127.0.0.1:9000, grpc: 0, resp: 0 }\npolicies: []\n");
    assert_eq!(
        doors,
        [
            "t:2:30  warn   server.admin: 127.0.0.1:9000 is the address of http already; leave admin out to answer operators there too"
        ]
    );
    let open = policy(&["limit: { rate: 1/s }", "access: { allow: [10.0.0.0/8, 0.0.0.0/0], deny: [::/0] }"]);
    assert_eq!(
        open,
        [
            "t:6:35  warn   policy \"p\": access.allow: whoever calls from 0.0.0.0/0 is exempt, so next to nobody is limited; name the network of your own callers alone, as 10.0.0.0/8"
        ]
    );
    let open = yaml(
        "version: 1\naccess: { allow: ['::/0', client.ip=0.0.0.0/0, 'fc00::/7'] }\npolicies: [{ name: p, limit: { rate: 1/s } }]\n",
    );
    assert_eq!(open.len(), 2, "{open:?}");
    assert!(
        open[0].starts_with("t:2:19  warn   access.allow: whoever calls from ::/0 is exempt"),
        "{open:?}"
    );
    let proxies = |networks: &str| {
        yaml(&format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [{networks}] }}\npolicies: [{{ name: p, limit: {{ rate: 1/s }} }}]\n"
        ))
    };
    let found = proxies("0.0.0.0/0, '::/0'");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains(
            "warn   client_ip.trusted_proxies: whoever calls from 0.0.0.0/0 chooses its own address"
        ),
        "{found:?}"
    );
    assert!(proxies("10.0.0.5/8")[0].ends_with(&format!("error  client_ip.trusted_proxies: {bits}")));
    assert_eq!(proxies("10.0.0.0/8, 'fc00::/7', 173.245.48.0/20, 203.0.113.9"), [""; 0]);
}

#[test]
fn values_that_cannot_be() {
    told(&[
        (
            &["match: { attributes: { user.score: \">100\" } }"],
            "let the caller send the class of the number, as user.score: high",
        ),
        (&["match: { attributes: { user.tier: \"!free\" } }"], "is written as not: { ... } within match"),
        (&["match: { header: { user-agent: \"^curl.*\" } }"], "in which * is any text; write \"curl*\""),
        (&["match: { header: { x-key: \"k[0-9]+\" } }"], "in which * is any text; write \"k*\""),
        (
            &["match: { attributes: { user.plan: \"pro|team\" } }"],
            "in which * is any text; write [\"pro\", \"team\"]",
        ),
        (&["match: { attributes: { user.id: \"github|eve\" } }"], ""),
        (
            &["access: { deny: [\"request.header.user-agent=*bot*\"] }"],
            "patterns hold in match alone: write a policy with match: { header: { user-agent: \"*bot*\" } }",
        ),
        (
            &["by: user.id", "limit: { rate: 1/s, overrides: [{ key: { user.id: \"a*\" }, rate: 9/s }] }"],
            "patterns hold in match alone: write a policy with match: { attributes: { user.id: \"a*\" } }",
        ),
        (&["match: { method: GTE }"], "few requests have the method GTE; did you mean GET?"),
        (&["match: { method: [GET, PROPFIND, REPORT, MOVE] }"], ""),
        (&["match: { header: { accept: \"*/*\", user-agent: \"curl/7.*\" } }"], ""),
    ]);
}

/// The correction is written in the language of the file.
#[test]
fn a_file_in_toml_is_told_in_toml() {
    for (text, says) in [
        (
            "[[policies]]\nname = 'p'\nlimit = { rate = '1/s' }\n",
            "file has no version; write version = 1 in its first line",
        ),
        (
            "version = 1\n[[policies]]\nname = 'p'\nkey = 'client.ip'\nlimit = { rate = '1/s' }\n",
            "; write by = [\"client.ip\"]",
        ),
        (
            "version = 1\n[[policies]]\nname = 'p'\nlimit = { capacity = 7, refill_rate = 3 }\n",
            "; write limit = { rate = \"3/s\", burst = 7 }",
        ),
    ] {
        let found = mistakes(text, Format::Toml);
        assert!(found.iter().any(|one| one.ends_with(says)), "{text}: {found:#?}");
    }
}

/// Regression: each line of such a file was told as a mistake of its own.
#[test]
fn a_file_in_the_other_format_is_told_its_name() {
    let text = "version: 1\npolicies:\n  - name: p\n    limit: { rate: 1/s }\n";
    assert_eq!(
        mistakes(text, Format::Toml),
        [
            "t:1:1  error  the name says that the file is TOML, and its text is YAML; rename it to tidegate.yaml"
        ]
    );
    for text in
        ["version = 1\npolicies = []\n", "version = 1\n[[policies]]\nname = 'p'\nlimit = { rate = '1/s' }\n"]
    {
        assert_eq!(
            mistakes(text, Format::Yaml),
            [
                "t:1:1  error  the name says that the file is YAML, and its text is TOML; rename it to tidegate.toml"
            ]
        );
    }
}

/// Regression: of a value of several words, the first one alone was put in quotes, and of several pairs the first one
/// alone was converted, so that half of the line was accepted with another meaning.
#[test]
fn what_replaces_a_removed_key_is_told_whole_in_toml() {
    for (lines, says) in [
        ("limit = { rate = '1/s' }\ndemote_to = 'sheddable'", "; write over = \"demote to sheddable\""),
        (
            "limit = { algorithm = 'breaker', profile = 'polly' }",
            "; write profile = \"resilience4j\", window = \"30s\", buckets = 10, min_calls = 100, failures = \"10%\", open_for = \"5s\", close_after = 1, probes = 1, or a threshold",
        ),
        (
            "limit = { algorithm = 'adaptive', timeout = '2 s' }",
            "; it is called slow_after now: write slow_after = \"2 s\"",
        ),
    ] {
        let text = format!("version = 1\n[[policies]]\nname = 'p'\n{lines}\n");
        let found = mistakes(&text, Format::Toml);
        assert!(found.iter().any(|one| one.contains(says)), "{text}: {found:#?}");
    }
}

#[test]
fn a_line_that_is_indented_wrongly_is_named() {
    for (text, says) in [
        (
            "version: 1\npolicies:\n\t- name: p\n\t  limit: { rate: 1/s }\n",
            "t:3:1  error  cannot be read as YAML: the line is indented by a tab; indent with blanks, two for each level",
        ),
        (
            "version: 1\npolicies:\n  - name: p\n      limit: { rate: 1/s }\n",
            "t:4:7  error  cannot be read as YAML: the line is indented by 6 blanks",
        ),
        (
            "version: 1\npolicies:\n  - name: p\n   limit: { rate: 1/s }\n",
            "t:4:4  error  cannot be read as YAML: the line is indented by 3 blanks",
        ),
    ] {
        let found = yaml(text);
        assert!(found.len() == 1 && found[0].starts_with(says), "{text}: {found:#?}");
    }
}
