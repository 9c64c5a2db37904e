//! What strangers are told, and what the log tells operators.

use crate::attack::forward_auth::{ask, served};
use crate::attack::proxy::Proxy;
use crate::attack::serving::Desk;

const EXPERIMENT: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: per-ip
    match: { path: /api/** }
    by: [client.ip]
    limit: { rate: 1/day }
    shadow_limit: { rate: 1/day }
  - name: experiment
    mode: shadow
    limit: { rate: 1/day }
  - name: everyone
    limit: { rate: 777/day }
";

/// Caddy passes a refusal's body to the refused caller, so it must not mention experiments in shadow mode or the
/// limits of others.
#[test]
fn a_stranger_is_told_what_refused_him_and_nothing_of_the_others() {
    let desk = Desk::with(EXPERIMENT);
    let mut serving = desk.serve(&["--forward-auth", "caddy"]);
    let original = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/api/thing"),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
        ("authorization", "Bearer 0123456789abcdef"),
        ("x-tidegate-token", "0123456789abcdef"),
    ];
    let mut refusals = Vec::new();
    serving.ask("GET", "/v1/forward-auth", &original, "");
    refusals.push(serving.ask("GET", "/v1/forward-auth?verbose&reveal=true", &original, ""));
    if let Some(caddy) = Proxy::caddy(serving.addr) {
        assert_eq!(served(caddy.addr, "/api/thing", &[]), 200);
        let dressed: [&[u8]; 2] = [b"Authorization: Bearer 0123456789abcdef", b"Accept: application/json"];
        refusals.push(ask(caddy.addr, b"GET", b"/api/thing?verbose", &dressed).unwrap());
    }
    for refusal in refusals {
        assert_eq!(refusal.status, 429, "{refusal:?}");
        assert!(refusal.body.contains("\"violated-policies\":[\"per-ip\"]"), "{refusal:?}");
        for secret in ["shadow", "experiment", "everyone", "777", "203.0.113.9", "remaining"] {
            assert!(!refusal.body.contains(secret), "{secret}: {refusal:?}");
        }
    }
    serving.is_well();
}

/// Callers behind an untrusted proxy share one limit; the log must say so.
#[test]
fn a_proxy_that_is_not_trusted_is_named_in_the_log() {
    let file = EXPERIMENT.replace("[127.0.0.0/8]", "[]");
    let desk = Desk::with(&file);
    let mut serving = desk.serve(&["--forward-auth", "caddy"]);
    let from = |client: &str| {
        let headers = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/api/thing"),
            ("x-forwarded-host", "example.org"),
            ("x-forwarded-for", client),
        ];
        serving.ask("GET", "/v1/forward-auth", &headers, "").status
    };
    assert_eq!([from("203.0.113.9"), from("203.0.113.10")], [200, 429], "one key");
    let line = serving.hears("behind 127.0.0.1 all callers share one key of each policy by client.ip");
    let advised = "client_ip: { trusted_proxies: ['127.0.0.1'] }";
    assert!(line.contains(advised), "{line}");
    std::fs::write(desk.path("p.yaml"), file.replace("client_ip: { trusted_proxies: [] }", advised)).unwrap();
    serving.hears("configuration reloaded");
    assert_eq!([from("203.0.113.11"), from("203.0.113.12")], [200, 200], "the line helps");
    serving.is_well();
}

/// Keys are texts of strangers, and operators read them with `curl` on a terminal.
#[test]
fn no_answer_to_an_operator_has_a_character_that_a_terminal_acts_on() {
    const HOSTILE: &str = "203.0.113.9\u{202e}\u{1b}[2J\u{200b}\u{2066}";
    let desk = Desk::with(&EXPERIMENT.replace("[client.ip]", "[user.id]"));
    let mut serving = desk.serve(&[]);
    let request = serde_json::json!({ "user.id": HOSTILE, "request.path": "/api/thing" });
    let check = serde_json::json!({ "attributes": request });
    let post = |path: &str, body: &serde_json::Value| {
        serving.ask("POST", path, &[("content-type", "application/json")], &body.to_string())
    };
    post("/v1/check", &check);
    assert_eq!(post("/v1/check", &check).status, 429);
    for answer in [
        serving.get("/v1/keys/top?reveal=true"),
        serving.get("/v1/keys/per-ip?reveal=true"),
        post("/v1/explain?reveal=true", &check),
        post("/v1/dry-run?reveal=true", &serde_json::json!({ "check": check })),
    ] {
        assert_eq!(answer.status, 200, "{answer:?}");
        // Regression: the characters that reverse text were written as they are.
        let drawn = |char: char| {
            !char.is_control()
                && !matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(answer.body.chars().all(drawn), "{:?}", answer.body);
        assert!(
            answer.json().to_string().contains(HOSTILE.split('\u{1b}').next().unwrap()),
            "the value is the same"
        );
    }
    serving.is_well();
}

/// A problem of the proxy is logged once, because each request would cause the same line. Regression: a caller could use
/// that line up by an address of its own writing, and the problem of the proxy was never logged.
#[test]
fn no_caller_uses_up_the_line_that_the_log_has_for_the_proxy() {
    let desk = Desk::with(EXPERIMENT);
    let mut serving = desk.serve(&["--forward-auth", "caddy"]);
    let asked = |more: &[(&str, &str)]| {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/api/thing")];
        serving.ask("GET", "/v1/forward-auth", &[&headers[..], more].concat(), "").status
    };
    let host = ("x-forwarded-host", "example.org");
    assert_eq!(asked(&[host, ("x-forwarded-for", "written by the caller, 127.0.0.1")]), 400);
    assert_eq!(asked(&[("x-forwarded-host", "not a host"), ("x-forwarded-for", "203.0.113.9")]), 400);
    assert_eq!(asked(&[("x-forwarded-for", "203.0.113.9")]), 400);
    let line = serving.hears("sub-requests of a proxy are refused");
    assert!(line.contains("the proxy sent no x-forwarded-host"), "{line}");
    serving.is_well();
}
