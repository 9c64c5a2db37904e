//! The bounds on the size of a policy file. Beyond each bound is an error that names it, found before the work that the
//! bound prevents.
#![cfg(feature = "cel")]

use tidegate::config::{Config, Format};

fn found(text: &str, format: Format) -> Vec<String> {
    match Config::parse(text, "t", format) {
        Ok((_, warnings)) => warnings.iter().map(ToString::to_string).collect(),
        Err(mistakes) => mistakes.iter().map(ToString::to_string).collect(),
    }
}

#[track_caller]
fn refused(text: &str, words: &str) {
    let found = found(text, Format::Yaml);
    assert!(found.iter().any(|one| one.contains(words)), "{words}: {:.300}", found.concat());
    assert!(found.len() <= 201, "{} mistakes", found.len());
    assert!(found.iter().all(|one| one.len() < 1000), "a long message");
}

fn policy(line: &str) -> String {
    format!("version: 1\npolicies:\n  - name: p\n    limit: {{ rate: 100/s }}\n    {line}\n")
}

fn many(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn words_have_a_length() {
    let long = "z".repeat(1 << 20);
    let of = |line: String| policy(&line);
    for (text, most) in [
        (of(format!("limit: [{{ algorithm: fixed-window, rate: 1/day, calendar: {long} }}]")), "at most 64"),
        (of(format!("limit: [{{ rate: 1{long} }}]")), "at most 64"),
        (of(format!("mode: {long}")), "at most 64"),
        (of(format!("near_limit: {long}")), "at most 64"),
        (of(format!("limit: [{{ rate: 1/s, burst: '{}' }}]", "9".repeat(1 << 20))), "at most 64"),
        (of(format!("by: {long}")), "at most 256"),
        (of(format!("match: {{ header: {{ ? {long} : true }} }}")), "at most 241"),
        (of(format!("match: {{ path: /{long} }}")), "at most 1024"),
        (of(format!("match: {{ host: {long} }}")), "at most 1024"),
        (of(format!("match: {{ method: {long} }}")), "at most 64"),
        (of(format!("match: {{ attributes: {{ a: {long} }} }}")), "at most 1024"),
        (of(format!("access: {{ deny: [user.id={long}] }}")), "at most 8449"),
        (of(format!("cost: {{ by: a, values: {{ ? {long} : 2 }}, otherwise: 1 }}")), "at most 8192"),
        (of(format!("cost: {long}.a")), "at most 2000"),
        (of(format!("deny: {{ problem: /{long} }}")), "at most 1024"),
        (format!("version: 1\nserver: {{ http: {long} }}\npolicies: []\n"), "at most 64"),
        (format!("version: 1\nclient_ip: {{ header: {long} }}\npolicies: []\n"), "at most 241"),
        (format!("version: 1\npolicies:\n  - {{ name: {long}, limit: {{ rate: 1/s }} }}\n"), "at most 128"),
    ] {
        refused(&text, most);
    }
}

#[test]
fn lists_have_a_length() {
    let policies = many(10_001, |at| format!("{{ name: p{at}, limit: {{ rate: 1/s }} }}"));
    refused(
        &format!("version: 1\npolicies: [{policies}]\n"),
        "policies has 10001 entries; at most 10000 are possible",
    );
    let lists = [
        ("match.path", format!("match: {{ path: [{}] }}", many(10_001, |at| format!("/{at}"))), 10_000),
        ("match.method", format!("match: {{ method: [{}] }}", many(65, |at| format!("M{at}"))), 64),
        ("match.header", format!("match: {{ header: {{ {} }} }}", many(25, |at| format!("x{at}: a"))), 24),
        ("by", format!("by: [{}]", many(17, |at| format!("a{at}"))), 16),
        ("limit", format!("limit: [{}]", many(17, |at| format!("{{ rate: {}/s }}", at + 1))), 16),
        (
            "cost.values",
            format!(
                "cost: {{ by: a, values: {{ {} }}, otherwise: 1 }}",
                many(10_001, |at| format!("v{at}: 2"))
            ),
            10_000,
        ),
        ("access.deny", format!("access: {{ deny: [{}] }}", many(100_001, |at| format!("a=v{at}"))), 100_000),
    ];
    for (name, line, most) in lists {
        let words = format!("{name} has {} entries; at most {most} are possible", most + 1);
        refused(&policy(&line), &words);
    }
    let alternatives = many(1_600, |at| format!("'/{at}/{{a,b,c,d}}{{a,b,c,d}}{{a,b,c,d}}'"));
    refused(
        &policy(&format!("match: {{ path: [{alternatives}] }}")),
        "multiply out to 102400; at most 100000",
    );
    let walks = many(400, |at| format!("/**/aaaaaaaaaaaaaaaaaaaa{at}/**/b"));
    refused(
        &policy(&format!("match: {{ path: [{walks}] }}")),
        "steps for each byte of a request; at most 10000",
    );
    let deep = "/a".repeat(33);
    refused(&policy(&format!("match: {{ path: {deep} }}")), "has 33 segments; use at most 32");
}

#[test]
fn mistakes_and_trees_have_a_size() {
    let bad = many(5_000, |at| format!("x{at}"));
    refused(&policy(&format!("access: {{ deny: [{bad}] }}")), "4900 more errors are not shown");
    let keys: String = (0..5_000).map(|at| format!("k{at}: 1\n")).collect();
    refused(&format!("version: 1\npolicies: []\n{keys}"), "more errors are not shown");
    refused(
        &format!("version: 1\npolicies: []\nx-a: [{}]\n", "1,".repeat(600_000)),
        "too large or nested too deep",
    );
    refused(
        &format!("version: 1\npolicies: []\nx-a: [{}]\n", "1,".repeat(300_000)),
        "has more than 250000 values",
    );
    refused(&"#".repeat(5 << 20), "is larger than 4 MiB");
    let toml =
        |list: &str| found(&format!("version = 1\npolicies = []\nx-a = [{list}]\n"), Format::Toml).concat();
    assert!(toml(&"1,".repeat(1_500_000)).contains("more than 1000000 commas"), "a wide list");
    assert!(toml(&"1,".repeat(300_000)).contains("has more than 250000 values"), "a long list");
    let keys: String = (0..20_000).map(|at| format!("k{at}.a.b.c.d.e.f=1\n")).collect();
    let dotted = found(&format!("version = 1\npolicies = []\n[x-a]\n{keys}"), Format::Toml).concat();
    assert!(dotted.contains("more than 100000 dots"), "{dotted:.200}");
    let quoted: String = (0..20_000).map(|at| format!("k{at} = \"1.2.3.4.5.6.7 \\\" .\"\n")).collect();
    let quoted = found(&format!("version = 1\npolicies = []\n[x-a]\n{quoted}"), Format::Toml).concat();
    assert!(!quoted.contains("dots"), "{quoted:.200}");
    assert!(
        toml(&format!("{}{}", "[".repeat(40), "]".repeat(40))).contains("deeper than 32 levels"),
        "a deep list"
    );
    // Anchors exist for this: a thousand policies share one limit.
    let shared: String =
        (0..1000).map(|at| format!("  - {{ name: p{at}, by: a{at}, limit: *base }}\n")).collect();
    let text = format!("version: 1\nx-base: &base {{ rate: 5/s }}\npolicies:\n{shared}");
    assert_eq!(found(&text, Format::Yaml), [""; 0]);
}

#[test]
fn expressions_have_a_size_and_no_loops() {
    for (expression, words) in [
        ("[1,2,3].map(x, [1,2,3].map(y, x * y)).size()", "an expression has no loops"),
        ("request.header.all(k, k != \"a\") ? 1 : 2", "an expression has no loops"),
        ("[1].exists(x, x == 1) ? 1 : 2", "an expression has no loops"),
        ("1 +", "cannot be read"),
        (&format!("{}1", "1 + ".repeat(120)), "the expression has 241 parts; at most 200"),
        (&format!("{}1{}", "(".repeat(40), ")".repeat(40)), "nested too deep"),
        (&format!("{}1{}", "[".repeat(33), "]".repeat(33)), "nested too deep"),
        (&"!".repeat(100), "nested too deep"),
        ("request.path.matches(\"(a*)*b\") ? 1 : 2", ""),
    ] {
        let found = found(&policy(&format!("cost: '{expression}'")), Format::Yaml).concat();
        assert!(found.contains(words), "{expression}: {found}");
    }
}

/// Reading takes time proportional to the length of the file: ten times the policies or paths must not take a hundred
/// times as long.
#[test]
fn ten_thousand_policies_and_paths_are_read() {
    let policies =
        many(10_000, |at| format!("{{ name: p{at}, match: {{ path: /a/b{at} }}, limit: {{ rate: 1/s }} }}"));
    assert_eq!(found(&format!("version: 1\npolicies: [{policies}]\n"), Format::Yaml), [""; 0]);
    let paths = many(10_000, |at| format!("/a/b{at}"));
    assert_eq!(found(&policy(&format!("match: {{ path: [{paths}] }}")), Format::Yaml), [""; 0]);
}

#[test]
fn all_costs_together_have_a_length() {
    let cost = "1 + ".repeat(60) + "1";
    let policies: String = (0..1200)
        .map(|at| format!("  - {{ name: p{at}, limit: {{ rate: {}/s }}, cost: '{cost}' }}\n", at + 1))
        .collect();
    refused(&format!("version: 1\npolicies:\n{policies}"), "longer than 256 KiB together");
}
