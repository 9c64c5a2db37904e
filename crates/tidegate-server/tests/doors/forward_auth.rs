//! Forward-auth with the requests of the three proxies, without the proxies. `proxies.rs` tests the real ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{Answer, Running, send, start, start_with};
use http::{Method, StatusCode};
use tidegate_server::Token;

const FILE: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
access: { deny: [203.0.113.66] }
policies:
  - name: login
    match: { method: POST, path: /login, host: example.org }
    by: [client.ip]
    limit: { rate: 1/min }
  - name: per-token
    by: [request.header.x-api-key]
    limit: { rate: 2/min }
";

/// Starts a server for this proxy; `door` is the `forward_auth` setting of the file.
async fn asked_by(door: &str) -> Running {
    start(&FILE.replacen("version: 1\n", &format!("version: 1\nforward_auth: {door}\n"), 1)).await
}

async fn ask(server: &Running, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(server.addr, Method::GET, path, headers, "").await
}

/// The headers that Caddy sends for a request, with further headers of its caller.
fn caddy<'h>(method: &'h str, uri: &'h str, more: &[(&'h str, &'h str)]) -> Vec<(&'h str, &'h str)> {
    let mut headers = vec![
        ("x-forwarded-method", method),
        ("x-forwarded-uri", uri),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    headers.retain(|(name, _)| more.iter().all(|(other, _)| name != other));
    headers.extend_from_slice(more);
    headers
}

#[tokio::test]
async fn the_original_request_is_what_is_limited() {
    let nginx = [
        ("x-original-uri", "/login?next=%2F"),
        ("x-original-method", "POST"),
        ("x-original-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    let caddy = [
        ("x-forwarded-uri", "//login"),
        ("x-forwarded-method", "POST"),
        ("x-forwarded-host", "Example.org:443"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    let own =
        [("x-u", "/login"), ("x-m", "POST"), ("x-h", "example.org"), ("x-forwarded-for", "203.0.113.9")];
    for (door, headers, status) in [
        ("{ proxy: nginx }", nginx, StatusCode::FORBIDDEN),
        ("{ proxy: nginx, status: 401 }", nginx, StatusCode::UNAUTHORIZED),
        ("{ proxy: caddy }", caddy, StatusCode::TOO_MANY_REQUESTS),
        ("{ proxy: traefik, status: 418 }", caddy, StatusCode::IM_A_TEAPOT),
        ("{ method: X-M, path: X-U, host: X-H }", own, StatusCode::TOO_MANY_REQUESTS),
    ] {
        let server = asked_by(door).await;
        let passed = ask(&server, "/v1/forward-auth", &headers).await;
        assert_eq!((passed.status, passed.text.as_str()), (StatusCode::OK, ""));
        assert!(passed.header("ratelimit").contains("\"login\";r=0"), "{passed:?}");
        assert_eq!(passed.header("x-tidegate-decision-id").len(), 26);
        let denied = ask(&server, "/v1/forward-auth", &headers).await;
        assert_eq!((denied.status, denied.header("retry-after")), (status, "60"), "{door}");
        assert_eq!(denied.json()["violated-policies"][0], "login");
        let mut other = headers;
        other[3].1 = "203.0.113.9, 198.51.100.7";
        let other = ask(&server, "/v1/forward-auth", &other).await;
        assert_eq!(other.status, StatusCode::OK, "the right-most hop");
    }
}

/// The members of a refusal's body, which strangers may read.
fn members_of(refusal: &Answer) -> Vec<String> {
    assert_eq!(refusal.header("content-type"), "application/problem+json", "{refusal:?}");
    assert_eq!(refusal.header("cache-control"), "no-store", "{refusal:?}");
    refusal.json().as_object().unwrap().keys().cloned().collect()
}

const PUBLIC: [&str; 8] = [
    "detail",
    "retry",
    "retry_after_ms",
    "status",
    "tidegate-decision-id",
    "title",
    "type",
    "violated-policies",
];

/// Regression: Caddy and Traefik pass the body to their client, which was told of shadow policies and of the limits
/// that all callers share. A token does not change the body: the token is the proxy's, and the same body goes to its
/// client.
#[tokio::test]
async fn strangers_are_told_which_policy_refused_and_until_when_and_nothing_else() {
    let file = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: caddy }
access: { deny: [request.header.x-tenant=secret-name] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 1/min }
    shadow_limit: { rate: 1/h }
  - name: everyone
    limit: { rate: 777/h }
  - name: experiment
    mode: shadow
    limit: { rate: 1/day }
";
    let token = "0123456789abcdef";
    for shown in [None, Some(token)] {
        let server = start_with(file, |mut options| {
            options.token = shown.map(|token| Token::new(token).unwrap());
            options
        })
        .await;
        let more: Vec<_> = shown.map(|token| ("x-tidegate-token", token)).into_iter().collect();
        let passed = ask(&server, "/v1/forward-auth", &caddy("GET", "/", &more)).await;
        assert_eq!((passed.status, passed.text.as_str()), (StatusCode::OK, ""));
        assert_eq!((passed.header("cache-control"), passed.header("content-type")), ("no-store", ""));
        let denied = ask(&server, "/v1/forward-auth", &caddy("GET", "/", &more)).await;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(members_of(&denied), PUBLIC);
        let body = denied.json();
        assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
        assert_eq!(body["detail"], "policy \"per-ip\" refuses this request; try again in 60 s");
        assert_eq!(body["violated-policies"], serde_json::json!(["per-ip"]));
        assert_eq!((&body["retry"], &body["retry_after_ms"]), (&"after".into(), &60_000.into()));
        assert_eq!(denied.header("x-tidegate-policy"), "per-ip");
        assert_eq!(passed.header("x-tidegate-policy"), "");
        assert_eq!(body["tidegate-decision-id"], denied.header("x-tidegate-decision-id"));
        for secret in ["shadow", "everyone", "experiment", "777", "203.0.113.9"] {
            assert!(!denied.text.contains(secret), "{secret}: {denied:?}");
        }
        let listed = [&more[..], &[("x-tenant", "secret-name")]].concat();
        let listed = ask(&server, "/v1/forward-auth", &caddy("GET", "/", &listed)).await;
        assert_eq!(
            (listed.status, members_of(&listed)),
            (StatusCode::FORBIDDEN, PUBLIC.map(Into::into).to_vec())
        );
        assert!(!listed.text.contains("secret-name"), "{listed:?}");
        let whole = format!("/v1/explain?id={}", denied.header("x-tidegate-decision-id"));
        let whole = ask(&server, &whole, &more).await.json();
        assert_eq!(whole["limits"].as_array().unwrap().len(), 4, "whoever may ask is told all: {whole}");
    }
}

#[tokio::test]
async fn a_refusal_for_strangers_has_the_status_that_is_answered() {
    let server = asked_by("{ proxy: nginx }").await;
    let asked = [
        ("x-original-uri", "/login"),
        ("x-original-method", "POST"),
        ("x-original-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    ask(&server, "/v1/forward-auth", &asked).await;
    let denied = ask(&server, "/v1/forward-auth", &asked).await;
    assert_eq!((denied.status, &denied.json()["status"]), (StatusCode::FORBIDDEN, &403.into()));
    assert_eq!(members_of(&denied), PUBLIC);
}

/// Regression: `curl -H 'X-Original-URI: /free'` through Caddy was never limited, because the door used the first
/// family of headers that it found.
#[tokio::test]
async fn a_caller_cannot_speak_in_another_family() {
    let server = asked_by("{ proxy: caddy }").await;
    let his = [
        ("x-original-uri", "/free"),
        ("x-original-url", "/free"),
        ("x-original-method", "OPTIONS"),
        ("x-original-host", "other.org"),
        ("host", "other.org"),
    ];
    let headers = caddy("POST", "/login", &his);
    for status in [200, 429, 429] {
        assert_eq!(ask(&server, "/v1/forward-auth", &headers).await.status, status);
    }
    let only_his = ask(&server, "/v1/forward-auth", &his).await;
    assert_eq!(only_his.status, StatusCode::BAD_REQUEST);
    assert!(only_his.detail().contains("the proxy sent no x-forwarded-method"), "{}", only_his.detail());
}

#[tokio::test]
async fn only_a_true_preflight_passes_uncharged_and_deny_lists_hold() {
    let preflight =
        [("origin", "https://a.example"), ("access-control-request-method", "POST"), ("x-api-key", "k")];
    let server = asked_by("{ proxy: caddy }").await;
    let options = |more: &[(&'static str, &'static str)]| caddy("OPTIONS", "/", more);
    for status in [200, 200, 429] {
        assert_eq!(ask(&server, "/v1/forward-auth", &options(&[("x-api-key", "k")])).await.status, status);
    }
    let true_one = ask(&server, "/v1/forward-auth", &options(&preflight)).await;
    assert_eq!((true_one.status, true_one.header("ratelimit")), (StatusCode::OK, ""));
    for dressed in [
        vec![preflight[0], preflight[2]],
        vec![preflight[1], preflight[2]],
        [&preflight[..], &[("authorization", "Bearer x")]].concat(),
        [&preflight[..], &[("cookie", "a=b")]].concat(),
        vec![("origin", ""), preflight[1], preflight[2]],
    ] {
        let refused = ask(&server, "/v1/forward-auth", &options(&dressed)).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{dressed:?}");
    }
    let lower = ask(&server, "/v1/forward-auth", &caddy("options", "/", &preflight)).await;
    assert_eq!(lower.status, StatusCode::TOO_MANY_REQUESTS, "no browser sends that");
    let mut denied = options(&preflight);
    denied.retain(|(name, _)| *name != "x-forwarded-for");
    denied.push(("x-forwarded-for", "203.0.113.66"));
    assert_eq!(ask(&server, "/v1/forward-auth", &denied).await.status, StatusCode::FORBIDDEN);
    let charging = asked_by("{ proxy: caddy, options: charge }").await;
    for status in [200, 200, 429] {
        assert_eq!(ask(&charging, "/v1/forward-auth", &options(&preflight)).await.status, status);
    }
}

/// Regression: only lists were asked for a preflight, so who was blocked got its 200.
#[tokio::test]
async fn a_preflight_does_not_escape_a_block() {
    let server = asked_by("{ proxy: caddy }").await;
    let blocks = r#"{"block": {"for": "1h", "reason": "abuse"}}"#;
    for key in ["/v1/keys?client.ip=203.0.113.10", "/v1/keys/per-token?request.header.x-api-key=bad"] {
        assert_eq!(server.put(key, blocks).await.status, StatusCode::OK);
    }
    let preflight = [("origin", "https://a.example"), ("access-control-request-method", "POST")];
    for (more, status) in [
        (("x-forwarded-for", "203.0.113.10"), 403),
        (("x-api-key", "bad"), 403),
        (("x-forwarded-for", "203.0.113.11"), 200),
        (("x-api-key", "good"), 200),
    ] {
        let more = [&preflight[..], &[more]].concat();
        let answer = ask(&server, "/v1/forward-auth", &caddy("OPTIONS", "/", &more)).await;
        assert_eq!(answer.status, status, "{more:?}");
    }
}

#[tokio::test]
async fn a_door_that_is_not_set_up_refuses_and_says_what_to_set() {
    let server = start(FILE).await;
    let asked = ask(&server, "/v1/forward-auth", &caddy("GET", "/free", &[])).await;
    assert_eq!(asked.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        asked.detail().contains("write `forward_auth: { proxy: NAME }` into the policy file"),
        "{asked:?}"
    );
    assert!(asked.detail().contains("nginx, caddy, traefik"), "{asked:?}");
    let told = ask(&server, "/readyz?verbose", &[]).await.text;
    let says = "1 x sub-requests of a proxy are refused, and none is decided: forward-auth is not set up: ";
    assert!(told.contains("\n[!] requests that may be meant") && told.contains(says), "{told}");
    server.write(&FILE.replacen("version: 1\n", "version: 1\nforward_auth: { proxy: caddy }\n", 1));
    server.handle.reload().await.unwrap();
    let asked = ask(&server, "/v1/forward-auth", &caddy("GET", "/free", &[])).await;
    assert_eq!(asked.status, StatusCode::OK, "a reload sets it up");
}

#[tokio::test]
async fn a_proxy_that_does_not_do_its_part_is_told_so() {
    let server = asked_by("{ proxy: nginx }").await;
    let bare = ask(&server, "/v1/forward-auth", &[]).await;
    assert_eq!(bare.status, StatusCode::BAD_REQUEST);
    assert!(bare.detail().contains("the proxy sent no x-original-method"), "{}", bare.detail());
    let line =
        "; write `proxy_set_header X-Original-Method $request_method;` into the location of nginx that asks";
    assert!(bare.detail().contains(line), "{}", bare.detail());
    let by_caddy = ask(&server, "/v1/forward-auth", &caddy("GET", "/free", &[])).await;
    let named = "; if it sets x-forwarded-uri itself, write `forward_auth: { proxy: caddy }`, or traefik";
    assert!(by_caddy.detail().ends_with(named), "{}", by_caddy.detail());
    let whole = [("x-original-method", "GET"), ("x-original-uri", "/"), ("x-original-host", "a.org")];
    let no_client = ask(&server, "/v1/forward-auth", &whole).await;
    assert!(no_client.detail().contains("127.0.0.1 sent no x-forwarded-for"), "{}", no_client.detail());
    let twice = [&whole[..], &[("x-original-uri", "/free"), ("x-forwarded-for", "203.0.113.9")]].concat();
    let twice = ask(&server, "/v1/forward-auth", &twice).await;
    assert!(twice.detail().contains("x-original-uri came 2 times"), "{}", twice.detail());
    let thrice = [&whole[..], &[("x-original-uri", "/a"), ("x-original-uri", "/b")]].concat();
    assert_eq!(ask(&server, "/v1/forward-auth", &thrice).await.status, StatusCode::BAD_REQUEST);
    // What a caller writes is no problem of the proxy.
    let odd =
        [&whole[..2], &[("x-original-host", "not a host"), ("x-forwarded-for", "203.0.113.9")]].concat();
    assert_eq!(ask(&server, "/v1/forward-auth", &odd).await.status, StatusCode::BAD_REQUEST);
    let told = ask(&server, "/readyz?verbose", &[]).await.text;
    for says in [
        "\n[!] requests that may be meant otherwise, since 2027",
        "1 x sub-requests of a proxy are refused, and none is decided: the proxy sent no x-original-method,",
        "1 x sub-requests of a proxy are refused, and none is decided: the trusted proxy 127.0.0.1 sent no x-forwarded-for,",
        "2 x sub-requests of a proxy are refused, and none is decided: x-original-uri came 2 times;",
    ] {
        assert!(told.contains(says), "{says} is missing in {told}");
    }
    assert!(!told.contains("not a host"), "{told}");
    let counted = "tidegate_requests_total{transport=\"http\",outcome=\"invalid\"} 5";
    let metrics = ask(&server, "/metrics", &[]).await.text;
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
}

#[tokio::test]
async fn a_query_of_a_sub_request_changes_nothing() {
    let server = asked_by("{ proxy: caddy }").await;
    let headers = caddy("GET", "/?q=1", &[("x-api-key", "k")]);
    for (query, status) in
        [("deny_status=418&q=1", 200), ("options=charge", 200), ("deny_status=418", 429), ("%", 429)]
    {
        let answer = ask(&server, &format!("/v1/forward-auth?{query}"), &headers).await;
        assert_eq!(answer.status, status, "{query}");
    }
}

#[tokio::test]
async fn what_policies_name_is_neither_pushed_out_nor_given_twice() {
    let server = asked_by("{ proxy: caddy }").await;
    let fillers: Vec<String> = (0..70).map(|at| format!("a-filler-{at}")).collect();
    let mut more: Vec<(&str, &str)> = fillers.iter().map(|name| (name.as_str(), "x")).collect();
    more.push(("x-api-key", "k"));
    for status in [200, 200, 429] {
        assert_eq!(ask(&server, "/v1/forward-auth", &caddy("GET", "/", &more)).await.status, status);
    }
    let long = "k".repeat(20_000);
    for status in [200, 200, 429] {
        let more = [("x-api-key", long.as_str())];
        assert_eq!(ask(&server, "/v1/forward-auth", &caddy("GET", "/", &more)).await.status, status);
    }
    for (more, says) in [
        ([("x-api-key", "k"), ("x-api-key", "other")], "several values"),
        ([("x-api-key", "other"), ("x_api_key", "k")], "treat the header `x_api_key` like one"),
    ] {
        let refused = ask(&server, "/v1/forward-auth", &caddy("GET", "/", &more)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.detail().contains(says), "{}", refused.detail());
    }
}
