//! A caller tries to open breakers of other callers, to keep them from opening, and to force their states, and
//! invents keys without end.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::attack::raw::{Answer, JSON, ask};
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving};

const TOKEN: &str = "0123456789abcdef";

const FILE: &str = "version: 1
policies:
  - name: upstreams
    by: [upstream]
    limit: { algorithm: breaker, profile: sentinel, consecutive: 3, open_for: 1h, ttl: 1min }
  - name: per-user
    by: [user.id]
    limit: { rate: 1000/s }
  - name: previews
    when: switch previews off
    limit: { rate: 1000000/s }
";

fn post(addr: SocketAddr, path: &str, body: &Value) -> Answer {
    ask(addr, "POST", path, &[JSON], body.to_string().as_bytes())
}

fn check(serving: &Serving, upstream: &str) -> Answer {
    post(serving.addr, "/v1/check", &json!({ "attributes": { "upstream": upstream } }))
}

fn ticket(serving: &Serving, upstream: &str) -> String {
    let answer = check(serving, upstream);
    answer.json()["ticket"].as_str().unwrap_or_else(|| panic!("no ticket: {answer:?}")).to_owned()
}

fn report(serving: &Serving, ticket: &str) -> Answer {
    post(serving.addr, "/v1/settle", &json!({ "ticket": ticket, "status": 500 }))
}

/// Tries to report failures without having been let through, with tickets that are forged, cut, altered, reused, or
/// of other keys.
#[test]
fn only_a_ticket_says_that_a_call_failed_and_says_it_once() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let mut seed = Seed::printed("breakers");
    let own = ticket(&serving, "shared");
    for _ in 0..rounds(200, 5000) {
        let mut forged = own.clone().into_bytes();
        let at = seed.below(forged.len());
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        if seed.below(4) == 0 {
            forged.truncate(at);
        }
        let refused = report(&serving, std::str::from_utf8(&forged).unwrap());
        // The last character of a ticket may have unused bits. A change there leaves the same ticket, which counts
        // once.
        assert!(matches!(refused.status, 200 | 400 | 409 | 410), "{refused:?}");
    }
    for _ in 0..20 {
        let again = report(&serving, &own);
        assert!(matches!(again.status, 200 | 409), "{again:?}");
    }
    let without = post(serving.addr, "/v1/settle", &json!({ "status": 500, "upstream": "shared" }));
    assert_eq!(without.status, 400);
    assert_eq!(check(&serving, "shared").status, 200, "one failure of three");
    for _ in 0..3 {
        let failed = ticket(&serving, "mine");
        assert_eq!(report(&serving, &failed).status, 200);
    }
    assert_eq!(check(&serving, "mine").status, 503);
    assert_eq!(check(&serving, "shared").status, 200, "what one key did says nothing of another");
    serving.is_well();
}

#[test]
fn nobody_forces_a_breaker_without_the_token_or_from_a_web_page() {
    let desk = Desk::with(FILE);
    std::fs::write(desk.path("token"), TOKEN).unwrap();
    let (locked, mut open) = (desk.serve(&["--token-file", "token"]), desk.serve(&[]));
    let body = br#"{"state": "open"}"#;
    let path = "/v1/breakers/upstreams?upstream=shared";
    for (method, path) in [("GET", "/v1/breakers"), ("GET", path), ("PUT", path)] {
        assert_eq!(ask(locked.addr, method, path, &[JSON], body).status, 401, "{method}");
        let wrong = [JSON, ("x-tidegate-token", "0123456789abcdeg")];
        assert_eq!(ask(locked.addr, method, path, &wrong, body).status, 401, "{method}");
    }
    assert_eq!(ask(locked.addr, "PUT", path, &[JSON, ("x-tidegate-token", TOKEN)], body).status, 200);
    let page = [JSON, ("origin", "https://evil.example")];
    assert_eq!(ask(open.addr, "PUT", path, &page, body).status, 403);
    assert_eq!(check(&open, "shared").status, 200);
    open.is_well();
}

/// Each invented key opens a breaker of its own: the list must stay short, and breakers opened by others must stay
/// open.
#[test]
fn invented_keys_push_no_breaker_shut_and_make_no_list_long() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    for _ in 0..3 {
        let failed = ticket(&serving, "ill");
        report(&serving, &failed);
    }
    assert_eq!(check(&serving, "ill").status, 503);
    for at in 0..rounds(1100, 20_000) {
        for _ in 0..3 {
            let failed = ticket(&serving, &format!("invented {at}"));
            report(&serving, &failed);
        }
    }
    assert_eq!(check(&serving, "ill").status, 503);
    let listed = serving.get("/v1/breakers").json();
    assert!(listed["breakers"].as_array().unwrap().len() <= 1024);
    let metrics = serving.get("/metrics");
    assert_eq!(
        metrics.body.lines().filter(|line| line.starts_with("tidegate_breaker_state{")).count(),
        8,
        "one for each state"
    );
    serving.is_well();
}

/// Reasons are shown on terminals, in logs and in answers.
#[test]
fn a_reason_breaks_no_line_and_no_bound() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let path = "/v1/breakers/upstreams?upstream=a";
    for reason in [
        "\u{1b}[2J",
        "a\r\nb",
        "\0",
        &"x".repeat(256),
        &"\u{85}".repeat(3),
        // Regression: these were kept, and shown as they are in `/v1/breakers` and in refusals.
        "upgrade \u{202e}dekcatta",
        "\u{2066}open",
        "up\u{200b}grade",
        "\u{feff}",
    ] {
        let bodies = [
            (path, json!({ "state": "open", "reason": reason })),
            ("/v1/keys/per-user?user.id=a", json!({ "block": { "for": "1min", "reason": reason } })),
            ("/v1/switches/previews", json!({ "state": "off", "reason": reason })),
        ];
        for (path, body) in bodies {
            let answer = ask(serving.addr, "PUT", path, &[JSON], body.to_string().as_bytes());
            assert_eq!(answer.status, 400, "{path}: {reason:?}");
            assert_eq!(answer.json()["field"], "reason", "{path}: {reason:?}");
        }
    }
    for lasts in ["-5s", "1e300d", "99999999999999999999s", "5", "", "0ns", "31d"] {
        let body = json!({ "state": "open", "for": lasts }).to_string();
        assert_eq!(ask(serving.addr, "PUT", path, &[JSON], body.as_bytes()).status, 400, "{lasts:?}");
    }
    assert_eq!(check(&serving, "a").status, 200);
    serving.is_well();
}
