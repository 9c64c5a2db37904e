//! Real nginx, Caddy and HAProxy in front of a small site, with the configuration blocks from the manual. They ask a
//! running server about each request.
//!
//! Needs the Debian packages `nginx`, `caddy` and `haproxy`. If one is missing, its test says so and skips, unless
//! `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.

#![cfg(unix)]

#[cfg(unix)]
use crate::proxy;
use crate::running;

use std::net::SocketAddr;

use http::{Method, StatusCode};
use proxy::{FAILS_OPEN, NAMES_THE_POLICY, Proxy, SAYS_THE_PRIORITY};
use running::wire::{application, exchange};
use running::{Answer, Running, send, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

/// The beginning of another recipe in the manual.
const TELLS_WHAT_WAS_DECIDED: &str = "# in server\nauth_request_set $tidegate_marked";

const FILE: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.1] }
access: { deny: [127.0.0.66] }
policies:
  - name: per-ip
    match: { path: /api/** }
    by: [client.ip]
    limit: { rate: 2/min }
";

/// The policies, with the setting for this proxy.
fn asked_by(proxy: &str) -> String {
    FILE.replacen("version: 1\n", &format!("version: 1\nforward_auth: {{ proxy: {proxy} }}\n"), 1)
}

/// Sends a request from another address of this machine, with these bytes as `X-Forwarded-For`; returns the status.
async fn status_from(client: [u8; 4], proxy: SocketAddr, forwarded: &[u8]) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((client, 0))).unwrap();
    let mut stream = socket.connect(proxy).await.unwrap();
    let head = b"GET /api/thing HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\nX-Forwarded-For: ";
    stream.write_all(&[head, forwarded, b"\r\n\r\n"].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let status = String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).into_owned();
    status.parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&answer)))
}

/// Regression: a caller that wrote into `X-Forwarded-For` was taken for the proxy, so no deny-list and no limit applied
/// to it.
async fn nobody_is_taken_for_the_proxy(proxy: SocketAddr, barred: u16) {
    let written: [&[u8]; 9] = [
        b"",
        b"\xff",
        b"\xff, 9.9.9.9",
        b"unknown",
        b",,,",
        b"127.0.0.1",
        b"9.9.9.9, 127.0.0.1",
        b"\"9.9.9.9",
        &[b','; 4000],
    ];
    for forwarded in written {
        let status = status_from([127, 0, 0, 66], proxy, forwarded).await;
        assert_eq!(status, barred, "{}", forwarded.escape_ascii());
    }
    for (at, forwarded) in written.into_iter().enumerate() {
        let status = status_from([127, 0, 0, 7], proxy, forwarded).await;
        assert_eq!(status, if at < 2 { 200 } else { 429 }, "{}", forwarded.escape_ascii());
    }
    assert_eq!(status_from([127, 0, 0, 8], proxy, b"127.0.0.7").await, 200, "nobody spends another's limit");
}

async fn get(addr: SocketAddr, path: &str) -> Answer {
    send(addr, Method::GET, path, &[("host", "example.org")], "").await
}

/// Requirements for all proxies: let two requests pass, refuse the third with a time, leave other paths alone.
async fn limits(server: &Running, addr: SocketAddr, refused: StatusCode) {
    for _ in 0..2 {
        let passed = get(addr, "/api/thing?q=1").await;
        assert_eq!((passed.status, passed.text.as_str()), (StatusCode::OK, "a thing"));
    }
    let denied = get(addr, "/api/thing").await;
    assert_eq!(denied.status, refused, "{denied:?}");
    assert_eq!(denied.header("retry-after"), "30", "{denied:?}");
    assert!(!denied.text.contains("a thing"));
    assert_eq!(get(addr, "/api/%74hing").await.status, refused, "another spelling of the path");
    assert_eq!(get(addr, "/index.html").await.text, "the front page");
    let top = server.get("/v1/keys/top?reveal=true").await.json();
    assert_eq!(top["keys"][0]["key"], "client.ip=127.0.0.1");
    server.clock.advance(std::time::Duration::from_secs(30));
    assert_eq!(get(addr, "/api/thing").await.status, StatusCode::OK, "after the time told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_asks_and_obeys() {
    let server = start(&asked_by("nginx")).await;
    let Some(nginx) = Proxy::nginx(server.addr) else { return };
    limits(&server, nginx.addr, StatusCode::TOO_MANY_REQUESTS).await;
    assert!(get(nginx.addr, "/api/thing").await.header("ratelimit").starts_with("\"per-ip\";r=0;t="));
    // The `error_page` of the block turns every 403 into 429.
    nobody_is_taken_for_the_proxy(nginx.addr, 429).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_that_fails_open_limits_while_it_can_and_serves_when_it_cannot() {
    let server = start(&asked_by("nginx")).await;
    let Some(nginx) = Proxy::nginx_by_recipes(server.addr, &[FAILS_OPEN]) else { return };
    limits(&server, nginx.addr, StatusCode::TOO_MANY_REQUESTS).await;
    assert_eq!(get(nginx.addr, "/api/thing").await.status, StatusCode::TOO_MANY_REQUESTS);
    let addr = server.addr;
    server.handle.stop();
    server.stopped().await;
    for _ in 0..3 {
        let passed = get(nginx.addr, "/api/thing").await;
        assert_eq!((passed.status, passed.text.as_str()), (StatusCode::OK, "a thing"), "nobody listens");
    }
    // Accepts connections and never answers: nginx gives up after the time in the recipe.
    let hanging = tokio::net::TcpListener::bind(addr).await.unwrap();
    let passed = get(nginx.addr, "/api/thing").await;
    assert_eq!((passed.status, passed.text.as_str()), (StatusCode::OK, "a thing"), "nobody answers");
    drop(hanging);
}

/// Regression: the server answered 403, of which the manual's `error_page` makes a refusal, and told nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_that_asks_at_a_wrong_path_is_told_and_refuses_nobody_for_a_limit() {
    let server = start(&asked_by("nginx")).await;
    for path in ["/v1/check", "/v1/forward-auth/", ""] {
        let asks = format!("proxy_pass http://tidegate{path};");
        let Some(nginx) = Proxy::nginx_over_tls(server.addr, asks) else { return };
        let failed = get(nginx.addr, "/api/thing").await;
        assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR, "{path}: {failed:?}");
    }
    let told = server.get("/readyz?verbose").await.text;
    assert!(told.contains("3 x sub-requests of a proxy reach a path that does not take them"), "{told}");
}

/// Failing open applies only to missing answers. If the server answers with an error, nginx refuses the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_that_fails_open_does_not_open_for_an_answer_that_is_an_error() {
    let server = start(FILE).await;
    let Some(nginx) = Proxy::nginx_by_recipes(server.addr, &[FAILS_OPEN]) else { return };
    let refused = get(nginx.addr, "/api/thing").await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR, "forward-auth is not set up: {refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_can_name_the_policy_that_refused() {
    let file = asked_by("nginx").replace("name: per-ip", "name: \"per \\\"ip\\\"\"");
    let server = start(&file).await;
    let Some(nginx) = Proxy::nginx_by_recipes(server.addr, &[NAMES_THE_POLICY, FAILS_OPEN]) else { return };
    limits(&server, nginx.addr, StatusCode::TOO_MANY_REQUESTS).await;
    let refused = get(nginx.addr, "/api/thing").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert_eq!(refused.header("retry-after"), "30");
    assert_eq!(refused.json()["violated-policies"], serde_json::json!(["per%20%22ip%22"]));
    assert_eq!(
        status_from([127, 0, 0, 66], nginx.addr, b"").await,
        429,
        "a deny-list for all policies names none"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_can_say_how_much_a_request_matters() {
    let file = "
version: 1
client_ip: { trusted_proxies: [127.0.0.1] }
forward_auth: { proxy: nginx, priority_header: x-priority }
policies:
  - { name: all, limit: { rate: 4/min, keep_for: { critical: 50% } } }
";
    let server = start(file).await;
    let words = [("198.51.100.0/24", "127.0.0.9/32".to_owned())];
    let Some(nginx) = Proxy::nginx_by_recipe(server.addr, SAYS_THE_PRIORITY, &words) else { return };
    for (client, expected) in [([127, 0, 0, 9], [200, 200, 429]), ([127, 0, 0, 8], [200, 200, 429])] {
        for status in expected {
            assert_eq!(status_from(client, nginx.addr, b"").await, status, "{client:?}");
        }
    }
}

/// The recipe passes headers to the application. This site consists of files, so the test shows them to the caller
/// instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_can_tell_what_is_marked_and_refuse_what_is_too_late() {
    let file = "
version: 1
client_ip: { trusted_proxies: [127.0.0.1] }
forward_auth: { proxy: nginx }
policies:
  - { name: soft, over: mark, deadline: 100ms, limit: { rate: 1/day } }
";
    let server = start(file).await;
    let words = [("proxy_set_header X-Tidegate-Marked", "add_header X-Tidegate-Marked".to_owned())];
    let Some(nginx) = Proxy::nginx_by_recipe(server.addr, TELLS_WHAT_WAS_DECIDED, &words) else { return };
    let ask = async |name: &str, value: &str| {
        send(nginx.addr, Method::GET, "/api/thing", &[("host", "example.org"), (name, value)], "").await
    };
    let usual = ask("x-tidegate-marked", "forged").await;
    assert_eq!((usual.status, usual.header("x-tidegate-marked")), (StatusCode::OK, ""));
    let marked = ask("x-tidegate-marked", "forged").await;
    assert_eq!((marked.status, marked.header("x-tidegate-marked")), (StatusCode::OK, "soft"));
    assert_eq!(
        ask("grpc-timeout", "99m").await.status,
        StatusCode::TOO_MANY_REQUESTS,
        "the block makes 429 of 403"
    );
    assert_eq!(ask("grpc-timeout", "100m").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caddy_asks_and_obeys() {
    let server = start(&asked_by("caddy")).await;
    let Some(caddy) = Proxy::caddy(server.addr) else { return };
    limits(&server, caddy.addr, StatusCode::TOO_MANY_REQUESTS).await;
    let denied = get(caddy.addr, "/api/thing").await;
    assert_eq!(denied.header("ratelimit"), "\"per-ip\";r=0;t=30");
    let body = denied.json();
    assert_eq!(body["violated-policies"][0], "per-ip", "the caller is told what refused");
    assert!(body.get("policies").is_none() && body.get("remaining").is_none(), "and nothing else: {body}");
    nobody_is_taken_for_the_proxy(caddy.addr, 403).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_asks_and_obeys() {
    let asks = "forward_auth: { method: x-original-method, path: x-original-uri, host: x-original-host }";
    let server = start(&FILE.replacen("version: 1\n", &format!("version: 1\n{asks}\n"), 1)).await;
    let Some(haproxy) = Proxy::haproxy(server.addr) else { return };
    limits(&server, haproxy.addr, StatusCode::TOO_MANY_REQUESTS).await;
    let denied = get(haproxy.addr, "/api/thing").await;
    assert_eq!(denied.header("ratelimit"), "\"per-ip\";r=0;t=30");
    assert_eq!(denied.json()["violated-policies"][0], "per-ip", "the caller is told what refused");
    let posted = send(haproxy.addr, Method::POST, "/index.html", &[("host", "example.org")], "a body").await;
    assert_eq!(posted.status, StatusCode::OK, "the body is the site's: {posted:?}");
    nobody_is_taken_for_the_proxy(haproxy.addr, 403).await;
    // Formerly 98 headers ended HAProxy, and a comma in `Host` cut the rest off.
    for (lines, status) in [(70, 200), (97, 431), (98, 431), (99, 431)] {
        let names: Vec<String> = (0..lines).map(|at| format!("x-h{at}")).collect();
        let mut headers: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
        headers.push(("host", "example.org"));
        let answer = send(haproxy.addr, Method::GET, "/index.html", &headers, "").await;
        assert_eq!(answer.status, status, "{lines} headers");
    }
    let host = |host| async move {
        send(haproxy.addr, Method::GET, "/index.html", &[("host", host)], "").await.status
    };
    assert_eq!(host("example.org").await, StatusCode::OK);
    assert_eq!(host("example.org,x").await, StatusCode::BAD_REQUEST, "not taken for example.org");
    server.handle.stop();
    server.stopped().await;
    let unasked = get(haproxy.addr, "/index.html").await;
    assert_eq!(unasked.status, StatusCode::SERVICE_UNAVAILABLE, "nobody listens: {unasked:?}");
}

/// Policies that mark, demote and take a place, each on a path of its own. Strangers are sheddable, so they may use half
/// of the last one.
const TOLD: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.1] }
forward_auth: { PROXY, priority_header: x-priority, default_priority: sheddable }
policies:
  - { name: soft, match: { path: /mark }, over: mark, limit: { rate: 1/day } }
  - { name: low, match: { path: /demote }, over: demote, limit: { rate: 1/day } }
  - { name: places, match: { path: /place }, limit: { algorithm: concurrency, max: 9 } }
  - { name: kept, match: { path: /kept }, limit: { rate: 4/day, keep_for: { critical: 50% } } }
";

/// Requests a path with forged headers, which `Connection` names too; returns the whole answer in lower case.
async fn forged(proxy: SocketAddr, path: &str) -> String {
    let names = "x-tidegate-marked, x-tidegate-demoted, x-tidegate-priority, x-tidegate-ticket";
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: example.org\r\nConnection: {names}, close\r\n");
    for name in names.split(", ") {
        request += &format!("{name}: forged\r\n");
    }
    request += "X_Tidegate_Marked: forged\r\nX-Priority: critical-plus\r\nX_Priority: critical-plus\r\n\r\n";
    exchange(proxy, request.as_bytes()).await.to_lowercase()
}

/// Requires that the application receives what Tidegate answered, and nothing that a caller wrote in its place.
async fn the_application_sees_what_was_decided(proxy: SocketAddr) {
    for path in ["/free", "/mark", "/demote"] {
        let usual = forged(proxy, path).await;
        assert!(usual.starts_with("http/1.1 200"), "{path}: {usual}");
        assert!(!usual.contains("forged") && !usual.contains("\nx-tidegate"), "{path}: {usual}");
        assert!(!usual.contains("critical-plus"), "{path}: {usual}");
    }
    let marked = forged(proxy, "/mark").await;
    assert!(marked.contains("\nx-tidegate-marked: soft\r"), "{marked}");
    let demoted = forged(proxy, "/demote").await;
    assert!(demoted.contains("\nx-tidegate-demoted: low\r"), "{demoted}");
    assert!(demoted.contains("\nx-tidegate-priority: sheddable\r"), "{demoted}");
    let placed = forged(proxy, "/place").await;
    assert!(placed.contains("\nx-tidegate-ticket: "), "{placed}");
    for answer in [marked, demoted, placed] {
        assert!(!answer.contains("forged") && !answer.contains("critical-plus"), "{answer}");
    }
    for expected in ["http/1.1 200", "http/1.1 200", "http/1.1 429"] {
        let kept = forged(proxy, "/kept").await;
        assert!(kept.starts_with(expected), "the level is the proxy's: {kept}");
    }
}

/// The policies that tell the application something, for this proxy.
fn told_by(proxy: &str) -> String {
    TOLD.replace("PROXY", proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_nginx_the_application_sees_what_was_decided() {
    let (server, app) = (start(&told_by("proxy: nginx")).await, application().await);
    let recipes = [TELLS_WHAT_WAS_DECIDED, SAYS_THE_PRIORITY];
    let words = [("default critical;", "default sheddable;".to_owned())];
    let Some(nginx) = Proxy::nginx_before(app, server.addr, &recipes, &words) else { return };
    the_application_sees_what_was_decided(nginx.addr).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_caddy_the_application_sees_what_was_decided() {
    let removed = "request_header -X-Priority";
    for said in [removed, "request_header X-Priority sheddable"] {
        let (server, app) = (start(&told_by("proxy: caddy")).await, application().await);
        let words = [(removed, said.to_owned())];
        let Some(caddy) = Proxy::caddy_before(app, server.addr, &words) else { return };
        the_application_sees_what_was_decided(caddy.addr).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_haproxy_the_application_sees_what_was_decided() {
    let asks = "method: x-original-method, path: x-original-uri, host: x-original-host";
    let lua = "http-request lua.tidegate";
    for said in ["", "http-request set-header x-priority sheddable if { src 127.0.0.0/8 }\n  "] {
        let (server, app) = (start(&told_by(asks)).await, application().await);
        let words = [(lua, format!("{said}{lua}"))];
        let Some(haproxy) = Proxy::haproxy_before(app, server.addr, &words) else { return };
        the_application_sees_what_was_decided(haproxy.addr).await;
    }
}
