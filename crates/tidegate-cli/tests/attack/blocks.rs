//! A caller who wants another one blocked, or his own block lifted: over a limit with `over: block`, and under a block for
//! all policies.

use std::io::Write as _;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tidegate_testkit::free_port;

use crate::attack::raw::{Answer, JSON, ask, connect};
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving};
use crate::attack::waiting::{PATIENCE, within};

const OPERATOR: (&str, &str) = ("x-tidegate-token", "0123456789abcdef");
const STRANGER: (&str, &str) = ("x-tidegate-token", "fedcba9876543210");

/// Counters are on disk, and blocks with them.
const FILE: &str = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: nginx }
policies:
  - name: logins
    by: [user.id]
    limit: { algorithm: fixed-window, rate: 2/day }
    over: block 1h
    absent: skip
  - name: per-ip
    by: [client.ip]
    limit: { rate: 1000000/day }
    absent: skip
";

/// Starts a server where strangers may check and settle, and an operator everything.
fn serve(desk: &Desk) -> (Serving, SocketAddr) {
    let tokens = format!("operator check,read,admin,keys {}\nstranger check {}\n", OPERATOR.1, STRANGER.1);
    std::fs::write(desk.path("tokens"), tokens).unwrap();
    let resp = SocketAddr::from(([127, 0, 0, 1], free_port()));
    (desk.serve(&["--tokens-file", "tokens", "--store-path", "counters", "--resp", &resp.to_string()]), resp)
}

fn check(serving: &Serving, attributes: &Value) -> Answer {
    let body = json!({ "attributes": attributes, "ticket": true }).to_string();
    serving.ask("POST", "/v1/check", &[STRANGER, JSON], &body)
}

fn user(serving: &Serving, id: &str) -> u16 {
    check(serving, &json!({ "user.id": id })).status
}

/// Percent-encodes all of a text.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Names that read like another's, or like a part of a key.
const LIKE_ANN: [&str; 14] = [
    "ann ",
    " ann",
    "ANN",
    "ann\0",
    "ann\n",
    "ann\u{200b}",
    "a\u{301}nn",
    "ann, client.ip=203.0.113.9",
    "user.id=ann",
    "ann\",\"x\":\"",
    "..%2fann",
    "an",
    "annn",
    "",
];

#[test]
fn nobody_gets_another_blocked_by_a_name_like_his() {
    let desk = Desk::with(FILE);
    let (mut serving, _) = serve(&desk);
    for name in LIKE_ANN {
        let answers = [0; 3].map(|_| user(&serving, name));
        assert_eq!(answers, [200, 200, 429], "{name:?}");
    }
    let mut seed = Seed::printed("nobody_gets_another_blocked");
    for _ in 0..rounds(100, 5_000) {
        let length = 1 + seed.below(300);
        let name = String::from_utf8_lossy(&seed.bytes(length)).into_owned();
        for _ in 0..3 {
            assert!(matches!(user(&serving, &name), 200 | 429), "{name:?}");
        }
    }
    assert_eq!([0; 3].map(|_| user(&serving, "ann")), [200, 200, 429], "ann had her own two");
    // Each name is its own for the operator too.
    for name in LIKE_ANN.into_iter().filter(|name| !name.is_empty()) {
        let path = format!("/v1/keys/logins?user.id={}", encoded(name));
        let known = serving.ask("GET", &path, &[OPERATOR], "").json();
        assert!(known["block"].is_object(), "{name:?}: {known}");
        let ended = serving.ask("PUT", &path, &[OPERATOR, JSON], "{\"block\": null}").json();
        assert_eq!(ended["unblocked"], true, "{name:?}: {ended}");
    }
    assert_eq!(user(&serving, "ann"), 429, "hers has not ended with theirs");
    serving.is_well_for(OPERATOR);
}

#[test]
fn nobody_lifts_his_block() {
    let desk = Desk::with(FILE);
    let (serving, resp) = serve(&desk);
    let eve = json!({ "user.id": "eve" });
    let passed = check(&serving, &eve).json();
    let ticket = passed["ticket"].as_str().map(str::to_owned);
    assert_eq!([0; 3].map(|_| user(&serving, "eve")), [200, 429, 429]);
    // Not by what was charged before it, given back in any way.
    let ticket = ticket.unwrap_or_default();
    for (path, body) in [
        ("/v1/settle", json!({ "ticket": ticket, "cost": 0 })),
        ("/v1/settle", json!({ "ticket": ticket, "outcome": "undone" })),
        ("/v1/settle", json!({ "ticket": ticket, "refund": "all" })),
        ("/v1/settle", json!({ "ticket": ticket, "status": 200 })),
        ("/v1/peek", json!({ "attributes": eve })),
        ("/v1/check", json!({ "attributes": eve, "cost": 1_000_000 })),
        ("/v1/check", json!({ "attributes": eve, "priority": "critical-plus/0" })),
        ("/v1/check/batch", json!([{ "attributes": eve }])),
    ] {
        serving.ask("POST", path, &[STRANGER, JSON], &body.to_string());
        assert_eq!(user(&serving, "eve"), 429, "{path} {body}");
    }
    // Nor by what only operators may do.
    for (method, path, body) in [
        ("PUT", "/v1/keys/logins?user.id=eve", "{\"block\": null}"),
        ("DELETE", "/v1/keys/logins?user.id=eve", ""),
        ("DELETE", "/v1/keys?policy=logins&user.id=eve", ""),
        ("PUT", "/v1/keys/logins?user.id=ann", "{\"block\": {\"for\": \"1h\"}}"),
        ("PUT", "/v1/keys?user.id=ann", "{\"block\": {\"for\": \"1h\"}}"),
    ] {
        let answer = serving.ask(method, path, &[STRANGER, JSON], body);
        assert!(matches!(answer.status, 401 | 403 | 404 | 405), "{method} {path}: {answer:?}");
    }
    let mut redis = connect(resp);
    let _ =
        redis.write_all(format!("AUTH {}\r\nTG.RESET logins user.id eve\r\nQUIT\r\n", STRANGER.1).as_bytes());
    let mut said = String::new();
    let _ = std::io::Read::read_to_string(&mut redis, &mut said);
    assert!(said.contains("NOPERM"), "{said}");
    assert_eq!((user(&serving, "eve"), user(&serving, "ann")), (429, 200));
    // Nor by a restart that he may have caused: the block is where the counters are.
    drop_after_writing(serving);
    let (serving, _) = serve(&desk);
    assert_eq!((user(&serving, "eve"), user(&serving, "bob")), (429, 200));
    let known = serving.ask("GET", "/v1/keys/logins?user.id=eve", &[OPERATOR], "").json();
    assert_eq!(known["block"]["reason"], "over its limit", "{known}");
}

/// Stops a server, which writes what is on its mind.
fn drop_after_writing(mut serving: Serving) {
    serving.signal("TERM");
    crate::attack::serving::end_of(&mut serving.child);
}

/// A caller who is blocked for all policies is refused however his address is written, and no other is.
#[test]
fn an_address_that_is_blocked_is_refused_in_every_spelling() {
    let desk = Desk::with(FILE);
    let (serving, _) = serve(&desk);
    let block = r#"{"block": {"for": "1h", "reason": "scraper"}}"#;
    for address in ["203.0.113.9", "2001:db8:1:2::1", "198.51.100.0/24"] {
        let path = format!("/v1/keys?client.ip={}", encoded(address));
        assert_eq!(serving.ask("PUT", &path, &[OPERATOR, JSON], block).status, 200, "{address}");
    }
    let asked = |address: &str| check(&serving, &json!({ "client.ip": address, "user.id": address })).status;
    let forwarded = |from: &str| {
        let headers = [
            ("x-tidegate-token", STRANGER.1),
            ("x-original-method", "GET"),
            ("x-original-uri", "/"),
            ("x-original-host", "a.example"),
            ("x-forwarded-for", from),
        ];
        ask(serving.addr, "GET", "/v1/forward-auth", &headers, b"").status
    };
    for refused in
        ["203.0.113.9", "::ffff:203.0.113.9", "64:ff9b::cb00:7109", "2001:db8:1:2:ffff::7", "198.51.100.255"]
    {
        assert_eq!((asked(refused), forwarded(refused)), (403, 403), "{refused}");
        // A caller who puts another address in front does not become that caller.
        assert_eq!(forwarded(&format!("192.0.2.1, {refused}")), 403, "{refused}");
    }
    for passes in ["203.0.113.90", "203.0.113.8", "::ffff:203.0.113.8", "2001:db8:1:3::1", "198.51.101.0"] {
        assert_eq!((asked(passes), forwarded(passes)), (200, 200), "{passes}");
        // And whoever names a blocked one in front of his own address gets nobody blocked and nothing for himself.
        assert_eq!(forwarded(&format!("203.0.113.9, {passes}")), 200, "{passes}");
    }
    // Names that are no addresses, and attributes that nobody reads, block nobody by mistake.
    for odd in
        ["", " ", "0.0.0.0/0x", "203.0.113", "client.ip", "\u{202e}9.311.0.302", "203.0.113.9,203.0.113.8"]
    {
        let path = format!("/v1/keys?client.ip={}", encoded(odd));
        assert_eq!(serving.ask("PUT", &path, &[OPERATOR, JSON], block).status, 400, "{odd:?}");
    }
    for query in ["", "?user.idd=7", "?user.id=7&client.ip=203.0.113.7", "?user.id=7&user.id=8"] {
        let path = format!("/v1/keys{query}");
        assert_eq!(serving.ask("PUT", &path, &[OPERATOR, JSON], block).status, 400, "{query:?}");
    }
    let listed = serving.ask("GET", "/v1/keys", &[OPERATOR], "").json();
    assert_eq!(listed["known"], 3, "{listed}");
}

/// Values are compared as they are, whatever bytes they have, and are shown so that a terminal stays as it is.
#[test]
fn odd_names_are_blocked_and_let_go_as_they_are() {
    let desk = Desk::with(FILE);
    let (serving, _) = serve(&desk);
    let block = r#"{"block": {"for": "1h"}}"#;
    for name in LIKE_ANN.into_iter().filter(|name| !name.trim().is_empty() && name.trim() == *name) {
        let path = format!("/v1/keys?user.id={}", encoded(name));
        let answer = serving.ask("PUT", &path, &[OPERATOR, JSON], block);
        assert_eq!(answer.status, 200, "{name:?}: {answer:?}");
        assert_eq!((user(&serving, name), user(&serving, "bob")), (403, 200), "{name:?}");
        assert_eq!(user(&serving, "ann"), 200, "{name:?}");
        let shown = serving.ask("GET", "/v1/keys?reveal=true", &[OPERATOR], "").body;
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n' || c == '\u{200b}'), "{shown:?}");
        let ended = serving.ask("PUT", &path, &[OPERATOR, JSON], "{\"block\": null}").json();
        assert_eq!(ended["unblocked"], true, "{name:?}");
        for user in ["ann", "bob", name] {
            let path = format!("/v1/keys/logins?user.id={}", encoded(user));
            serving.ask("DELETE", &path, &[OPERATOR], "");
        }
    }
}

/// Whoever reads the log sees who did it, beside what was done.
#[test]
fn each_change_is_told_with_the_name_of_its_token() {
    let file = FILE.to_owned()
        + "switches: { previews: { off_when: cpu above 99% } }
";
    let file = file.replace(
        "policies:",
        "policies:
  - name: bank
    match: { path: /bank }
    limit: { algorithm: breaker, profile: sentinel, consecutive: 3, open_for: 1h, ttl: 1min }",
    );
    let desk = Desk::with(&file);
    let (serving, _) = serve(&desk);
    let block = r#"{"block": {"for": "1h"}}"#;
    let free = r#"{"block": null}"#;
    for (path, body, told) in [
        ("/v1/keys?user.id=eve", block, "a caller is blocked for all policies"),
        ("/v1/keys?user.id=eve", free, "a caller is no longer blocked for all policies"),
        ("/v1/keys/logins?user.id=eve", block, "a key is blocked"),
        ("/v1/keys/logins?user.id=eve", free, "a key is unblocked"),
        ("/v1/switches/previews", r#"{"state": "off"}"#, "a switch is turned by hand"),
        ("/v1/breakers/bank", r#"{"state": "open", "for": "1h"}"#, "the breaker of a key is forced by hand"),
        ("/v1/breakers/bank", r#"{"state": "auto"}"#, "the breaker of a key is let go by hand"),
    ] {
        let answer = serving.ask("PUT", path, &[OPERATOR, JSON], body);
        assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
        let line: Value = serde_json::from_str(&serving.hears_line(told)).unwrap();
        assert_eq!(line["fields"]["token"], "operator", "{line}");
    }
}

/// Blocks by limits are bounded: whoever invents names fills the memory neither with keys nor with blocks.
#[test]
fn invented_names_cost_bounded_memory() {
    let desk = Desk::with(&FILE.replace("policies:", "store: { keys: 10000 }\npolicies:"));
    let (mut serving, _) = serve(&desk);
    let before = serving.resident();
    let batch = |from: usize| {
        let each = (from..from + 100).flat_map(|at| [at; 3]);
        let each: Vec<Value> = each
            .map(|at| json!({ "attributes": { "user.id": format!("made-up-{at}-{}", "x".repeat(100)) } }))
            .collect();
        serving.ask("POST", "/v1/check/batch", &[STRANGER, JSON], &json!(each).to_string()).status
    };
    for round in 0..rounds(30, 3_000) {
        assert_eq!(batch(round * 100), 200);
    }
    within(PATIENCE, "little memory", || serving.resident() < before + (96 << 10));
    assert_eq!(user(&serving, "bob"), 200);
    serving.is_well_for(OPERATOR);
}

impl Serving {
    /// Requires that the server lives and answers an operator.
    fn is_well_for(&mut self, operator: (&str, &str)) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the server ended");
        assert_eq!(self.ask("GET", "/v1/policies", &[operator], "").status, 200);
    }
}
