//! Forward-auth as the three proxies ask, without the proxies; `proxies.rs` has the real ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod running;

use http::{Method, StatusCode};
use running::{Answer, Running, send, start};

const FILE: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: login
    match: { method: POST, path: /login, host: example.org }
    by: [client.ip]
    limit: { rate: 1/min }
  - name: per-token
    by: [request.header.x-api-key]
    limit: { rate: 2/min }
";

async fn ask(server: &Running, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(server.addr, Method::GET, path, headers, "").await
}

#[tokio::test]
async fn the_original_request_is_what_is_limited() {
    let nginx = [
        ("x-original-uri", "/login?next=%2F"),
        ("x-original-method", "POST"),
        ("host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    let caddy = [
        ("x-forwarded-uri", "//login"),
        ("x-forwarded-method", "POST"),
        ("x-forwarded-host", "Example.org:443"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    for headers in [nginx, caddy] {
        let server = start(FILE).await;
        let passed = ask(&server, "/v1/forward-auth", &headers).await;
        assert_eq!((passed.status, passed.text.as_str()), (StatusCode::OK, ""));
        assert!(passed.header("ratelimit").contains("\"login\";r=0"), "{passed:?}");
        assert_eq!(passed.header("x-tidegate-decision-id").len(), 26);
        let denied = ask(&server, "/v1/forward-auth", &headers).await;
        assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "60"));
        assert_eq!(denied.json()["violated-policies"][0], "login");
        let for_nginx = ask(&server, "/v1/forward-auth?deny_status=403", &headers).await;
        assert_eq!((for_nginx.status, for_nginx.header("retry-after")), (StatusCode::FORBIDDEN, "60"));
        let mut other = headers;
        other[3].1 = "203.0.113.9, 198.51.100.7";
        assert_eq!(
            ask(&server, "/v1/forward-auth", &other).await.status,
            StatusCode::OK,
            "the right-most hop"
        );
    }
}

#[tokio::test]
async fn headers_are_attributes_and_preflights_pass() {
    let server = start(FILE).await;
    let with = |method| [("x-forwarded-uri", "/"), ("x-forwarded-method", method), ("x-api-key", "k1")];
    for status in [200, 200, 429] {
        assert_eq!(ask(&server, "/v1/forward-auth", &with("GET")).await.status, status);
    }
    assert_eq!(ask(&server, "/v1/forward-auth", &with("OPTIONS")).await.status, StatusCode::OK);
    let charged = ask(&server, "/v1/forward-auth?options=charge", &with("OPTIONS")).await;
    assert_eq!(charged.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_proxy_that_is_set_up_wrong_is_told_so() {
    let server = start(FILE).await;
    let bare = ask(&server, "/v1/forward-auth", &[]).await;
    assert_eq!(bare.status, StatusCode::BAD_REQUEST);
    assert!(bare.detail().contains("the proxy must send x-original-uri (nginx)"), "{}", bare.detail());
    let uri = [("x-original-uri", "/")];
    let wrong = ask(&server, "/v1/forward-auth?deny_status=200", &uri).await;
    assert!(wrong.detail().contains("use 400 to 599, 403 for nginx"), "{}", wrong.detail());
    let slip = ask(&server, "/v1/forward-auth?deny_statu=403", &uri).await;
    assert!(slip.detail().contains("did you mean `deny_status`?"), "{}", slip.detail());
}

#[tokio::test]
async fn parameters_of_the_caller_are_not_ours() {
    let server = start(FILE).await;
    let headers = [("x-forwarded-uri", "/?deny_status=418&q=1"), ("x-api-key", "k")];
    for status in [200, 200, 429] {
        assert_eq!(ask(&server, "/v1/forward-auth?deny_status=418&q=1", &headers).await.status, status);
    }
}
