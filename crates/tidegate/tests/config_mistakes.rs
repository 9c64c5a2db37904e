//! Every mistake in a policy file is found, all at once, each with its place and a correction.
#![cfg(feature = "config")]

mod canary;
mod foreign;
mod hostile;
mod near_misses;
mod one_too_many;
mod policy;
mod short_names;

use tidegate::config::{Config, Format, Severity, report};

/// Returns what `config check` prints about a text, one line per mistake.
fn mistakes(text: &str, format: Format) -> Vec<String> {
    let found = match Config::parse_to_serve(text, "t", format) {
        Ok((_, warnings)) => warnings,
        Err(mistakes) => mistakes,
    };
    found.iter().map(ToString::to_string).collect()
}

fn yaml(text: &str) -> Vec<String> {
    mistakes(text, Format::Yaml)
}

/// Returns the mistakes of one policy. Its name is in line 4 of the file, and `lines` start at line 5.
fn policy(lines: &[&str]) -> Vec<String> {
    let indented: String = lines.iter().map(|line| format!("    {line}\n")).collect();
    yaml(&format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: p\n{indented}"))
}

#[test]
fn mistakes_of_a_file() {
    for (text, expected) in [
        ("", &["t:1:1  error  the file is empty; `tidegate init` writes one to start from"][..]),
        ("a", &["t:1:1  error  file is a map, found a text"][..]),
        (
            "[]",
            &["t:1:1  error  file is a map, found a list; begin the file with version: 1 and policies:"][..],
        ),
        (
            "- name: suggested\n  by: [client.ip]\n  limit: { rate: 10/s }\n",
            &["t:1:1  error  file is a map, found a list; begin the file with version: 1 and policies:"][..],
        ),
        ("version: 2\npolicies: []\n", &["t:1:10  error  version: 2 is out of range; use 1"][..]),
        ("policies: []\n", &["t:1:1  error  file has no version; write version: 1 in its first line"][..]),
        (
            "version: 1\nstore: { kind: redis, url: x, nodes: 3 }\nserver: { admin: 127.0.0.1:1, http: nowhere, htpp: x }\npolicies:\n",
            &[
                "t:2:28  error  store.url: \"x\" does not begin with redis:// or rediss://; write redis://HOST:6379",
                "t:3:37  error  server.http: \"nowhere\" is not an address and port, such as 127.0.0.1:8080, or 8080 for this machine alone, nor a socket, such as unix:/run/tidegate.sock",
                "t:3:46  error  unknown key \"htpp\" in server; did you mean \"http\"?",
                "t:4:1  error  policies has no value; give it one or leave it out",
            ][..],
        ),
        (
            "version: 1\npolicies: [a: [}\n",
            &["t:2:15  error  cannot be read as YAML: mismatched bracket '[' closed by '}'"][..],
        ),
        (
            "version: 1\n\tpolicies: 1",
            &[
                "t:2:1  error  cannot be read as YAML: the line is indented by a tab; indent with blanks, two for each level",
            ][..],
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
            "version: 1\npolicies:\n  - { name: a, limit: { rate: 1/s } }\n  - { name: a, limit: { rate: 1/s } }\n  - { limit: { rate: 1/M } }\n  - { name: '', limit: { rate: 1/s } }\n  - 7\n",
            &[
                "t:4:13  error  policy \"a\": the name is taken by the policy in line 3",
                "t:5:5  error  policy 3: policy has no name",
                "t:5:22  error  policy 3: rate: \"M\" could be minute or month; write min or month",
                "t:6:13  error  policy \"\": name: the text is empty; leave it out",
                "t:7:5  error  policy 5: policy is a map, found a number",
            ][..],
        ),
        (
            "version: 1\nx-base: &base { rate: 5/s, burst: 7 }\npolicies:\n  - { name: a, limit: *base }\n  - { name: b, limit: { <<: *base, rate: 9/s } }\n  - { name: c, limit: { <<: *base, rate: 9/M } }\n",
            &["t:6:42  error  policy \"c\": rate: \"M\" could be minute or month; write min or month"][..],
        ),
        (
            "version: 1\n? [a, b]\n: 1\n3: 4\npolicies: []\n",
            &[
                "t:2:3  error  unknown key \"<a list>\" in file; possible are version, server, client_ip, forward_auth, envoy, store, tickets, defaults, access, switches, policies",
                "t:4:1  error  unknown key \"3\" in file; possible are version, server, client_ip, forward_auth, envoy, store, tickets, defaults, access, switches, policies",
            ][..],
        ),
        (
            "version: 1\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    limit: { rate: 1/s }\n",
            &[
                "t:4:5  warn   policy \"per-ip\" is keyed by client.ip but client_ip.trusted_proxies is empty: behind a proxy all callers share one key",
            ][..],
        ),
        (
            "version: 1\npolicies:\n  - { name: a, match: { attributes: { rls.domain: shop } }, by: [client.ip], limit: { rate: 1/s } }\n  - { name: b, match: { attributes: { rls.domain: false } }, by: [client.ip], limit: { rate: 1/s } }\n",
            &[
                "t:4:62  warn   policy \"b\" is keyed by client.ip but client_ip.trusted_proxies is empty: behind a proxy all callers share one key",
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

/// Regression: a file with something else in it was told line by line, in the log and in answers of `/v1/reload`. Such a
/// file may hold secrets, as a link to another file does.
#[test]
fn another_file_is_one_mistake_without_its_words() {
    let expected = [
        "t:1:1  error  the file has no key of a policy file, such as version or policies; name another file",
    ];
    for text in [
        "root:*:20228:0:99999:7::: x\ndaemon: $y$j9T$secret\n",
        "password: hunter2\n",
        "secret: 1\ntoken: 6f0d2b8e1c9a4f57\n",
    ] {
        assert_eq!(yaml(text), expected, "{text}");
    }
    // One word that is nearly right makes it a policy file with mistakes.
    assert!(yaml("polices: []\npassword: x\n")[0].contains("did you mean \"policies\"?"));
}

/// Regression: each of these was accepted, or answered with the list of all words. A cost of one word is text to an
/// expression, so each request was charged 1.
#[cfg(feature = "cel")]
#[test]
fn words_that_are_nearly_right_are_told_the_right_one() {
    assert_eq!(
        yaml("version: 1\npolicies: []\npolicy: []\n"),
        ["t:3:1  error  unknown key \"policy\" in file; did you mean \"policies\"?"]
    );
    for (line, expected) in [
        ("by: [clientip]", "by: no request has \"clientip\"; write client.ip"),
        (
            "cost: tokens",
            "cost: \"tokens\" is one word, and the name of an attribute has a dot; write llm.tokens, or 'int(tokens)' for a value of your own that has none",
        ),
        (
            "cost: llm-output",
            "cost: \"llm-output\" is one word, and the name of an attribute has a dot; write llm.output",
        ),
        (
            "cost: { estimate: totl, settle: llm.total }",
            "cost.estimate: \"totl\" is one word, and the name of an attribute has a dot; write llm.total, or 'int(totl)' for a value of your own that has none",
        ),
        (
            "cost: learned",
            "cost: \"learned\" belongs to an estimate; write cost: { estimate: learned, start: 300 }",
        ),
    ] {
        let found = policy(&["limit: { rate: 1k/s }", line]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with(&format!("error  policy \"p\": {expected}")), "{line}: {found:?}");
    }
    assert!(policy(&["limit: { rate: 1k/s }", "cost: 'int(tokens)'", "on_cost_error: deny"]).is_empty());
    assert!(
        policy(&["limit: { rate: 10r/s }"])[0]
            .ends_with("rate: \"10r/s\" is not how a rate is written here; write 10/s")
    );
}

#[test]
fn toml_is_explained_in_the_same_words() {
    for (text, expected) in [
        (
            "version = 1\n[[policies]]\nname = \"a\"\n[policies.limit]\nrate = 5\nburst = 0x10\n",
            &["t:5:8  error  policy \"a\": rate: \"5\" does not say per what; write 5/s, 5/min or 5/day"][..],
        ),
        ("version = 1\nversion = 2\n", &["t:2:1  error  cannot be read as TOML: duplicate key"][..]),
        (
            "version = \n x = [",
            &[
                "t:1:11  error  cannot be read as TOML: string values must be quoted, expected literal string",
                "t:2:7  error  cannot be read as TOML: unclosed array, expected `]`",
            ][..],
        ),
        (
            "version = 1\n[[policies]]\nname='p'\nlimit = { rate = '1/s', burts = 2 }\n[store]\nkind='memroy'\n",
            &[
                "t:4:25  error  policy \"p\": unknown key \"burts\" in limit; did you mean \"burst\"?",
                "t:6:6  error  store.kind: unknown word \"memroy\"; did you mean \"memory\"?",
            ][..],
        ),
    ] {
        assert_eq!(mistakes(text, Format::Toml), expected, "{text}");
    }
}

#[test]
fn the_report_is_a_table_with_a_count() {
    let text = "version: 1\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    limit: { rate: 1/s }\n  - name: sms-per-phone\n    limit:\n      - { algorithm: fixed-window, rate: 5/day, calendar: Asia/Shangai }\n";
    let found = Config::parse_to_serve(text, "tidegate.yaml", Format::Yaml).unwrap_err();
    assert_eq!(found[0].severity, Severity::Warn);
    assert_eq!(
        report(&found),
        "\
tidegate.yaml:4:5   warn   policy \"per-ip\" is keyed by client.ip but client_ip.trusted_proxies is empty: behind a proxy all callers share one key
tidegate.yaml:8:59  error  policy \"sms-per-phone\": unknown time zone \"Asia/Shangai\"; did you mean \"Asia/Shanghai\"?
2 problems (1 error).
"
    );
    assert_eq!(report(&[]), "");
}

#[test]
fn a_key_of_an_earlier_version_names_the_line_that_works() {
    assert_eq!(
        yaml("version: 1\nstore: { keys: 1000, key_form: full }\npolicies: []\n"),
        [
            "t:2:22  error  unknown key \"key_form\" in store; write keys: \"1000 in full\" for keys that are kept in full"
        ]
    );
}

/// Regression: the table had the first four rates, and a file with it was accepted.
#[test]
fn a_table_of_more_rates_than_are_told_cannot_be_taken_for_whole() {
    let rates = |rates: &str| {
        let line = format!("limit: {{ rate_by: user.tier, rates: {{ {rates} }}, otherwise: 1/s }}");
        let told = policy(&[&line]);
        let (_, table) = told.iter().find_map(|one| one.split_once("write rate: ")).unwrap();
        table.to_owned()
    };
    assert_eq!(
        rates("a: 1/s, b: 2/s, C: 3/s, d e: 4/s"),
        "{ by: user.tier, values: { a: 1/s, b: 2/s, \"C\": 3/s, \"d e\": 4/s }, otherwise: 1/s }"
    );
    let five = rates("a: 1/s, b: 2/s, c: 3/s, d: 4/s, e: 5/s");
    let (table, others) = five.split_once(", with ").unwrap();
    assert_eq!(others, "the others in place of the dots");
    assert!(!policy(&[&format!("limit: {{ rate: {table} }}")]).is_empty(), "{table}");
}

/// Returns the mistakes of one policy with `share: split` on three nodes. Asserts that none has another cause.
fn split(store: &str, policy: &str) -> Vec<String> {
    let of_split = |line: &String| line.contains("split");
    let text = format!(
        "version: 1\nstore: {{ kind: {store}, url: {}, nodes: 3 }}\npolicies:\n  - {{ name: p, {policy} }}\n",
        if store == "etcd" { "http://a:2379" } else { "redis://a:6379" },
    );
    let all = yaml(&text);
    assert!(all.iter().all(of_split), "{all:?}");
    all
}

/// Regression: such a policy refused every request, and no check reported it.
#[test]
fn what_cannot_be_divided_is_no_limit_of_split() {
    let cannot = "t:4:23  error  policy \"p\": share: split cannot divide";
    for (limit, why) in [
        (
            "{ rate: 600/day, algorithm: fixed-window, calendar: UTC }",
            "its windows are those of the calendar; write share: leased",
        ),
        ("{ algorithm: breaker, failures: 50% }", "each node has its own; write share: local"),
        (
            "{ rate: 600/s, algorithm: uber-pacer }",
            "no part of it is a limit of the same kind; write share: leased",
        ),
    ] {
        let found = split("redis", &format!("share: split, limit: {limit}"));
        assert!(found.len() == 1 && found[0].starts_with(cannot) && found[0].ends_with(why), "{found:?}");
    }
    assert!(split("redis", "share: split, limit: { rate: 600/s }").is_empty());
    assert!(split("etcd", "share: split, limit: { rate: 600/s }").is_empty());
    assert!(split("redis", "share: split, limit: { algorithm: concurrency, max: 600 }").is_empty());
}

#[test]
fn a_part_of_less_than_one_unit_is_told() {
    let few = split("redis", "share: split, limit: { rate: 2/s }");
    assert_eq!(few.len(), 1);
    assert!(few[0].contains("warn") && few[0].contains("each of 3 nodes less than one unit"), "{few:?}");
    assert!(split("redis", "share: split, limit: { rate: 4/s }").is_empty());
    let few = split("etcd", "share: split, limit: { rate: 60/s }");
    assert!(few[0].contains("for the first 1s and while the engine is gone"), "{few:?}");
    assert!(few[0].contains("allow at least 97 at once"), "{few:?}");
    let reset = split("redis", "share: split, limit: { rate: 600/s, replace: reset }");
    assert!(reset.len() == 1 && reset[0].contains("replace: reset has no effect"), "{reset:?}");
}

#[test]
fn a_default_of_split_leaves_guards_to_each_node() {
    let text = |limit| {
        format!(
            "version: 1\nstore: {{ kind: redis, url: redis://a:6379, nodes: 3 }}\ndefaults: {{ share: split }}\npolicies:\n  - {{ name: p, limit: {limit} }}\n"
        )
    };
    let (config, _) =
        Config::parse(&text("{ algorithm: breaker, failures: 50% }"), "t", Format::Yaml).unwrap();
    assert_eq!(config.policies.policies()[0].share, Some(tidegate::policy::Share::Local));
    let (config, _) = Config::parse(&text("{ rate: 60/s }"), "t", Format::Yaml).unwrap();
    assert_eq!(config.policies.policies()[0].share, Some(tidegate::policy::Share::Split));
    let mistakes = yaml(&text("{ rate: 600/day, algorithm: fixed-window, calendar: UTC }"));
    assert!(mistakes[0].contains("defaults.share: split cannot divide"), "{mistakes:?}");
}
