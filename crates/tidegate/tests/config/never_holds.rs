//! A condition that no request can meet is an error that names the right word: otherwise a limit that never applies
//! looks like a limit that nobody has reached.
#![cfg(feature = "cel")]

use tidegate::config::{Config, Format};

/// Returns the mistakes of one policy `p`, without the names of the file and the policy. Its lines start at line 5.
fn policy(lines: &str) -> Vec<String> {
    let indented: String = lines.lines().map(|line| format!("    {}\n", line.trim())).collect();
    let text = format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: p\n{indented}    limit: {{ rate: 100/s }}\n"
    );
    mistakes(&text)
}

fn mistakes(text: &str) -> Vec<String> {
    let found = match Config::parse(text, "t", Format::Yaml) {
        Ok((_, warnings)) => warnings,
        Err(mistakes) => mistakes,
    };
    found.iter().map(|one| one.to_string().replace("policy \"p\": ", "").replace("  error  ", " ")).collect()
}

fn accepted(lines: &str) {
    assert_eq!(policy(lines), [""; 0], "{lines}");
}

fn refused(lines: &str, expected: &str) {
    assert_eq!(policy(lines), [expected], "{lines}");
}

#[test]
fn attributes_that_no_request_has() {
    for (name, meant) in [
        ("request.header.X-Api-Key", "request.header.x-api-key"),
        ("request.headers.x-api-key", "request.header.x-api-key"),
        ("Request.Header.X", "request.header.x"),
        ("header.x-key", "request.header.x-key"),
        ("client.IP", "client.ip"),
        ("Client.Ip", "client.ip"),
        ("clientip", "client.ip"),
        ("client_ip", "client.ip"),
        ("client.address", "client.ip"),
        ("request.ip", "client.ip"),
        ("request.url", "request.path"),
        ("request.uri", "request.path"),
        ("request_path", "request.path"),
        ("request.pth", "request.path"),
        ("request.hostname", "request.host"),
        ("request.Method", "request.method"),
    ] {
        let expected =
            |place: &str, key: &str| format!("t:{place} {key}: no request has \"{name}\"; write {meant}");
        refused(&format!("by: [user.id, {name}]"), &expected("5:19", "by"));
        refused(&format!("match: {{ attributes: {{ {name}: a }} }}"), &expected("5:28", "match.attributes"));
        refused(
            &format!("match: {{ not: {{ attributes: {{ {name}: a }} }} }}"),
            &expected("5:35", "not.attributes"),
        );
        refused(&format!("access: {{ deny: [{name}=a] }}"), &expected("5:22", "access.deny"));
        refused(&format!("access: {{ allow: [{name}=a] }}"), &expected("5:23", "access.allow"));
        refused(
            &format!("cost: {{ by: {name}, values: {{ a: 2 }}, otherwise: 1 }}"),
            &expected("5:17", "cost.by"),
        );
        if name.contains('.') {
            refused(&format!("cost: {name}"), &expected("5:11", "cost"));
        }
        if !name.contains("X-Api-Key") && !name.contains('-') {
            refused(&format!("cost: 'size({name}) + 1'"), &expected("5:11", "cost"));
        }
        let text = format!(
            "version: 1\npolicies:\n  - name: p\n    limit: {{ rate: {{ by: {name}, values: {{ a: 1/s }}, otherwise: 1/s }} }}\n"
        );
        assert_eq!(mistakes(&text), [expected("4:26", "rate.by")], "{name}");
    }
    refused(
        "by: request.query.q",
        "t:5:9 by: no request has \"request.query.q\"; the query of a request is not an attribute",
    );
    refused(
        "by: request.body",
        "t:5:9 by: no request has \"request.body\"; there are client.ip, request.direction, request.host, request.method, request.path and request.header.<name>, and names of your own begin with another word",
    );
    refused(
        "cost: 'int(request.headers[\"X-Cost\"])'",
        "t:5:11 cost: no request has \"request.headers.X-Cost\"; write request.header.x-cost",
    );
    refused(
        "cost: 'int(request.header[\"X-Cost\"])'",
        "t:5:11 cost: no request has \"request.header.X-Cost\"; write request.header.x-cost",
    );
    refused("cost: 'has(client.IP) ? 2 : 1'", "t:5:11 cost: no request has \"client.IP\"; write client.ip");
    refused(
        "match: { header: { x key: true } }",
        "t:5:24 match.header: no header is called \"x key\"; a name has letters, digits and - or _, and no pattern",
    );
    refused(
        "match: { header: { x-*: true } }",
        "t:5:24 match.header: no header is called \"x-*\"; a name has letters, digits and - or _, and no pattern",
    );
    refused(
        "match: { header: { request.header.x-a: true } }",
        "t:5:24 match.header: \"request.header.x-a\" is an attribute; as a header it is x-a",
    );
    // The user's own names in any spelling, and built-in names spelled exactly.
    accepted(
        "by: [user.id, User.ID, client.id, client.tier, tokens, form.username, request.header.x-api-key]",
    );
    accepted("match: { header: { X-Api-Key: true }, attributes: { Tenant.Name: a } }");
    accepted(
        "cost: 'request.header[\"x-batch\"] in [\"1\", \"2\"] ? 2 : size(request.header) + int(llm.Tokens)'",
    );
}

#[test]
fn paths_that_no_path_is_normalised_to() {
    let normal = |pattern: &str, meant: &str| {
        format!(
            "t:5:20 match.path: \"{pattern}\": no path is so when it is matched: escapes are decoded, . and .. resolved; write {meant}"
        )
    };
    for (pattern, meant) in [
        ("/%6Cogin", "/login"),
        ("/a%20b", "/a b"),
        ("/a%25b", "/a%b"),
        ("/a%2fb", "/a%2Fb"),
        ("/a/../b", "/b"),
        ("/./a", "/a"),
        ("/a/..", "/"),
        ("/a/*/..", "/a"),
    ] {
        refused(&format!("match: {{ path: {pattern} }}"), &normal(pattern, meant));
    }
    refused(
        "match: { path: '/search?q=*' }",
        "t:5:20 match.path: \"/search?q=*\": the query is cut off before a path is matched; write /search",
    );
    refused("match: { path: '/a#b' }", "t:5:20 match.path: \"/a#b\": a fragment is never sent; write /a");
    refused(
        "match: { path: '{/a,/%41}' }",
        "t:5:20 match.path: \"/%41\": no path is so when it is matched: escapes are decoded, . and .. resolved; write /A",
    );
    refused("match: { path: [] }", "t:5:14 match.path is an empty list; leave it out to match everything");
    refused(
        "access: { deny: ['request.path=/a?b'] }",
        "t:5:22 access.deny: \"/a?b\": no path is so when it is compared: the query is cut off, escapes decoded, dots resolved; write /a",
    );
    refused(
        "cost: { by: request.path, values: { /a/: 2 }, otherwise: 1 }",
        "t:5:41 values: \"/a/\": no path is so when it is compared: the query is cut off, escapes decoded, dots resolved; write /a",
    );
    accepted(
        "match: { path: ['/a%2Fb', '/100%', '/v?/a=b', '/a b', '/é', /a//b, /, '**', '/.well-known/*'] }",
    );
}

#[test]
fn methods_hosts_and_addresses_that_no_request_has() {
    for (method, message) in [
        ("'*'", "\"*\" is not a method; leave method out to match every method"),
        ("ANY", "\"ANY\" is not a method; leave method out to match every method"),
        ("'GET,POST'", "\"GET,POST\" is not a method; write GET, or a list as [GET, POST]"),
        ("'{GET,POST}'", "\"{GET,POST}\" is not a method; write GET, or a list as [GET, POST]"),
        ("GET|POST", "\"GET|POST\" is not a method; write [GET, POST]"),
        ("'^(GET|HEAD)$'", "\"^(GET|HEAD)$\" is not a method; write [GET, HEAD]"),
        ("'!GET'", "\"!GET\" is not a method; write not: { method: GET } within match"),
        ("'P*'", "\"P*\" is not a method; write GET, or a list as [GET, POST]"),
    ] {
        refused(&format!("match: {{ method: {method} }}"), &format!("t:5:22 match.method: {message}"));
    }
    refused(
        "cost: { by: request.method, values: { post: 2 }, otherwise: 1 }",
        "t:5:43 values: no request has \"post\"; write POST",
    );
    refused(
        "match: { attributes: { request.method: [GET, put] } }",
        "t:5:50 match.attributes: no request has \"put\"; write PUT",
    );
    for (host, message) in [
        ("example.com:8080", "the port is cut off; write example.com"),
        ("https://example.com/", "a host has no scheme; write example.com"),
        ("example.com/api", "a host has no path; write example.com"),
        ("example.com.", "a dot at the end is cut off; write example.com"),
        (".example.com", "a host begins with a name; write *.example.com"),
        ("'[::1]'", "an IPv6 host is compared without brackets; write ::1"),
        ("'::zz'", "it is neither a host nor an IPv6 address"),
        ("exämple.com", "a host is ASCII when it is sent: write it as xn--…"),
        ("'a b'", "a host has letters, digits, - and dots"),
    ] {
        let shown = host.trim_matches('\'');
        refused(&format!("match: {{ host: {host} }}"), &format!("t:5:20 match.host: \"{shown}\": {message}"));
    }
    refused(
        "access: { deny: [request.host=Example.com] }",
        "t:5:22 access.deny: no request has the host \"Example.com\"; write example.com",
    );
    refused(
        "match: { attributes: { request.path: 'a*' } }",
        "t:5:42 match.attributes: \"a*\": no path is so when it is compared; write it under match.path, which knows segments",
    );
    refused(
        "match: { attributes: { client.ip: 10.0.0.0/8 } }",
        "t:5:39 match.attributes: \"10.0.0.0/8\" is not an address; networks stand in access.allow and access.deny; in a match write \"10.*\"",
    );
    refused(
        "access: { deny: ['::ffff:10.0.0.0/104'] }",
        "t:5:22 access.deny: no address is in ::ffff:10.0.0.0/104: IPv4 is compared as IPv4; write 10.0.0.0/8",
    );
    refused(
        "access: { deny: ['64:ff9b::203.0.113.0/120'] }",
        "t:5:22 access.deny: no address is in 64:ff9b::cb00:7100/120: IPv4 is compared as IPv4; write 203.0.113.0/24",
    );
    refused(
        "access: { deny: ['64:ff9b::/96'] }",
        "t:5:22 access.deny: no address is in 64:ff9b::/96: IPv4 is compared as IPv4; write networks of IPv4",
    );
    assert_eq!(
        mistakes("version: 1\nclient_ip: { trusted_proxies: ['::ffff:10.0.0.1'] }\npolicies: []\n"),
        [
            "t:2:32 client_ip.trusted_proxies: no address is in ::ffff:10.0.0.1/128: IPv4 is compared as IPv4; write 10.0.0.1/32"
        ]
    );
    let overridden = |key: &str| {
        mistakes(&format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: p\n    by: client.ip\n    limit: {{ rate: 1/s, overrides: [{{ key: {{ client.ip: '{key}' }}, rate: 2/s }}] }}\n"
        ))
    };
    assert_eq!(overridden("203.0.113.9"), [""; 0]);
    assert_eq!(
        overridden("2001:DB8::1")[..1],
        ["t:6:57 override.key: no address is written \"2001:DB8::1\"; write 2001:db8::1"]
    );
    accepted("match: { method: [get, PROPFIND], host: [Example.COM, '*.b.{c,d}', '::1', '*::?', '*'] }");
    accepted(
        "access: { deny: [client.ip=2001:DB8::/32, 'client.ip = 203.0.113.9', request.host=a.b, request.path=/a] }",
    );
    accepted(
        "match: { attributes: { client.ip: '10.*', request.path: ['*.php', /a/*], request.host: '*.b' } }",
    );
}

#[test]
fn policies_whose_words_exclude_each_other() {
    for (lines, why) in [
        (
            "match: { header: { x-a: true, X-A: false } }",
            "the conditions of match on request.header.x-a contradict each other",
        ),
        (
            "match: { header: { x-a: [b, c] }, attributes: { request.header.x-a: [d, e*] } }",
            "the conditions of match on request.header.x-a contradict each other",
        ),
        (
            "match: { method: POST, attributes: { request.method: [GET, PUT] } }",
            "the conditions of match on request.method contradict method",
        ),
        (
            "match: { path: /a/**, attributes: { request.path: /b } }",
            "the conditions of match on request.path contradict path",
        ),
        (
            "match: { attributes: { request.direction: outbound } }",
            "the conditions of match on request.direction contradict direction: inbound, which holds unless the policy says outbound",
        ),
        (
            "direction: outbound\n match: { attributes: { request.direction: false } }",
            "the conditions of match on request.direction contradict direction: outbound",
        ),
        (
            "direction: outbound\n match: { attributes: { request.direction: 'in*' } }",
            "the conditions of match on request.direction contradict direction: outbound",
        ),
        (
            "match: { host: [a.b, c.d], attributes: { request.host: '?' } }",
            "the conditions of match on request.host contradict host",
        ),
        (
            "match: { path: /a, attributes: { request.path: '/b*' } }",
            "the conditions of match on request.path contradict path",
        ),
        (
            "match: { method: [GET, HEAD], attributes: { request.method: 'P*' } }",
            "the conditions of match on request.method contradict method",
        ),
        ("match: { path: /a, not: {} }", "`not` excludes everything that the rest of the match includes"),
        (
            "match: { path: [/a, /b], not: { path: [/b, /a, /c] } }",
            "`not` excludes everything that the rest of the match includes",
        ),
        (
            "match: { path: '/{a,b}', not: { path: /* } }",
            "`not` excludes everything that the rest of the match includes",
        ),
        (
            "match: { method: GET, not: { method: [get, put] } }",
            "`not` excludes everything that the rest of the match includes",
        ),
        ("match: { not: { path: '/**' } }", "`not` excludes everything that the rest of the match includes"),
        (
            "match: { attributes: { tier: [free, trial] }, not: { attributes: { tier: [free, trial, paid] } } }",
            "`not` excludes everything that the rest of the match includes",
        ),
        (
            "match: { header: { x-a: b }, not: { header: { x-a: true } } }",
            "`not` excludes everything that the rest of the match includes",
        ),
        (
            "by: request.header.x-a\n match: { header: { x-a: false } }",
            "the key is made of request.header.x-a, which the match asks to be absent",
        ),
    ] {
        let found = policy(lines);
        assert_eq!(found.len(), 1, "{lines}: {found:?}");
        assert!(found[0].ends_with(&format!("no request can match: {why}")), "{lines}: {found:?}");
    }
    accepted("match: { path: /a/**, not: { path: /a/b } }");
    // A path may be read in two ways, and a method in lower case is another value: these leave `/a;x` and `get`.
    accepted("match: { attributes: { request.path: [/a] }, not: { path: [/a] } }");
    accepted("match: { method: GET, not: { attributes: { request.method: [GET] } } }");
    accepted("match: { path: /a, not: { attributes: { request.path: /b } } }");
    accepted("match: { path: /a, method: POST, not: { path: /a, method: GET } }");
    accepted("match: { header: { x-a: true }, attributes: { request.header.x-a: 'b*' } }");
    accepted("by: [request.header.x-a, client.ip]\n match: { header: { x-a: false } }");
    refused(
        "match: { header: { x-a: [] } }",
        "t:5:24 match.header.x-a is an empty list, which no value fits; write true if any will do",
    );
    refused(
        "cost: { by: user.tier, values: { '*': 2 }, otherwise: 1 }",
        "t:5:38 values: \"*\" is compared as it is; for every other value write otherwise",
    );
    refused(
        "access: { deny: ['user.id=*'] }",
        "t:5:22 access.deny: \"*\" is compared as it is and stands for nothing else",
    );
}

#[test]
fn control_characters_are_refused_wherever_they_would_be_shown() {
    let why = "it would break the headers, logs and terminals that show it";
    for (lines, place, shown, code) in [
        (r#"by: ["a\r\nb"]"#, "5:10 by", r"a\r\nb", "d"),
        (r#"deny: { problem: "/a\r\nb" }"#, "5:22 deny.problem", r"/a\r\nb", "d"),
        (r#"match: { header: { "x\n": true } }"#, "5:24 match.header", r"x\n", "a"),
        (r#"match: { header: { x: "a\x1b[2J" } }"#, "5:27 match.header.x", r"a\u{1b}[2J", "1b"),
        (r#"match: { path: "/a\0" }"#, "5:20 match.path", r"/a\0", "0"),
        (r#"access: { deny: ["user.id=a\x9b"] }"#, "5:22 access.deny", r"user.id=a\u{9b}", "9b"),
        (
            r#"cost: { by: a, values: { "b\u202e": 2 }, otherwise: 1 }"#,
            "5:30 cost.values",
            r"b\u{202e}",
            "202e",
        ),
        (r#"cost: "1 +\x07 1""#, "5:11 cost", r"1 +\u{7} 1", "7"),
    ] {
        refused(lines, &format!("t:{place}: \"{shown}\" has the control character \\u{{{code}}}; {why}"));
    }
    assert_eq!(
        mistakes("version: 1\npolicies:\n  - { name: \"a\\x1b\", limit: { rate: 1/s } }\n"),
        [format!(
            "t:3:13 policy \"a\\u{{1b}}\": name: \"a\\u{{1b}}\" has the control character \\u{{1b}}; {why}"
        )]
    );
    assert_eq!(
        mistakes("version: 1\nclient_ip: { header: \"x\\r\\nset-cookie\" }\npolicies: []\n"),
        [format!("t:2:22 client_ip.header: \"x\\r\\nset-cookie\" has the control character \\u{{d}}; {why}")]
    );
    assert_eq!(
        mistakes("version: 1\nclient_ip: { header: x forwarded }\npolicies: []\n"),
        [
            "t:2:22 client_ip.header: no header is called \"x forwarded\"; a name has letters, digits and - or _, and no pattern"
        ]
    );
    // An expression may span several lines.
    accepted(r#"cost: "request.path == '/a'\n  ? 2 : 1""#);
    refused(
        "deny: { problem: quota-exceded }",
        "t:5:22 deny.problem: unknown problem \"quota-exceded\"; did you mean \"quota-exceeded\"?, or a URI",
    );
    refused(
        "deny: { problem: 'https://a b' }",
        "t:5:22 deny.problem: \"https://a b\" is not a URI: spaces, quotes and letters beyond ASCII are written as %xx",
    );
}

#[test]
fn names_of_policies_can_stand_in_a_path() {
    let named = |name: &str| {
        mistakes(&format!("version: 1\npolicies:\n  - {{ name: '{name}', limit: {{ rate: 1/s }} }}\n"))
    };
    for fine in ["top", "a/b", "a%2Fb", "a?b", "a+b", "...", "a \"b\" \\c", "Länge", "a".repeat(128).as_str()]
    {
        assert_eq!(named(fine), [""; 0], "{fine}");
    }
    assert!(
        named("..")[0].ends_with("\"..\" cannot stand in a path, where a policy is asked for by its name")
    );
    assert!(named(" a")[0].ends_with("\" a\" begins or ends with a space"));
    assert!(named(&"a".repeat(129))[0].ends_with("has 129 bytes; use at most 128"));
}
