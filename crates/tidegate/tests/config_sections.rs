//! Mistakes outside of the policies: the sections of a file, each mistake at its place.
#![cfg(feature = "config")]

use tidegate::config::{Config, Format};

/// What `config check` would print of a text, one line per mistake.
fn yaml(text: &str) -> Vec<String> {
    let found = match Config::parse(text, "t", Format::Yaml) {
        Ok((_, warnings)) => warnings,
        Err(mistakes) => mistakes,
    };
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn mistakes_of_a_file() {
    for (text, expected) in [
        ("", &["t:1:1  error  the file is empty; `tidegate init` writes one to start from"][..]),
        ("a", &["t:1:1  error  file is a map, found a text"][..]),
        ("[]", &["t:1:1  error  file is a map, found a list"][..]),
        ("version: 2\npolicies: []\n", &["t:1:10  error  version: 2 is out of range; use 1"][..]),
        ("policies: []\n", &["t:1:1  error  file has no version"][..]),
        (
            "version: 1\nstore: { kind: redis, url: x }\nserver: { grpc: 127.0.0.1:1, http: nowhere, htpp: x }\npolicies:\n",
            &[
                "t:2:16  error  store.kind: redis is not available in this version; use memory",
                "t:2:28  error  store.url is not available in this version",
                "t:3:17  error  server.grpc is not available in this version",
                "t:3:36  error  server.http: \"nowhere\" is not an address and port, as 127.0.0.1:8080",
                "t:3:45  error  unknown key \"htpp\" in server; did you mean \"http\"?",
                "t:4:1  error  policies has no value; give it one or leave it out",
            ][..],
        ),
        (
            "version: 1\npolicies: [a: [}\n",
            &["t:2:15  error  cannot be read as YAML: mismatched bracket '[' closed by '}'"][..],
        ),
        (
            "version: 1\n\tpolicies: 1",
            &["t:1:10  error  cannot be read as YAML: while scanning a plain scalar, found a tab"][..],
        ),
        (
            "a: &a [*a]",
            &["t:1:8  error  cannot be read as YAML: recursive references require weak recursion types"][..],
        ),
        (
            "version: 1\n---\nversion: 2\n",
            &["t:2:1  error  cannot be read as YAML: the file holds more than one document"][..],
        ),
        (
            "version: 1\npolicies:\n  - { name: a, limit: { rate: 1/s } }\n  - { name: a, limit: { rate: 1/s } }\n  - { limit: { rate: 1/m } }\n  - { name: '', limit: { rate: 1/s } }\n  - 7\n",
            &[
                "t:4:13  error  policy \"a\": the name is taken by the policy in line 3",
                "t:5:5  error  policy 3: policy has no name",
                "t:5:22  error  policy 3: rate: \"m\" could be minute or month; write min or month",
                "t:6:5  warn   policy \"\": charges the same requests under the same limits as \"a\"; one is enough",
                "t:6:13  error  policy \"\": name: an empty text says nothing; leave it out",
                "t:7:5  error  policy 5: policy is a map, found a number",
            ][..],
        ),
        (
            "version: 1\nx-base: &base { rate: 5/s, burst: 7 }\npolicies:\n  - { name: a, limit: *base }\n  - { name: b, limit: { <<: *base, rate: 9/s } }\n  - { name: c, limit: { <<: *base, rate: 9/m } }\n",
            &["t:6:42  error  policy \"c\": rate: \"m\" could be minute or month; write min or month"][..],
        ),
        (
            "version: 1\n? [a, b]\n: 1\n3: 4\npolicies: []\n",
            &[
                "t:2:3  error  unknown key \"<a list>\" in file; possible are version, server, client_ip, forward_auth, store, tickets, defaults, access, policies",
                "t:4:1  error  unknown key \"3\" in file; possible are version, server, client_ip, forward_auth, store, tickets, defaults, access, policies",
            ][..],
        ),
        (
            "version: 1\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    limit: { rate: 1/s }\n",
            &[
                "t:4:5  warn   policy \"per-ip\" is keyed by client.ip but trusted_proxies is empty: behind a proxy all callers share one key",
            ][..],
        ),
        (
            "version: 1\npolicies: [!!int x, !foo bar, 'x']",
            &["t:2:18  error  cannot be read as YAML: invalid u64"][..],
        ),
    ] {
        assert_eq!(yaml(text), expected, "{text}");
    }
}

#[test]
fn a_word_of_an_earlier_version_names_the_new_one() {
    assert_eq!(
        yaml("version: 1\nstore: { keys: 1000, key_form: whole }\npolicies: []\n"),
        ["t:2:32  error  store.key_form: whole is called full now; write full"]
    );
}
