//! Every mistake is found, all at once, at its place, with what would be right.
#![cfg(feature = "config")]

use proptest::prelude::*;
use tidegate::config::{Config, Format, Severity, report};

/// What `config check` would print of a text, one line per mistake.
fn mistakes(text: &str, format: Format) -> Vec<String> {
    let found = match Config::parse(text, "t", format) {
        Ok((_, warnings)) => warnings,
        Err(mistakes) => mistakes,
    };
    found.iter().map(ToString::to_string).collect()
}

fn yaml(text: &str) -> Vec<String> {
    mistakes(text, Format::Yaml)
}

/// The mistakes of one policy: its name stands in line 4, `lines` from line 5.
fn policy(lines: &[&str]) -> Vec<String> {
    let indented: String = lines.iter().map(|line| format!("    {line}\n")).collect();
    yaml(&format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: p\n{indented}"))
}

#[test]
fn mistakes_of_a_policy() {
    for (lines, expected) in [
        (&["limit: { rate: 100/s }"][..], &[][..]),
        (
            &["limit: { rate: 100/m }"][..],
            &["t:5:20  error  policy \"p\": rate: \"m\" could be minute or month; write min or month"][..],
        ),
        (
            &["limit: { rate: 100 }"][..],
            &[
                "t:5:20  error  policy \"p\": rate: \"100\" does not say per what; write 100/s, 100/min or 100/day",
            ][..],
        ),
        (
            &["limit: { rate: 0/s }"][..],
            &[
                "t:5:20  error  policy \"p\": rate: \"0/s\" lets nothing pass; use 1 or more, or access.deny to refuse everyone",
            ][..],
        ),
        (
            &["limit: { rate: 1/fortnight }"][..],
            &[
                "t:5:20  error  policy \"p\": rate: unknown unit \"fortnight\"; use ms, s, min, h, day, week, month or year",
            ][..],
        ),
        (
            &["limit: { rate: 1/400year }"][..],
            &["t:5:20  error  policy \"p\": rate: \"1/400year\" is longer than 146 years"][..],
        ),
        (
            &["limit: { rate: [1/s] }"][..],
            &["t:5:20  error  policy \"p\": rate is a rate as 100/s, found a list"][..],
        ),
        (&["limit: { burst: 2 }"][..], &["t:5:12  error  policy \"p\": limit has no rate"][..]),
        (
            &["limit: { rate: 1/s, burts: 2 }"][..],
            &["t:5:25  error  policy \"p\": unknown key \"burts\" in limit; did you mean \"burst\"?"][..],
        ),
        (
            &["limit: { rate: 1/s, fnord: 2 }"][..],
            &[
                "t:5:25  error  policy \"p\": unknown key \"fnord\" in limit; possible are algorithm, rate, burst, calendar, buckets, refill, queue, max_wait, slack, warm_up, cold_factor, rate_by, rates, otherwise, overrides, replace, max, ttl",
            ][..],
        ),
        (
            &["limit: { rate: 1/s, burst: 0 }"][..],
            &["t:5:32  error  policy \"p\": burst: 0 is out of range; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, burst: many }"][..],
            &["t:5:32  error  policy \"p\": burst: \"many\" is not a whole number; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, burst: 1.5 }"][..],
            &["t:5:32  error  policy \"p\": burst: \"1.5\" is not a whole number; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, burst: -3 }"][..],
            &["t:5:32  error  policy \"p\": burst: \"-3\" is not a whole number; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, rate: 2/s }"][..],
            &["t:5:25  error  policy \"p\": key \"rate\" is given twice, first in line 5"][..],
        ),
        (
            &["limit: { algorithm: gcar, rate: 1/s }"][..],
            &["t:5:25  error  policy \"p\": algorithm: unknown word \"gcar\"; did you mean \"gcra\"?"][..],
        ),
        (
            &["limit: { algorithm: concurrency, max: 64, adaptive: gradient }"][..],
            &["t:5:57  error  policy \"p\": adaptive is not available in this version"][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 1/s, burst: 2 }"][..],
            &[
                "t:5:50  error  policy \"p\": burst does not belong to fixed-window; it belongs to gcra, token-bucket, leaky-bucket, warm-up, x-time",
            ][..],
        ),
        (
            &["limit: { rate: 1/s, calendar: UTC }"][..],
            &["t:5:25  error  policy \"p\": calendar does not belong to gcra; it belongs to fixed-window"][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/day, calendar: Asia/Shangai }"][..],
            &[
                "t:5:62  error  policy \"p\": unknown time zone \"Asia/Shangai\"; did you mean \"Asia/Shanghai\"?",
            ][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/day, calendar: Mars }"][..],
            &[
                "t:5:62  error  policy \"p\": unknown time zone \"Mars\"; use an IANA name as Europe/Vienna, or UTC",
            ][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/2day, calendar: UTC }"][..],
            &[
                "t:5:45  error  policy \"p\": a calendar window of 2 day does not exist; use one min, h, day, week, month or year",
            ][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/s, calendar: UTC }"][..],
            &[
                "t:5:45  error  policy \"p\": a calendar window of s does not exist; use one min, h, day, week, month or year",
            ][..],
        ),
        (
            &["limit: { algorithm: sliding-window, rate: 5/s, buckets: 5000 }"][..],
            &["t:5:61  error  policy \"p\": buckets: 5000 is out of range; use 1 to 1024"][..],
        ),
        (
            &["limit: { algorithm: sliding-log, rate: 5000k/s }"][..],
            &[
                "t:5:44  error  policy \"p\": count 5000000 is too many for a log, which keeps each arrival; use at most 1048576, or a sliding window",
            ][..],
        ),
        (
            &["limit: { algorithm: warm-up, rate: 5/s }"][..],
            &["t:5:12  error  policy \"p\": warm-up needs warm_up"][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, queue: 10 }"][..],
            &["t:5:57  error  policy \"p\": a queue needs max_wait: how long a request may stand in it"][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, queue: 10, max_wait: 1s, burst: 3 }"][..],
            &[
                "t:5:75  error  policy \"p\": burst and queue exclude each other; slack is what a pause saves up for a queue",
            ][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, slack: 3 }"][..],
            &["t:5:50  error  policy \"p\": slack needs queue: only a queue saves up"][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, queue: 10, max_wait: 1s }", "cost: 12"][..],
            &[
                "t:5:45  error  policy \"p\": a request may cost 12, and leaky-bucket 5/s queue 10 never grants more than 11 at once",
            ][..],
        ),
        (
            &["limit: { rate: 5/s, max_wait: 10m }"][..],
            &["t:5:35  error  policy \"p\": max_wait: \"m\" could be minute or month; write min or month"][..],
        ),
        (
            &["limit: { rate: 5/s, rate_by: user.tier }"][..],
            &[
                "t:5:14  error  policy \"p\": rate and rate_by exclude each other; put the rate of all others into otherwise",
            ][..],
        ),
        (
            &["limit: { rate_by: user.tier, rates: { a: 1/s } }"][..],
            &["t:5:14  error  policy \"p\": rates by tier need otherwise too"][..],
        ),
        (
            &["limit: { rate_by: user.tier, rates: { a: 1/m }, otherwise: 1/s }"][..],
            &["t:5:46  error  policy \"p\": rates.a: \"m\" could be minute or month; write min or month"][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: 6"][..],
            &[
                "t:5:20  error  policy \"p\": a request may cost 6, and gcra 5/s never grants more than 5 at once",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: 0"][..],
            &["t:6:11  error  policy \"p\": cost: 0 is not a whole number of 1 or more"][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: { by: request.method, values: { GET: 1, POST: 50 } }"][..],
            &[
                "t:5:20  error  policy \"p\": a request may cost 50, and gcra 5/s never grants more than 5 at once",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: { values: { GET: 0 } }"][..],
            &[
                "t:6:11  error  policy \"p\": cost has no by",
                "t:6:28  error  policy \"p\": cost.values.GET: 0 is out of range; use 1 to 2^60",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "by: [user.id, user.id]"][..],
            &["t:6:19  error  policy \"p\": user.id is named twice in by"][..],
        ),
        (
            &["limit: { rate: 5/s, overrides: [{ key: { user.id: vip }, rate: 9/s }] }"][..],
            &["t:5:46  error  policy \"p\": user.id is not part of the key; by is []"][..],
        ),
        (
            &["limit: { rate: 5/s, overrides: [{ key: { a: 1, b: 2 }, rate: 9/s }, { rate: 9/s }] }"][..],
            &["t:5:73  error  policy \"p\": override has no key"][..],
        ),
        (
            &[
                "by: a",
                "limit: { rate: 5/s, overrides: [{ key: { a: 1 }, rate: 9/s }, { key: { a: 1 }, rate: 8/s }] }",
            ][..],
            &["t:6:74  error  policy \"p\": a=1 is overridden twice"][..],
        ),
        (
            &["mode: shadwo", "limit: { rate: 5/s }"][..],
            &["t:5:11  error  policy \"p\": mode: unknown word \"shadwo\"; did you mean \"shadow\"?"][..],
        ),
        (
            &["mode: on", "limit: { rate: 5/s }"][..],
            &["t:5:11  error  policy \"p\": mode: unknown word \"on\"; possible are off, shadow, enforce"][..],
        ),
        (
            &["near_limit: 0.8", "limit: { rate: 5/s }"][..],
            &["t:5:17  error  policy \"p\": near_limit: \"0.8\" is not a share; use 1% to 100%"][..],
        ),
        (
            &["deny: { status: 200 }", "limit: { rate: 5/s }"][..],
            &["t:5:21  error  policy \"p\": deny.status: 200 is out of range; use 400 to 599"][..],
        ),
        (
            &["access: { allow: [10.0.0.0/33, nonsense] }", "limit: { rate: 5/s }"][..],
            &[
                "t:5:23  error  policy \"p\": access.allow: \"10.0.0.0/33\" is neither a network as 10.0.0.0/8 nor an attribute as user.id=42",
                "t:5:36  error  policy \"p\": access.allow: \"nonsense\" is neither a network as 10.0.0.0/8 nor an attribute as user.id=42",
            ][..],
        ),
        (
            &["match: { path: api/** }", "limit: { rate: 5/s }"][..],
            &["t:5:20  error  policy \"p\": match.path: \"api/**\": a path pattern starts with / or **"][..],
        ),
        (
            &["match: { path: [/a**, '/{a'], host: '' }", "limit: { rate: 5/s }"][..],
            &[
                "t:5:21  error  policy \"p\": match.path: \"/a**\": ** stands for whole segments; write /**/ or /** with nothing beside it",
                "t:5:27  error  policy \"p\": match.path: \"/{a\": braces do not pair; write {a,b}, not nested",
                "t:5:41  error  policy \"p\": match.host: an empty pattern matches nothing; leave it out to match everything",
            ][..],
        ),
        (
            &["match: { method: { a: b } }", "limit: { rate: 5/s }"][..],
            &["t:5:22  error  policy \"p\": match.method is a text, found a map"][..],
        ),
        (
            &["match: [/a]", "limit: { rate: 5/s }"][..],
            &["t:5:12  error  policy \"p\": match is a map, found a list"][..],
        ),
        (&["limits: []"][..], &["t:5:5  error  policy \"p\": limits is empty"][..]),
        (
            &["limit: { rate: 5/s }", "limits: [{ rate: 1/s }]"][..],
            &["t:6:5  error  policy \"p\": limit and limits exclude each other"][..],
        ),
        (
            &["limit:"][..],
            &["t:5:5  error  policy \"p\": limit has no value; give it one or leave it out"][..],
        ),
        (&["by: a"][..], &["t:4:5  error  policy \"p\": policy has no limit"][..]),
        (
            &[
                "breaker: { failure_rate: 50% }",
                "deadline: { respect: true }",
                "share: leased",
                "limit: { rate: 1/s }",
            ][..],
            &[
                "t:5:14  error  policy \"p\": breaker is not available in this version",
                "t:6:15  error  policy \"p\": deadline is not available in this version",
                "t:7:12  error  policy \"p\": share: leased needs a store that several nodes have in common, and `store.kind: memory` is this process's own; write share: local, or leave it out",
            ][..],
        ),
    ] {
        assert_eq!(policy(lines), expected, "{lines:?}");
    }
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
    let text = "version: 1\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    limit: { rate: 1/s }\n  - name: sms-per-phone\n    limits:\n      - { algorithm: fixed-window, rate: 5/day, calendar: Asia/Shangai }\n";
    let found = Config::parse(text, "tidegate.yaml", Format::Yaml).unwrap_err();
    assert_eq!(found[0].severity, Severity::Warn);
    assert_eq!(
        report(&found),
        "\
tidegate.yaml:4:5   warn   policy \"per-ip\" is keyed by client.ip but trusted_proxies is empty: behind a proxy all callers share one key
tidegate.yaml:8:59  error  policy \"sms-per-phone\": unknown time zone \"Asia/Shangai\"; did you mean \"Asia/Shanghai\"?
2 problems (1 error). Nothing was changed.
"
    );
    assert_eq!(report(&[]), "");
}

/// Nine levels of nine aliases are half a billion scalars if written out.
#[test]
fn an_alias_bomb_is_refused_quickly() {
    let mut text = "version: 1\nx-0: &x0 [a, a, a, a, a, a, a, a, a]\n".to_owned();
    for level in 1..9 {
        let below = vec![format!("*x{}", level - 1); 9].join(", ");
        text += &format!("x-{level}: &x{level} [{below}]\n");
    }
    text += "policies: []\n";
    let found = yaml(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("cannot be read as YAML"), "{found:?}");
}

#[test]
fn depth_is_refused() {
    for text in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000), "a:\n ".repeat(1000)] {
        assert!(!yaml(&text).is_empty());
        assert!(!mistakes(&format!("a = {text}"), Format::Toml).is_empty());
    }
}

fn scalar() -> impl Strategy<Value = String> {
    let words = "100/s|60/m|unlimited|gcra|concurrency|fixed-window|warm-up|client.ip|/a/\\*\\*|/\\{a|10.0.0.0/8|80%|-1|1.5|0x1F|2min|true|~|UTC|'x|\\*x|&x|\\[|\\{|\\]|\\}|!!int|1 \\? 2 : 3|a.b|\"";
    prop_oneof![words, ".{0,12}"]
}

fn known_key() -> impl Strategy<Value = String> {
    "version|policies|name|limit|limits|rate|burst|by|cost|match|path|not|header|access|allow|deny|status|rates|rate_by|otherwise|overrides|key|calendar|mode|shadow_limit|server|http|store|defaults|client_ip|trusted_proxies|[a-z]{1,8}"
}

/// Lines that look like a file, more or less.
fn almost_a_file() -> impl Strategy<Value = String> {
    let line = (0..5_usize, any::<bool>(), known_key(), scalar()).prop_map(|(depth, dash, key, value)| {
        format!("{}{}{key}: {value}\n", "  ".repeat(depth), if dash { "- " } else { "" })
    });
    let flow = proptest::collection::vec((known_key(), scalar()), 0..6).prop_map(|pairs| {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        format!("version: 1\npolicies: [{{ name: a, limit: {{ {} }} }}]\n", pairs.join(", "))
    });
    prop_oneof![proptest::collection::vec(line, 0..20).prop_map(|lines| lines.concat()), flow]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = yaml(&text);
        let _ = mistakes(&text, Format::Toml);
    }

    #[test]
    fn nothing_like_a_file_panics(text in almost_a_file()) {
        for found in yaml(&text) {
            // A place is in the text, but for an end that comes too early.
            let line: usize = found.split(':').nth(1).and_then(|line| line.parse().ok()).unwrap_or(0);
            // YAML counts a carriage return as the end of a line, too.
            let lines = text.matches(['\n', '\r']).count() + 1;
            prop_assert!((1..=lines).contains(&line), "{}", found);
        }
        let _ = mistakes(&text.replace(": ", " = "), Format::Toml);
    }
}

#[test]
fn a_word_of_an_earlier_version_names_the_new_one() {
    assert_eq!(
        yaml("version: 1\nstore: { keys: 1000, key_form: whole }\npolicies: []\n"),
        ["t:2:32  error  store.key_form: whole is called full now; write full"]
    );
}

#[test]
fn a_store_of_one_process_shares_nothing() {
    let own = "needs a store that several nodes have in common, and `store.kind: memory` is this process's own; write share: local, or leave it out";
    for word in ["split", "central", "leased"] {
        let text = format!(
            "version: 1\ndefaults: {{ share: {word} }}\npolicies: [{{ name: p, limit: {{ rate: 1/s }} }}]\n"
        );
        assert_eq!(yaml(&text), [format!("t:2:20  error  share: {word} {own}")]);
    }
    let text = "version: 1\npolicies: [{ name: p, limit: { rate: 1/s }, share: shared }]\n";
    assert_eq!(
        yaml(text),
        [
            "t:2:52  error  policy \"p\": share: unknown word \"shared\"; possible are local, split, central, leased"
        ]
    );
}
