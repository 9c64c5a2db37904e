//! What an operator is told of requests that are answered, but not as they were meant: names that no policy reads beside
//! a policy about everybody, policies that nothing reaches, values that are none, and sub-requests at a wrong place.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::{Answer, Running, send, start, start_with};
use http::{Method, StatusCode};
use tidegate_server::Token;

/// A policy about everybody, as in the manual's first example, beside others.
const WITH_ALL: &str = "
version: 1
policies:
  - name: everyone
    limit: { rate: 5000/s }
  - name: per-ip
    by: [client.ip]
    limit: { rate: 3/min }
  - name: per-user
    by: [client.ip, user.id]
    limit: { rate: 3/min }
  - name: per-address
    by: [remote_addr]
    limit: { rate: 3/min }
";

async fn check(server: &Running, attributes: &str) -> Answer {
    server.post("/v1/check", &format!("{{\"attributes\": {{{attributes}}}}}")).await
}

async fn verbose(server: &Running) -> String {
    server.get("/readyz?verbose").await.text
}

#[tokio::test]
async fn a_policy_about_everybody_does_not_hide_names_that_no_policy_reads() {
    let server = start(WITH_ALL).await;
    assert!(verbose(&server).await.contains("\n[+] no request has reached everyone, per-ip, per-user"));
    check(&server, r#""ip": "203.0.113.9""#).await;
    let told = verbose(&server).await;
    assert!(!told.contains("limited by no policy"), "{told}");
    assert!(told.contains("\n[!] requests that may be meant otherwise, since 2027"), "{told}");
    assert!(
        told.contains("      1 x other policies alone are about HTTP requests with the attributes ip; no policy reads the attribute ip; did you mean client.ip?\n"),
        "{told}"
    );
    for attributes in [r#""client.ip": "203.0.113.9", "userId": "bob""#; 2] {
        check(&server, attributes).await;
    }
    let told = verbose(&server).await;
    assert!(told.contains("2 x other policies alone are about HTTP requests with the attributes client.ip, userId; no policy reads the attribute userId; did you mean user.id?"), "{told}");
    assert!(told.contains("\n[!] no request has reached per-address since 2027-01-15T12:00:00.000Z, of 3 in all\n      per-address needs remote_addr, which no request was seen to have; requests had client.ip\n"), "{told}");
    // Attributes that resemble none are told, and are no mistake; those that policies read are not told.
    let server = start(WITH_ALL.split("  - name: per-address").next().unwrap()).await;
    check(&server, r#""client.ip": "203.0.113.9", "user.id": "bob", "weather": "fine""#).await;
    check(&server, r#""client.ip": "203.0.113.9", "user.id": "bob", "request.header.accept": "*/*""#).await;
    let told = verbose(&server).await;
    assert!(told.contains("\n[+] requests that may be meant otherwise"), "{told}");
    assert!(told.contains("no policy reads the attribute weather\n") && !told.contains("[!]"), "{told}");
}

#[tokio::test]
async fn a_policy_that_a_hundred_requests_did_not_reach_is_marked() {
    let server = start(
        "
version: 1
policies:
  - name: everyone
    limit: { rate: 5000/s }
  - name: admin
    match: { path: /admn/** }
    limit: { rate: 3/min }
",
    )
    .await;
    let ask = async || check(&server, r#""request.path": "/admin/x""#).await.status;
    for _ in 0..99 {
        assert_eq!(ask().await, StatusCode::OK);
    }
    assert!(verbose(&server).await.contains("\n[+] no request has reached admin since"));
    ask().await;
    let told = verbose(&server).await;
    assert!(
        told.contains("\n[!] no request has reached admin since 2027-01-15T12:00:00.000Z, of 100 in all\n"),
        "{told}"
    );
}

#[tokio::test]
async fn a_value_that_its_attribute_cannot_have_is_refused() {
    let server = start(WITH_ALL).await;
    for (attribute, value, says) in [
        (
            "client.ip",
            "9.9.9.9, 10.0.0.1",
            "client.ip is not an address: \"9.9.9.9, 10.0.0.1\"; send the last address alone",
        ),
        ("client.ip", "203.0.113.066", "client.ip is not an address"),
        ("client.ip", "", "client.ip is not an address: \"\""),
        (
            "request.path",
            "http://ex.org/api/x",
            "request.path is a URL: \"http://ex.org/api/x\"; send /api/x",
        ),
        (
            "request.path",
            "GET /api/x HTTP/1.1",
            "request.path is a request line: \"GET /api/x HTTP/1.1\"; send /api/x",
        ),
    ] {
        let body = format!("{{\"attributes\": {{\"{attribute}\": \"{value}\"}}}}");
        for (path, body) in [
            ("/v1/check", body.clone()),
            ("/v1/peek", body.clone()),
            ("/v1/explain", body.clone()),
            ("/v1/check/batch", format!("[{body}]")),
            ("/v1/dry-run", format!("{{\"check\": {body}}}")),
        ] {
            let answer = server.post(path, &body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body}");
            assert!(answer.detail().contains(says), "{path}: {}", answer.detail());
        }
    }
}

#[tokio::test]
async fn a_number_that_nobody_reports_is_told() {
    let server = start(
        "
version: 1
policies:
  - name: sig
    when: signal queue-length above 100
    limit: { rate: 1/h }
  - name: slow
    when: latency above 200ms
    limit: { rate: 1/h }
  - name: all
    limit: { rate: 100/s }
",
    )
    .await;
    let signal = "[!] signal queue-length was never reported; policy sig is not in force; POST /v1/signals/queue-length\n";
    let told = verbose(&server).await;
    assert!(told.contains(signal) && !told.contains("latency"), "{told}");
    check(&server, "").await;
    let told = verbose(&server).await;
    assert!(
        told.contains(
            "[!] latency was never measured; policy slow is not in force; it is measured by tickets"
        ),
        "{told}"
    );
    server.post("/v1/signals/queue-length", r#"{"value": 3}"#).await;
    server.clock.advance(Duration::from_secs(1));
    let told = verbose(&server).await;
    assert!(!told.contains("queue-length"), "{told}");
}

/// nginx takes only 401 and 403 for a refusal: a sub-request that no door takes must be neither.
#[tokio::test]
async fn a_sub_request_at_a_wrong_path_is_sent_to_the_right_one() {
    let server = start(WITH_ALL).await;
    let headers = [("host", "tidegate_backend"), ("x-original-uri", "/api/thing")];
    for (path, status) in [
        ("/v1/check", StatusCode::METHOD_NOT_ALLOWED),
        ("/v1/forward-auth/", StatusCode::NOT_FOUND),
        ("/_auth", StatusCode::NOT_FOUND),
        ("/api/thing", StatusCode::NOT_FOUND),
    ] {
        let answer = send(server.addr, Method::GET, path, &headers, "").await;
        assert_eq!(answer.status, status, "{path}");
        assert!(
            answer.detail().ends_with("sub-requests of a proxy go to /v1/forward-auth"),
            "{}",
            answer.detail()
        );
    }
    let told = verbose(&server).await;
    assert!(told.contains("      4 x sub-requests of a proxy reach a path that does not take them, and none is decided; give the proxy the path /v1/forward-auth"), "{told}");
    // Other paths are as before, and a page of another host learns nothing but that.
    let page = send(server.addr, Method::GET, "/v1/policies", &[("host", "evil.example")], "").await;
    assert_eq!(page.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_policy_by_what_no_sub_request_has_is_told() {
    let file = "
version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
access: { deny: [203.0.113.66] }
policies:
  - { name: login, match: { path: /login }, by: [client.ip], limit: { rate: 1/s } }
  - { name: per-user, by: [user.id], limit: { rate: 1/s } }
  - { name: plan, match: { attributes: { user_tier: gold } }, limit: { rate: 1/s } }
";
    let server = start(file).await;
    let sub_request_of = async |path: &str, client: &str| {
        let headers = [
            ("x-original-uri", path),
            ("x-original-method", "GET"),
            ("x-original-host", "a.example"),
            ("x-forwarded-for", client),
        ];
        send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await.status
    };
    let sub_request =
        async |path: &str| assert_eq!(sub_request_of(path, "203.0.113.9").await, StatusCode::OK, "{path}");
    sub_request("/login").await;
    // A refusal asks no limit either, and is no sign of it.
    assert_eq!(sub_request_of("/other", "203.0.113.66").await, StatusCode::FORBIDDEN);
    let told = verbose(&server).await;
    assert!(!told.contains("sub-requests of a proxy"), "{told}");
    sub_request("/other").await;
    sub_request("/other").await;
    let told = verbose(&server).await;
    assert!(told.contains("\n[!] requests that may be meant otherwise"), "{told}");
    assert!(
        told.contains(
            "2 x sub-requests of a proxy never meet policy per-user, and 1 more policy like it: it needs user.id, \
             and they have request.* and client.ip alone; let the proxy set a header, and write its name in the \
             policy: request.header.x-user-id\n"
        ),
        "{told}"
    );
}

/// Regression: such a policy counted per address without a word.
#[tokio::test]
async fn a_policy_whose_key_has_a_name_that_no_sub_request_has_is_told_once() {
    let server = start(
        "
version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - { name: all, by: [client.ip, request.header.x-key], limit: { rate: 100/s } }
  - { name: per-user, match: { path: /login }, by: [client.ip, user.id], limit: { rate: 100/s } }
  - { name: of-checks, match: { attributes: { kind: job } }, by: [client.ip, user.id], limit: { rate: 1/s } }
",
    )
    .await;
    let sub_request = async |path: &str| {
        let headers = [
            ("x-original-uri", path),
            ("x-original-method", "GET"),
            ("x-original-host", "a.example"),
            ("x-forwarded-for", "203.0.113.9"),
        ];
        let answer = send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
    };
    sub_request("/other").await;
    check(&server, r#""client.ip": "203.0.113.9", "user.id": "7", "request.path": "/login""#).await;
    let told = verbose(&server).await;
    assert!(!told.contains("sub-requests of a proxy"), "{told}");
    for _ in 0..3 {
        sub_request("/login").await;
    }
    let told = verbose(&server).await;
    assert!(
        told.contains(
            "1 x sub-requests of a proxy have request.* and client.ip alone, and the key of policy per-user has \
             user.id: all callers with the same client.ip are counted as one there; let the proxy set a header, and \
             write its name in the policy: request.header.x-user-id\n"
        ),
        "{told}"
    );
}

/// Regression: such a request was refused, and its operator found no line about it.
#[tokio::test]
async fn a_header_with_underscores_that_is_refused_is_told_once() {
    let server = start(
        "
version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - { name: per-key, by: [request.header.x-api-key], limit: { rate: 100/s } }
",
    )
    .await;
    for (header, status) in [
        ("x-api-key", StatusCode::OK),
        ("x_api_key", StatusCode::FORBIDDEN),
        ("x_api-key", StatusCode::FORBIDDEN),
        ("x_other_key", StatusCode::OK),
    ] {
        let headers = [
            ("x-original-uri", "/a"),
            ("x-original-method", "GET"),
            ("x-original-host", "a.example"),
            ("x-forwarded-for", "203.0.113.9"),
            (header, "k"),
        ];
        let answer = send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await;
        assert_eq!(answer.status, status, "{header}");
    }
    let told = verbose(&server).await;
    assert!(
        told.contains(
            "2 x sub-requests of a proxy with the header x_api_key are refused; many programs take it for x-api-key, \
             which policies name; let callers send x-api-key\n"
        ),
        "{told}"
    );
}

/// Regression: the advice was a header with the status, which no proxy knows before the answer.
#[tokio::test]
async fn a_policy_by_the_status_of_the_answer_is_told_to_charge_failures() {
    let policy = "{ name: login, match: { attributes: { response.status: '401' } }, by: [client.ip], limit: { rate: 1/s } }";
    let trusted = "client_ip: { trusted_proxies: [127.0.0.0/8] }";
    let file = |policy: &str| {
        format!("version: 1\nforward_auth: {{ proxy: nginx }}\n{trusted}\npolicies: [{policy}]\n")
    };
    let server = start(&file(policy)).await;
    let headers = [
        ("x-original-uri", "/login"),
        ("x-original-method", "POST"),
        ("x-original-host", "a.example"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    let asked = send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await;
    assert_eq!(asked.status, StatusCode::OK);
    let told = verbose(&server).await;
    assert!(
        told.contains(
            "sub-requests of a proxy never meet policy login: it needs response.status, and they come before the \
             answer; write `charge: on-failure` in place of response.status, and have the application send the ticket \
             in x-tidegate-ticket with its status to /v1/settle\n"
        ),
        "{told}"
    );
    start(&file(&policy.replace("match: { attributes: { response.status: '401' } }", "charge: on-failure")))
        .await;
}

#[tokio::test]
async fn sub_requests_without_a_valid_token_are_told() {
    let server = start_with(&format!("{WITH_ALL}forward_auth: {{ proxy: nginx }}\n"), |mut options| {
        options.token = Some(Token::new("0123456789abcdef").unwrap());
        options
    })
    .await;
    let headers = [("x-original-uri", "/"), ("x-original-method", "GET"), ("x-forwarded-host", "a.example")];
    for _ in 0..3 {
        let answer = send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    }
    let basic = [("authorization", "Basic cHJvbTpwdw==")];
    let told = send(server.addr, Method::GET, "/metrics", &basic, "").await;
    assert!(
        told.detail().contains("`authorization` has the scheme Basic; send `authorization: Bearer TOKEN`"),
        "{told:?}"
    );
    let own = [("x-tidegate-token", "0123456789abcdef")];
    let told = send(server.addr, Method::GET, "/readyz?verbose", &own, "").await.text;
    assert!(
        told.contains(
            "3 x sub-requests to /v1/forward-auth are refused, and none is decided: no token was sent;"
        ),
        "{told}"
    );
    assert!(told.contains("in nginx `proxy_set_header X-Tidegate-Token TOKEN;`"), "{told}");
}

/// Regression: the policy charged its own cost and nobody was told.
#[tokio::test]
async fn a_stated_cost_that_no_charged_policy_uses_is_told() {
    const FILE: &str = "
version: 1
policies:
  - { name: requests, cost: 1, limit: { rate: 100000/min } }
  - { name: fixed, match: { path: /fixed }, cost: { estimate: 800 }, limit: { rate: 100000/min } }
  - { name: settled, match: { path: /settled }, cost: { estimate: 800, settle: llm.output }, limit: { rate: 100000/min } }
  - { name: callers, match: { path: /callers }, limit: { rate: 100000/min } }
  - { name: believed, match: { path: /believed }, cost: { estimate: 800, caller: believed }, limit: { rate: 100000/min } }
";
    let server = start(FILE).await;
    let check = async |path: &str, cost: u64| {
        let body = format!(r#"{{"attributes": {{"request.path": "{path}"}}, "cost": {cost}}}"#);
        assert_eq!(server.post("/v1/check", &body).await.status, StatusCode::OK, "{path}");
    };
    for (path, cost) in [("/", 5000), ("/callers", 5000), ("/believed", 5000), ("/fixed", 1), ("/fixed", 800)]
    {
        check(path, cost).await;
    }
    let told = verbose(&server).await;
    assert!(!told.contains("state a cost"), "{told}");
    for path in ["/fixed", "/fixed", "/settled"] {
        check(path, 5000).await;
    }
    let told = verbose(&server).await;
    for line in [
        "2 x HTTP requests state a cost, and policy fixed charges its own; write cost: { estimate: 800, caller: believed } to charge \
         what they state\n",
        "1 x HTTP requests state a cost, and policy settled charges its own; write `caller: believed` beside `estimate` in its `cost` \
         to charge what they state\n",
    ] {
        assert!(told.contains(line), "{line} is missing in {told}");
    }
}

#[tokio::test]
async fn an_unlimited_request_is_shown_with_its_path() {
    let server = start(
        "
version: 1
policies:
  - { name: api, match: { path: '/api/**' }, by: [client.ip], limit: { rate: 1/s } }
  - { name: orders, match: { path: /v1/orders }, by: [client.ip], limit: { rate: 1/s } }
  - { name: admin, match: { host: admin.example }, by: [client.ip], limit: { rate: 1/s } }
",
    )
    .await;
    check(
        &server,
        r#""client.ip": "203.0.113.9", "request.path": "/v1/api/x?secret=1", "request.method": "GET""#,
    )
    .await;
    let told = verbose(&server).await;
    assert!(
        told.contains(
            "the attributes client.ip, request.method, request.path, such as GET /v1/api/x; policy admin needs \
             request.host; policy orders comes nearest, but path does not match: it takes /v1/orders\n"
        ),
        "{told}"
    );
    check(&server, r#""client.ip": "::1", "request.path": "/v1/orders/7", "request.host": "b.example""#)
        .await;
    let told = verbose(&server).await;
    let below = "; policy orders comes nearest, but path does not match: it takes /v1/orders; write /v1/orders/** for what is below\n";
    assert!(told.contains(below), "{told}");
    check(&server, r#""request.host": "b.example", "client.ip": "::1""#).await;
    let told = verbose(&server).await;
    assert!(
        told.contains("; policy admin comes nearest, but host does not match: it takes admin.example\n"),
        "{told}"
    );
    for at in 0..8 {
        check(&server, &format!(r#""own.{at}": "x""#)).await;
    }
    let told = verbose(&server).await;
    assert!(told.contains("      and 6 more kinds; the log has a line for each\n"), "{told}");
}

/// Regression: a check that asked for one policy was told what another needs, and a policy that is off was not named.
#[tokio::test]
async fn requests_that_ask_for_one_policy_are_told_about_that_one_and_about_a_mode_that_is_off() {
    let server = start(
        "
version: 1
policies:
  - { name: per-ip, by: [client.ip], limit: { rate: 3/min } }
  - { name: user, by: [user.id], limit: { rate: 3/min } }
  - { name: api, mode: \"off\", match: { path: '/api/**' }, limit: { rate: 3/min } }
",
    )
    .await;
    for (body, says) in [
        (
            r#"{"attributes": {}, "policies": ["user"]}"#,
            "HTTP requests without attributes, which ask for user alone; policy user needs user.id\n",
        ),
        (
            r#"{"attributes": {"request.path": "/api/x"}}"#,
            "the attributes request.path, such as /api/x; policy api would be, but its mode is off\n",
        ),
        (
            r#"{"attributes": {"request.path": "/api/x"}, "policies": ["api"]}"#,
            "request.path, which ask for api alone, such as /api/x; policy api would be, but its mode is off\n",
        ),
    ] {
        assert_eq!(server.post("/v1/check", body).await.status, StatusCode::OK);
        let told = verbose(&server).await;
        assert!(told.contains(says), "{told}");
    }
}
