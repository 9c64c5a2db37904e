//! The tables of keys in the manual (docs/policy-file.md), made from the keys themselves.

use tidegate_testkit::{cell, keep_tables, name, table};

use super::{
    ADAPTIVE, ALGORITHMS, AlgorithmKeys, BREAKER, CONCURRENCY, FILE, INHERITED, LIMIT, LawWords, Profile,
};
use crate::keys::{Key, Kind, Table};

const PAGE: &str = "docs/policy-file.md";

/// The tables that have a place of their own on the page: the marker, and the key that holds them.
const APART: [(&str, &str); 7] = [
    ("policy", "policies"),
    ("match", "policies.match"),
    ("cost", "policies.cost"),
    ("access", "access"),
    ("switch", "switches"),
    ("store", "store"),
    ("region", "store.region"),
];

/// Keys of tables that the page has elsewhere or describes in its prose.
const ELSEWHERE: [&str; 6] = [
    "policies.limit",
    "policies.shadow_limit",
    "policies.canary.limit",
    "policies.match.not",
    "policies.cost.estimate",
    "policies.access",
];

/// The section that says more about a key, by the name that the key has in its table.
const SECTIONS: &[(&str, &str)] = &[
    ("policies", "#a-policy"),
    ("access", "#access-lists"),
    ("switches", "#switches-by-a-number"),
    ("store", "#where-counters-live"),
    ("server.http", "http-api.md"),
    ("server.admin", "http-api.md#an-address-for-operations"),
    ("server.grpc", "envoy.md"),
    ("server.resp", "resp.md"),
    ("server.tls", "running.md#tls"),
    ("server.otlp", "running.md#opentelemetry"),
    ("server.sight", "http-api.md#sight"),
    ("server.sight.alerts", "http-api.md#alerts"),
    ("client_ip", "#client_ip-behind-proxies"),
    ("forward_auth", "forward-auth.md"),
    ("forward_auth.priority_header", "#priorities-keep_for"),
    ("envoy.priority_entry", "envoy.md#the-priority-of-a-request"),
    ("tickets", "algorithms.md#tickets"),
    ("defaults.mode", "#trying-a-limit-out-modes-and-shadow_limit"),
    ("defaults.on_store_error", "stores/README.md#when-the-store-is-gone"),
    ("defaults.durable", "stores/README.md#durable-strict"),
    ("defaults.share", "stores/README.md#several-nodes"),
    ("defaults.headers", "http-api.md#headers"),
    ("defaults.priority_header", "#over-the-limit-mark-and-demote"),
    ("match", "#matching"),
    ("when", "#conditions-when"),
    ("absent", "#the-key-by-and-absent-attributes"),
    ("limit", "#limits"),
    ("shadow_limit", "#trying-a-limit-out-modes-and-shadow_limit"),
    ("canary", "policy-guide.md#try-a-limit-on-a-share-of-keys"),
    ("cost", "#cost"),
    ("on_cost_error", "#costs-that-cannot-be-worked-out"),
    ("charge", "#charging-failures-only"),
    ("mode", "#trying-a-limit-out-modes-and-shadow_limit"),
    ("deadline", "#deadlines"),
    ("over", "#over-the-limit-mark-and-demote"),
    ("algorithm", "algorithms.md"),
    ("rate.by", "#tiers-and-overrides"),
    ("overrides", "#tiers-and-overrides"),
    ("follows", "#a-rate-that-follows-a-number"),
    ("replace", "#changing-limits-while-they-are-in-use"),
    ("keep_for", "#priorities-keep_for"),
    ("shed_at_most", "protection/breakers.md#refusing-a-share"),
    ("settle", "algorithms.md#settling"),
    ("off_when", "#conditions-when"),
    ("store.kind", "stores/README.md"),
    ("store.path", "stores/README.md#which-folder"),
    ("store.after_loss", "stores/engines.md#after-a-loss"),
    ("store.region", "stores/nodes.md#regions"),
    ("store.from", "stores/README.md#moving-counters-to-another-store"),
];

struct Row {
    name: String,
    key: &'static Key,
    required: bool,
    default: Option<String>,
    /// What the key is for, if not for all: algorithms or laws.
    only: String,
}

impl Row {
    fn new(prefix: &str, key: &'static Key, required: bool) -> Self {
        Self { name: format!("{prefix}{}", key.name), key, required, default: None, only: String::new() }
    }

    fn cells(&self) -> [String; 3] {
        let default = self.default.as_deref().or(self.key.default);
        let default = default.map(|default| format!(" ({})", cell(default))).unwrap_or_default();
        let required = if self.required { "required: " } else { "" };
        [
            format!("{}{default}", name(&self.name, SECTIONS)),
            value(&self.key.kind),
            format!("{required}{}{}", self.only, cell(self.key.doc)),
        ]
    }
}

fn within(kind: &Kind) -> Option<&'static Table> {
    match kind {
        Kind::Table(table) => Some(*table),
        Kind::List(kind) | Kind::OneOrMany(kind) | Kind::Map(_, kind) | Kind::Either(_, kind) => within(kind),
        _ => None,
    }
}

fn at(path: &str) -> &'static Table {
    path.split('.').fold(&FILE, |table, name| {
        let key = table.key(name).unwrap_or_else(|| panic!("the file has no {path}"));
        within(&key.kind).unwrap_or_else(|| panic!("{path} holds no keys"))
    })
}

/// Lists the keys of a table, each with those that it holds, unless they are [`APART`] or [`ELSEWHERE`].
fn rows(path: &str, shown: &str, table: &'static Table, into: &mut Vec<Row>) {
    for key in table.keys.iter().filter(|key| !matches!(key.kind, Kind::Unavailable | Kind::Elsewhere(_))) {
        let here = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        let mut row = Row::new(shown, key, table.required.contains(&key.name));
        if path == "policies" && INHERITED.contains(&key.name) {
            row.default = Some(format!("that of defaults.{}", key.name));
        }
        into.push(row);
        let apart = APART.iter().any(|(_, apart)| *apart == here) || ELSEWHERE.contains(&&*here);
        if let Some(inner) = within(&key.kind).filter(|_| !apart) {
            rows(&here, &format!("{shown}{}.", key.name), inner, into);
        }
    }
}

fn rated() -> Vec<Row> {
    let algorithms: Vec<&AlgorithmKeys> = ALGORITHMS.iter().filter(|known| known.has("rate")).collect();
    let mut all = Vec::new();
    rows("policies.limit", "", &LIMIT, &mut all);
    all.retain_mut(|row| {
        let of = row.name.split('.').next().unwrap_or_default();
        let (with, without): (Vec<&AlgorithmKeys>, Vec<_>) =
            algorithms.iter().copied().partition(|known| known.has(of));
        row.required |= !with.is_empty() && with.iter().all(|known| known.needs.contains(&of));
        row.only = match without.len() {
            0 => String::new(),
            few if few < with.len() => format!("not {}: ", words(without.iter().map(|known| known.name))),
            _ => format!("{}: ", words(with.iter().map(|known| known.name))),
        };
        !with.is_empty()
    });
    all
}

/// Lists the keys of a guard that it does not share with `concurrency`.
fn guard(algorithm: &str) -> Vec<Row> {
    let named = |name: &str| ALGORITHMS.iter().find(|known| known.name == name).expect("a guard");
    let algorithm = named(algorithm);
    let shared: &[&str] = if algorithm.name == CONCURRENCY { &[] } else { named(CONCURRENCY).takes };
    let key = |of: &&'static str| LIMIT.key(of).expect("a key of a limit");
    let own = algorithm.takes.iter().filter(|of| !shared.contains(of));
    let rows = own.map(key).map(|key| {
        let mut row = Row::new("", key, algorithm.needs.contains(&key.name));
        match algorithm.name {
            BREAKER => {
                let ours = Profile::named("tidegate");
                let word = |name: &str| ours.and_then(|profile| profile.word(name));
                let first = word(key.name);
                let longest = word("open_at_most").filter(|_| key.name == "open_for");
                row.default = first.map(|first| match longest {
                    Some(longest) => format!("{first}..{longest}"),
                    None => first.to_owned(),
                });
            }
            ADAPTIVE => (row.only, row.default) = of_laws(key.name),
            _ => {}
        }
        row
    });
    rows.collect()
}

fn of_laws(key: &str) -> (String, Option<String>) {
    let laws: Vec<&str> = LawWords::with(key).collect();
    let Some(&first) = laws.first() else { return (String::new(), None) };
    let word = |law: &str| LawWords::named(law).and_then(|law| law.word(key)).unwrap_or("none");
    let alike = laws.iter().all(|&law| word(law) == word(first));
    let each: Vec<String> = laws.iter().map(|&law| format!("{law} {}", word(law))).collect();
    let default = if alike { word(first).to_owned() } else { each.join(", ") };
    (format!("{}: ", words(laws.into_iter())), Some(default))
}

fn words<'w>(words: impl Iterator<Item = &'w str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn value(kind: &Kind) -> String {
    let many = |kind: &Kind| match value(kind) {
        one if matches!(kind, Kind::Word(..)) => format!("list of {one}"),
        one => format!("list: {one}"),
    };
    match kind {
        Kind::Text | Kind::Name | Kind::Problem => "text".to_owned(),
        Kind::Attribute => "attribute".to_owned(),
        Kind::Header => "header".to_owned(),
        Kind::Method => "method".to_owned(),
        Kind::Cost | Kind::Settle => "cost".to_owned(),
        Kind::Usage => "name".to_owned(),
        Kind::Whole(least, most) if least == most => number(*least),
        Kind::Whole(least, most) => format!("{} to {}", number(*least), number(*most)),
        Kind::Rate => "rate".to_owned(),
        Kind::Span => "span".to_owned(),
        Kind::Percent(least, most) => format!("{least}% to {most}%"),
        Kind::Kept => "share, units".to_owned(),
        Kind::Condition => "condition".to_owned(),
        Kind::Source => "number, range, rate".to_owned(),
        Kind::Socket => "address".to_owned(),
        Kind::Network => "network".to_owned(),
        Kind::Zone => "time zone".to_owned(),
        Kind::Path | Kind::Host | Kind::Glob => "pattern".to_owned(),
        Kind::Entry => "entry".to_owned(),
        Kind::Word(of, _) => words(of.iter().copied()),
        Kind::List(of) => many(of),
        Kind::OneOrMany(of) => format!("{}, or a list", value(of)),
        Kind::Map(Kind::Word(keys, _), of) => {
            format!("map of {}: {}", words(keys.iter().copied()), value(of))
        }
        Kind::Map(_, of) => format!("map: {}", value(of)),
        Kind::Table(_) => "map".to_owned(),
        Kind::Either(scalar, other) => format!("{}, {}", value(scalar), value(other)),
        Kind::Read(grammar) => words(grammar.examples.iter().copied()),
        Kind::Unavailable | Kind::Elsewhere(_) => String::new(),
    }
}

fn number(number: u64) -> String {
    if number > 1_000_000 && number.is_power_of_two() {
        return format!("2^{}", number.trailing_zeros());
    }
    let digits = number.to_string();
    let ends = digits.len() % 3;
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && place % 3 == ends {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn the_manual_has_the_keys() {
    let mut made = Vec::new();
    let mut of_file = Vec::new();
    rows("", "", &FILE, &mut of_file);
    made.push(("file", of_file));
    for (marker, path) in APART {
        let mut inner = Vec::new();
        // Keys of a policy are written without what holds them, those of a store with it.
        let shown = if path.starts_with("store") { format!("{path}.") } else { String::new() };
        rows(path, &shown, at(path), &mut inner);
        made.push((marker, inner));
    }
    made.push(("limit", rated()));
    made.extend([CONCURRENCY, ADAPTIVE, BREAKER].map(|algorithm| (algorithm, guard(algorithm))));
    let heads = ["key", "value", "what it does"];
    let made = made.iter().map(|(marker, rows)| {
        let rows: Vec<[String; 3]> = rows.iter().map(Row::cells).collect();
        (format!("keys {marker}"), table(heads, &rows))
    });
    keep_tables(PAGE, &made.collect::<Vec<_>>());
}

#[test]
fn numbers_are_written_for_people() {
    let written = [1, 999, 1000, 65_536, 1_000_000, 1 << 32].map(number);
    assert_eq!(written, ["1", "999", "1,000", "65,536", "1,000,000", "2^32"]);
}
