//! The words of a policy file as data, and files generated from bytes: one generator for the property tests and the
//! fuzzer.
//!
//! The vocabulary is small, so that requests often meet policies. It is full of near misses: capitals, escapes, dots,
//! ports, empty lists.

use serde_json::{Map, Value, json};

/// Choices read from bytes. When the bytes end, the first choice is always taken.
#[derive(Debug)]
pub(crate) struct Choices<'b>(pub(crate) &'b [u8]);

impl Choices<'_> {
    /// Chooses a number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % count
    }

    /// Chooses one of these.
    pub(crate) fn one(&mut self, of: &[&str]) -> String {
        of[self.below(of.len())].to_owned()
    }

    /// Says yes once in `odds`.
    pub(crate) fn rarely(&mut self, odds: usize) -> bool {
        self.below(odds) == odds - 1
    }

    /// Makes up to `most` items.
    pub(crate) fn some<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }
}

/// What a policy asks of a header or an attribute.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// It is present.
    There,
    /// It is missing.
    Missing,
    /// It matches one of these patterns.
    OneOf(Vec<String>),
}

/// A `match`, or its `not`.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatchWords {
    /// Methods.
    pub(crate) method: Vec<String>,
    /// Path patterns.
    pub(crate) path: Vec<String>,
    /// Host patterns.
    pub(crate) host: Vec<String>,
    /// Headers.
    pub(crate) header: Vec<(String, Ask)>,
    /// Attributes.
    pub(crate) attributes: Vec<(String, Ask)>,
    /// The `not` of the match.
    pub(crate) not: Option<Box<MatchWords>>,
}

/// A policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyWords {
    /// The name.
    pub(crate) name: String,
    /// Whether it is switched off.
    pub(crate) off: bool,
    /// Whether it applies to outbound requests.
    pub(crate) outbound: bool,
    /// The match.
    pub(crate) matching: MatchWords,
    /// The key.
    pub(crate) by: Vec<String>,
    /// `skip-if-none`, `charge` or `skip`.
    pub(crate) absent: String,
    /// The deny list.
    pub(crate) deny: Vec<String>,
}

/// A file: its policies and the deny list of the file.
#[derive(Clone, Debug)]
pub(crate) struct FileWords {
    /// The policies.
    pub(crate) policies: Vec<PolicyWords>,
    /// The deny list of the file.
    pub(crate) deny: Vec<String>,
}

const METHODS: [&str; 6] = ["GET", "post", "PUT", "*", "ANY", "GET,PUT"];
const SEGMENTS: [&str; 18] = [
    "a", "b", "*", "**", "?", "a*", "*b", "{a,b}", "a?*b", "%41", "%2F", "%2f", "..", ".", "", "a;b", "é",
    "a\\b",
];
const HOSTS: [&str; 14] = [
    "a.b",
    "*.b",
    "A.b",
    "{a,b}.b",
    "?.b",
    "a.b:80",
    "*",
    "http://a.b",
    "a.b.",
    ".b",
    "::1",
    "[::1]",
    "a.b/c",
    "é.b",
];
const NAMES: [&str; 9] = ["x-a", "X-A", "x-b", "x b", "x-*", "", "request.header.x-a", "x-a\r", "é"];
const ATTRIBUTES: [&str; 16] = [
    "user.id",
    "user.tier",
    "request.header.x-a",
    "request.header.x-b",
    "request.header.X-A",
    "client.ip",
    "client.IP",
    "request.path",
    "request.host",
    "request.method",
    "request.direction",
    "request.url",
    "request.headers.x-a",
    "clientip",
    "client.id",
    "USER.id",
];
const VALUES: [&str; 21] = [
    "a", "b", "A", "*", "a*", "?", "{a,b}", "*a?b*", "GET", "get", "/a", "/a/", "/a/b", "/a*", "/%61", "a.b",
    "A.b", "10.0.0.1", "10.*", "outbound", "inbound",
];

impl Ask {
    fn of(choices: &mut Choices<'_>) -> Self {
        match choices.below(6) {
            0 => Self::There,
            1 => Self::Missing,
            2 => Self::OneOf(choices.some(2, |choices| choices.one(&VALUES))),
            _ => Self::OneOf(vec![choices.one(&VALUES)]),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::There => json!(true),
            Self::Missing => json!(false),
            Self::OneOf(values) => json!(values),
        }
    }
}

/// Returns a path pattern.
fn path(choices: &mut Choices<'_>) -> String {
    let mut path = String::new();
    for _ in 0..=choices.below(4) {
        path.push('/');
        path.push_str(&choices.one(&SEGMENTS));
    }
    match choices.below(24) {
        21 => format!("{path}?q=1"),
        22 => format!("{path}#x"),
        23 => path[1..].to_owned(),
        _ => path,
    }
}

fn asks(choices: &mut Choices<'_>, names: &[&str]) -> Vec<(String, Ask)> {
    let mut asks = choices.some(2, |choices| (choices.one(names), Ask::of(choices)));
    asks.dedup_by(|one, other| one.0 == other.0);
    asks
}

impl MatchWords {
    /// Generates a match. With `tame`, its `not` is a path without wildcards, so that the rest can be decided.
    pub(crate) fn of(choices: &mut Choices<'_>, tame: bool) -> Self {
        let mut made = Self::parts(choices);
        if choices.rarely(3) {
            let not = match tame {
                true => {
                    let path = choices.one(&["/a", "/b", "/a/b", "/**"]);
                    Self { path: vec![path], ..Self::default() }
                }
                false => Self::parts(choices),
            };
            made.not = Some(Box::new(not));
        }
        made
    }

    fn parts(choices: &mut Choices<'_>) -> Self {
        let mut made = Self::default();
        if choices.rarely(4) {
            made.method = choices.some(2, |choices| choices.one(&METHODS));
        }
        if choices.below(4) > 0 {
            made.path = choices.some(2, path);
        }
        if choices.rarely(3) {
            made.host = choices.some(2, |choices| choices.one(&HOSTS));
        }
        if choices.rarely(3) {
            made.header = asks(choices, &NAMES);
        }
        if choices.rarely(3) {
            made.attributes = asks(choices, &ATTRIBUTES);
        }
        made
    }

    fn json(&self) -> Value {
        let mut map = Map::new();
        for (name, list) in [("method", &self.method), ("path", &self.path), ("host", &self.host)] {
            if !list.is_empty() {
                map.insert(name.to_owned(), json!(list));
            }
        }
        for (name, asks) in [("header", &self.header), ("attributes", &self.attributes)] {
            let asks: Map<_, _> = asks.iter().map(|(name, ask)| (name.clone(), ask.json())).collect();
            if !asks.is_empty() {
                map.insert(name.to_owned(), asks.into());
            }
        }
        if let Some(not) = &self.not {
            map.insert("not".to_owned(), not.json());
        }
        map.into()
    }
}

impl FileWords {
    /// Generates a file.
    pub(crate) fn of(choices: &mut Choices<'_>, tame: bool) -> Self {
        let entry = |choices: &mut Choices<'_>| match choices.below(4) {
            0 => choices.one(&["10.0.0.0/24", "10.0.0.1", "::/0", "::ffff:10.0.0.0/120"]),
            _ => format!("{}={}", choices.one(&ATTRIBUTES), choices.one(&VALUES)),
        };
        let count = 1 + choices.below(6);
        let policies = (0..count).map(|at| PolicyWords {
            name: format!("p{at}"),
            off: choices.rarely(16),
            outbound: choices.rarely(8),
            matching: MatchWords::of(choices, tame),
            by: {
                let mut by = choices.some(2, |choices| choices.one(&ATTRIBUTES));
                by.dedup();
                by
            },
            absent: choices.one(&["skip-if-none", "charge", "skip"]),
            deny: if choices.rarely(6) { choices.some(2, entry) } else { Vec::new() },
        });
        let policies = policies.collect();
        Self { policies, deny: if choices.rarely(6) { choices.some(2, entry) } else { Vec::new() } }
    }

    /// Writes the file as JSON, which is valid YAML.
    pub(crate) fn text(&self) -> String {
        let policies = self.policies.iter().map(|policy| {
            json!({
                "name": policy.name,
                "mode": if policy.off { "off" } else { "enforce" },
                "direction": if policy.outbound { "outbound" } else { "inbound" },
                "match": policy.matching.json(),
                "by": policy.by,
                "absent": policy.absent,
                "access": { "deny": policy.deny },
                "limit": { "rate": "100/s" },
            })
        });
        let policies: Vec<_> = policies.collect();
        json!({
            "version": 1,
            "client_ip": { "trusted_proxies": [] },
            "access": { "deny": self.deny },
            "policies": policies,
        })
        .to_string()
    }
}

/// Generates the attributes of a request, with each name once.
pub(crate) fn request(choices: &mut Choices<'_>) -> Vec<(String, String)> {
    const PATHS: [&str; 20] = [
        "/a",
        "/b",
        "/a/b",
        "/",
        "",
        "a",
        "//a",
        "/./a",
        "/a/../b",
        "/%61",
        "/%2561",
        "/a%2fb",
        "/a;x=1/b",
        "/a\\b",
        "/a?b=/b",
        "/a/b/a/b/a",
        "/A",
        "/%c3%a9",
        "/%ff",
        "/a%2F..%2Fb",
    ];
    const HOSTS: [&str; 8] = ["a.b", "A.B", "a.b:80", "x.b.", "b", "[::1]:80", "::1", "a.b.c"];
    let mut pairs = Vec::new();
    let mut add = |name: &str, value: String| pairs.push((name.to_owned(), value));
    if choices.below(8) > 0 {
        let path = match choices.below(3) {
            0 => choices.one(&PATHS),
            1 => format!("{}{}", choices.one(&PATHS), choices.one(&PATHS)),
            _ => format!("{}{}{}", choices.one(&PATHS), choices.one(&PATHS), choices.one(&PATHS)),
        };
        add("request.path", path);
    }
    if choices.below(4) > 0 {
        add("request.method", choices.one(&["GET", "POST", "post", "PUT", "get"]));
    }
    if choices.below(4) > 0 {
        add("request.host", choices.one(&HOSTS));
    }
    if choices.below(4) > 0 {
        add("client.ip", choices.one(&["10.0.0.1", "10.0.1.1", "::1", "2001:db8::1", "none"]));
    }
    if choices.rarely(6) {
        add("request.direction", choices.one(&["outbound", "inbound", "a"]));
    }
    for name in ["user.id", "user.tier", "request.header.x-a", "request.header.x-b", "client.id", "USER.id"] {
        if choices.rarely(3) {
            add(name, choices.one(&["a", "b", "", "A", "xaéb", "aab", "*"]));
        }
    }
    pairs
}
