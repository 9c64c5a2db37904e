//! A client that sends valid and invalid requests for every operation of the document.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderMap, Method};
use serde_json::{Value, json};
use tidegate::clock::ManualClock;

use crate::openapi::document::{Document, Operation};
use crate::openapi::made::{Seeded, odd, of_schema, spoil};
use crate::running::wire::{read_until, rest, sent};
use crate::running::{Answer, send};

const NAMES: [&str; 17] = [
    "per-ip",
    "top",
    "soft",
    "login",
    "work",
    "payments",
    "payments",
    "upstreams",
    "tokens",
    "busy",
    "trial",
    "queue-length",
    "queue-length",
    "per-pi",
    "a%2Fb",
    "%FF",
    "",
];
/// Names that the file does not use: policies put under them are the API's.
const PUT: [&str; 4] = ["api-1", "api-1", "api-1", "a%2Fb"];
const PATHS: [&str; 6] = ["/", "/login", "/work", "/pay", "/llm", "/tea"];
const ADDRESSES: [&str; 5] = ["203.0.113.9", "203.0.113.9", "203.0.113.8", "2001:db8::1", "198.51.100.7"];
/// Statuses that must come at least once in the whole run; otherwise the requests test too little.
const STATUSES: [u16; 14] = [200, 201, 304, 400, 403, 404, 405, 409, 412, 418, 422, 429, 503, 413];

/// One run over all operations.
pub(crate) struct Fuzzer<'d> {
    addr: SocketAddr,
    clock: ManualClock,
    document: &'d Document,
    seed: u64,
    seeded: Seeded,
    tickets: Vec<String>,
    refused: Vec<String>,
    tags: Vec<String>,
    seen: Seen,
}

/// What all runs have seen so far.
#[derive(Default)]
pub(crate) struct Seen {
    good: BTreeSet<String>,
    statuses: BTreeMap<u16, u32>,
}

impl Seen {
    /// Checks that the runs tested enough: every operation had a success, and many statuses came.
    pub(crate) fn is_enough(&self, document: &Document) {
        let names = document.operations.iter().map(|one| format!("{} {}", one.method, one.path));
        // Counters are in memory here; the command line's tests copy some on disk.
        let names = names.filter(|name| name != "POST /v1/backup");
        let missing: Vec<String> = names.filter(|name| !self.good.contains(name)).collect();
        assert!(missing.is_empty(), "never answered well: {missing:?}");
        let missing: Vec<u16> = STATUSES.into_iter().filter(|one| !self.statuses.contains_key(one)).collect();
        assert!(missing.is_empty(), "never answered with {missing:?}: {:?}", self.statuses);
    }
}

struct Made {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Value>,
    text: String,
}

impl<'d> Fuzzer<'d> {
    pub(crate) fn new(
        addr: SocketAddr,
        clock: ManualClock,
        document: &'d Document,
        seed: u64,
        seen: Seen,
    ) -> Self {
        let seeded = Seeded(seed);
        let (tickets, refused, tags) = (Vec::new(), Vec::new(), Vec::new());
        Self { addr, clock, document, seed, seeded, tickets, refused, tags, seen }
    }

    /// Makes one request for an operation: a valid one in the first rounds, later often an invalid one.
    pub(crate) async fn ask(&mut self, operation: &Operation, round: usize) {
        let well = round < 3 || self.seeded.percent(30);
        self.check().await;
        if self.seeded.percent(10) {
            self.clock.advance(Duration::from_secs(self.seeded.below(9) as u64));
        }
        let made = self.made(operation, well);
        let answer = self.sent(&made).await;
        // `/v1/keys/top` is not the list of keys of a policy named `top`.
        let path = made.path.split('?').next().unwrap_or_default();
        let named = |one: &&Operation| one.method == made.method && one.path == path;
        let operation = self.document.operations.iter().find(named).unwrap_or(operation);
        self.judge(operation, &made, &answer);
        if self.seeded.percent(10) {
            self.ask_another_method(operation, &made).await;
        }
    }

    /// Ends the run, and returns what was seen.
    pub(crate) fn seen(self) -> Seen {
        self.seen
    }

    async fn sent(&self, made: &Made) -> Answer {
        let headers: Vec<(&str, &str)> =
            made.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let is_stream = ["/v1/events", "/v1/live"].iter().any(|path| made.path.starts_with(path));
        if made.method == Method::GET && is_stream {
            return self.listened(&made.path).await;
        }
        send(self.addr, made.method.clone(), &made.path, &headers, &made.text).await
    }

    /// Listens until there is evidence of a stream.
    async fn listened(&self, path: &str) -> Answer {
        let asked = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut stream = sent(self.addr, asked.as_bytes()).await;
        let mut text = read_until(&mut stream, "\r\n\r\n").await;
        let status: u16 = text["HTTP/1.1 ".len()..][..3].parse().unwrap();
        if status != 200 {
            text += &rest(&mut stream).await;
        }
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in head.lines().skip(1).map(|line| line.split_once(": ").unwrap()) {
            headers.insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        Answer { status: status.try_into().unwrap(), headers, text: body.to_owned() }
    }

    async fn ask_another_method(&mut self, operation: &Operation, made: &Made) {
        let methods =
            [Method::GET, Method::PUT, Method::POST, Method::DELETE, Method::PATCH, Method::OPTIONS];
        let method = self.seeded.one(&methods).clone();
        // A path without its name, or with a policy named `top`, may belong to another operation.
        let known = |one: &&Operation| {
            let starts = one.path.strip_suffix("{name}").is_some_and(|start| made.path.starts_with(start));
            one.method == method && (one.path == operation.path || starts)
        };
        if self.document.operations.iter().find(known).is_some() {
            return;
        }
        let answer = send(self.addr, method.clone(), &made.path, &[], "").await;
        let told = format!("TIDEGATE_OPENAPI_SEED={}: {method} {}", self.seed, made.path);
        self.document.is_problem(&answer).unwrap_or_else(|fault| panic!("{told}\nanswered {fault}"));
        assert_eq!(answer.status.as_u16(), 405, "{told}: {answer:?}");
        assert!(!answer.header("allow").is_empty(), "{told}: {answer:?}");
        *self.seen.statuses.entry(405).or_default() += 1;
    }

    /// Makes checks, so that limits fill, and so that there are tickets and ids of refusals.
    async fn check(&mut self) {
        let operation = self.document.operation("POST", "/v1/check");
        let body = json!({ "attributes": self.attributes(), "ticket": true });
        let (method, path, text) = (Method::POST, operation.path.clone(), body.to_string());
        let made = Made { method, path, headers: Vec::new(), body: Some(body), text };
        let answer = self.sent(&made).await;
        self.judge(operation, &made, &answer);
    }

    /// Compares an answer with the document.
    fn judge(&mut self, operation: &Operation, made: &Made, answer: &Answer) {
        let told = format!(
            "TIDEGATE_OPENAPI_SEED={}: {} {} {:?} {:.2000}",
            self.seed, made.method, made.path, made.headers, made.text
        );
        self.document.holds(operation, answer).unwrap_or_else(|fault| panic!("{told}\nanswered {fault}"));
        let by_id = made.path.contains("id=");
        if let Some(body) = made.body.as_ref().filter(|_| answer.status.is_success() && !by_id) {
            assert_ne!(
                operation.accepts(body),
                Some(false),
                "{told}\nis taken, and is not as the document has it"
            );
        }
        *self.seen.statuses.entry(answer.status.as_u16()).or_default() += 1;
        if answer.status.is_success() {
            self.seen.good.insert(format!("{} {}", operation.method, operation.path));
        }
        self.learn(answer);
    }

    /// Stores what later requests need: tickets, ids of refusals, tags.
    fn learn(&mut self, answer: &Answer) {
        self.tags.extend(answer.headers.get("etag").map(|tag| tag.to_str().unwrap().to_owned()));
        let Ok(value) = serde_json::from_str::<Value>(&answer.text) else { return };
        self.tickets.extend(value["ticket"].as_str().map(str::to_owned));
        if value["decision"] == "denied" {
            self.refused.extend(value["decision_id"].as_str().map(str::to_owned));
        }
    }

    fn made(&mut self, operation: &Operation, well: bool) -> Made {
        let mut path = self.path(operation, well);
        let query = self.query(operation, well);
        if !query.is_empty() {
            path = format!("{path}?{query}");
        }
        let headers = self.headers(operation, well);
        let (body, text) = self.body(operation, well);
        Made { method: operation.method.clone(), path, headers, body, text }
    }

    fn path(&mut self, operation: &Operation, well: bool) -> String {
        let name = match operation.path.split('/').nth(2) {
            Some("policies") if operation.method != Method::GET && self.seeded.percent(85) => {
                *self.seeded.one(&PUT)
            }
            Some("breakers") if well => *self.seeded.one(&["payments", "upstreams"]),
            Some("signals") if well => "queue-length",
            Some("switches") if well => "previews",
            Some("canaries") if well => "per-ip",
            _ if self.seeded.percent(3) => &"x".repeat(300).leak()[..],
            _ => *self.seeded.one(&NAMES[..if well { 5 } else { NAMES.len() }]),
        };
        operation.path.replace("{name}", name)
    }

    fn query(&mut self, operation: &Operation, well: bool) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for parameter in operation.parameters.iter().filter(|parameter| parameter.place == "query") {
            let name = parameter.name.as_str();
            if name == "key" || name == "caller" {
                // A GET without a key lists; the other methods need the key.
                if operation.method == Method::GET && self.seeded.percent(50) {
                    continue;
                }
                let by = if operation.path.contains("breakers") { "user.id" } else { "client.ip" };
                let by = if self.seeded.percent(if well { 30 } else { 60 }) { "" } else { by };
                if !by.is_empty() {
                    let address = *self.seeded.one(&ADDRESSES);
                    query.append_pair(by, address);
                }
                continue;
            }
            let wanted = name == "id" && operation.method == Method::GET;
            if !self.seeded.percent(if wanted { 90 } else { 30 }) {
                continue;
            }
            let value = match name {
                "id" if !self.refused.is_empty() => json!(self.seeded.one(&self.refused)),
                "policy" => json!(self.seeded.one(&NAMES)),
                _ if well => of_schema(self.document, &parameter.schema, &mut self.seeded),
                _ => odd(&mut self.seeded),
            };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            query.append_pair(name, &text);
            if !well && self.seeded.percent(5) {
                query.append_pair(name, &text);
            }
        }
        if !well && self.seeded.percent(10) {
            query.append_pair("unknown", "1");
        }
        query.finish()
    }

    fn headers(&mut self, operation: &Operation, well: bool) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        for parameter in operation.parameters.iter().filter(|parameter| parameter.place == "header") {
            let name = parameter.name.as_str();
            let of_proxy = name.starts_with("x-original");
            if !self.seeded.percent(if of_proxy {
                95
            } else if well {
                10
            } else {
                25
            }) {
                continue;
            }
            let value = match name {
                "x-original-method" => "GET".to_owned(),
                "x-original-uri" => (*self.seeded.one(&PATHS)).to_owned(),
                "x-original-host" => "example.org".to_owned(),
                _ if self.tags.is_empty() || self.seeded.percent(30) => "*".to_owned(),
                _ => self.seeded.one(&self.tags).clone(),
            };
            let odd = !well && self.seeded.percent(10);
            headers.push((name.to_owned(), if odd { "\"x".to_owned() } else { value }));
            if of_proxy && name.ends_with("host") {
                headers.push(("x-forwarded-for".to_owned(), (*self.seeded.one(&ADDRESSES)).to_owned()));
            }
        }
        headers
    }

    fn attributes(&mut self) -> Value {
        json!({
            "client.ip": self.seeded.one(&ADDRESSES),
            "request.path": self.seeded.one(&PATHS),
            "user.id": self.seeded.below(3),
        })
    }

    /// Makes a body, and its text, which need not be JSON.
    fn body(&mut self, operation: &Operation, well: bool) -> (Option<Value>, String) {
        if operation.examples.is_empty() {
            return (None, String::new());
        }
        let mut body = match &operation.body {
            Some(schema) if self.seeded.percent(30) => of_schema(self.document, schema, &mut self.seeded),
            _ => self.seeded.one(&operation.examples).clone(),
        };
        self.fill_in(&mut body);
        if !well && self.seeded.percent(70) {
            spoil(&mut body, &mut self.seeded);
        }
        let mut text = match &body {
            // YAML is sent as it is.
            Value::String(text) if operation.path.contains("policies") => text.clone(),
            body => body.to_string(),
        };
        if !well && self.seeded.percent(10) {
            let end =
                text.char_indices().nth(self.seeded.below(text.chars().count())).map_or(0, |(at, _)| at);
            text.truncate(end);
            return (None, text);
        }
        if !well && self.seeded.percent(2) {
            text.push_str(&" ".repeat(2 << 20));
        }
        (Some(body), text)
    }

    /// Fills in what the server has answered, and attributes that policies use.
    fn fill_in(&mut self, body: &mut Value) {
        match body {
            Value::Object(object) => {
                for (name, value) in object {
                    match name.as_str() {
                        "ticket" if value.is_string() && !self.tickets.is_empty() => {
                            let newest = self.tickets.len() - 1;
                            let at =
                                if self.seeded.percent(60) { newest } else { self.seeded.below(newest + 1) };
                            *value = json!(self.tickets[at]);
                        }
                        "attributes" if value.get("client.ip").is_some() => *value = self.attributes(),
                        _ => self.fill_in(value),
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.fill_in(value)),
            _ => {}
        }
    }
}
