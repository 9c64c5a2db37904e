//! Operations: policies, keys, health, metrics, tokens, reload.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;

use crate::running::{send, start, start_with, until};
use http::{Method, StatusCode};
use serde_json::json;
use tidegate_server::{ServeError, Server, ServerOptions, Source, Token};

const FILE: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 3 }
";

#[tokio::test]
async fn policies_are_shown_with_a_tag() {
    let server = start(FILE).await;
    let one = server.get("/v1/policies/per-ip").await;
    assert_eq!((one.status, &one.json()["by"]), (StatusCode::OK, &json!(["client.ip"])));
    assert_eq!(one.json()["share"], "local", "where it is decided, also when the file does not say");
    let tag = one.header("etag");
    let again = send(server.addr, Method::GET, "/v1/policies/per-ip", &[("if-none-match", tag)], "").await;
    assert_eq!((again.status, again.text.as_str()), (StatusCode::NOT_MODIFIED, ""));
    let all = server.get("/v1/policies").await.json();
    assert_eq!((&all["policies"][0]["name"], &all["config"]["number"]), (&json!("per-ip"), &json!(1)));
    let unknown = server.get("/v1/policies/per-pi").await;
    assert!(unknown.detail().contains("did you mean \"per-ip\"?"), "{}", unknown.detail());
}

#[tokio::test]
async fn the_keys_denied_most_are_listed_hidden_and_can_be_let_go() {
    let server = start(FILE).await;
    for (ip, times) in [("203.0.113.9", 8), ("198.51.100.1", 4), ("192.0.2.1", 1)] {
        for _ in 0..times {
            server.check(ip).await;
        }
    }
    let top = server.get("/v1/keys/top?policy=per-ip&by=denied").await;
    assert!(!top.text.contains("203.0.113.9"));
    assert_eq!((&top.json()["counted"], &top.json()["largest_error"]), (&json!(6), &json!(0)));
    let shown = server.get("/v1/keys/top?reveal=true&limit=1").await.json();
    let first = json!({ "policy": "per-ip", "mode": "enforce", "key": "client.ip=203.0.113.9", "count": 5, "error": 0 });
    assert_eq!(shown["keys"], json!([first]));
    assert_eq!(server.get("/v1/keys/top?by=near").await.json()["counted"], 2, "the third of three");
    assert!(server.get("/v1/keys/top?by=all").await.detail().contains("use `denied` or `near`"));

    let reset = async |query: &str| {
        send(server.addr, Method::DELETE, &format!("/v1/keys/per-ip{query}"), &[], "").await
    };
    assert_eq!(server.check("203.0.113.9").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(reset("?client.ip=203.0.113.9").await.status, StatusCode::OK);
    assert_eq!(server.check("203.0.113.9").await.json()["remaining"], 2);
    assert!(reset("").await.detail().contains("`client.ip` is missing"));
    assert!(reset("?user.id=1").await.detail().contains("`user.id` is not part of the key"));
    // Regression: the first of the two was reset, whichever the operator meant.
    let twice = reset("?client.ip=203.0.113.9&client%2Eip=203.0.113.8").await;
    assert!(twice.detail().contains("`client.ip` is given twice"), "{}", twice.text);
}

/// Regression: a refusal by the list of the whole file was in no metric and in no list of keys, and a refusal by a
/// policy's list or a block was in no list of keys.
#[tokio::test]
async fn refusals_by_lists_and_blocks_are_counted() {
    let server = start(LISTS).await;
    for (ip, user, status) in [
        ("198.51.100.1", "a", StatusCode::FORBIDDEN),
        ("198.51.100.2", "a", StatusCode::FORBIDDEN),
        ("203.0.113.1", "mallory", StatusCode::FORBIDDEN),
        ("203.0.113.2", "eve", StatusCode::FORBIDDEN),
        ("203.0.113.3", "b", StatusCode::OK),
    ] {
        let body = format!(r#"{{"attributes": {{"client.ip": "{ip}", "user.id": "{user}"}}}}"#);
        assert_eq!(server.post("/v1/check", &body).await.status, status, "{ip} {user}");
    }
    let put = r#"{"block": {"for": "10min"}}"#;
    server.put("/v1/keys/per-ip?client.ip=203.0.113.4", put).await;
    assert_eq!(server.check("203.0.113.4").await.status, StatusCode::FORBIDDEN);
    let metrics = server.get("/metrics").await.text;
    for line in [
        r#"tidegate_decisions_total{policy="(access.deny)",decision="denied",mode="enforce"} 3"#,
        r#"tidegate_decisions_total{policy="per-ip",decision="denied",mode="enforce"} 2"#,
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}: {metrics}");
    }
    let top = server.get("/v1/keys/top?reveal=true").await.json();
    assert_eq!(top["counted"], 5);
    assert_eq!(
        top["keys"][0],
        json!({ "policy": "(access.deny)", "mode": "enforce", "key": "client.ip=198.51.100.0/24", "count": 2, "error": 0 })
    );
    let of = async |query: &str| server.get(&format!("/v1/keys/top?reveal=true&{query}")).await.json();
    let list = of("policy=(access.deny)").await;
    assert_eq!((&list["counted"], &list["keys"][1]["key"]), (&json!(3), &json!("user.id=mallory")));
    let policy = of("policy=per-ip").await;
    let keys: Vec<_> = policy["keys"].as_array().unwrap().iter().map(|row| &row["key"]).collect();
    assert!(keys.contains(&&json!("client.ip=203.0.113.2")), "by its list: {keys:?}");
    assert!(keys.contains(&&json!("client.ip=203.0.113.4")), "by a block: {keys:?}");
    assert_eq!(of("by=near").await["counted"], 0);
}

const LISTS: &str = "
version: 1
access: { deny: [198.51.100.0/24, user.id=mallory] }
policies:
  - name: per-ip
    by: [client.ip]
    access: { deny: [user.id=eve] }
    limit: { algorithm: gcra, rate: 10/min, burst: 3 }
";

/// Regression: `DELETE /v1/keys/top` was answered with 405, because the list of keys has that path, so a policy of this
/// name could not be reset.
#[tokio::test]
async fn a_policy_of_any_name_can_be_shown_and_let_go() {
    let names = ["top", "a/b", "a+b", "a b", "..."];
    let policies: Vec<_> = names
        .iter()
        .map(|name| json!({ "name": name, "by": "client.ip", "limit": { "rate": "1/day" } }))
        .collect();
    let server = start(&json!({ "version": 1, "policies": policies }).to_string()).await;
    server.check("192.0.2.1").await;
    for (name, path) in [("top", "top"), ("a/b", "a%2Fb"), ("a+b", "a+b"), ("a b", "a%20b"), ("...", "...")] {
        assert_eq!(server.get(&format!("/v1/policies/{path}")).await.json()["name"], name);
        let path = format!("/v1/keys/{path}?client.ip=192.0.2.1");
        let reset = send(server.addr, Method::DELETE, &path, &[], "").await;
        assert_eq!((reset.status, &reset.json()["policy"]), (StatusCode::OK, &json!(name)));
    }
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK, "all of them were let go");
    assert!(server.get("/v1/keys/top").await.json()["keys"].is_array());
    let put = server.put("/v1/keys/top", "").await;
    assert_eq!(put.status, StatusCode::BAD_REQUEST, "of the policy `top`, and without a body");
}

#[tokio::test]
async fn health_version_schema_and_metrics() {
    let server = start(FILE).await;
    server.check("192.0.2.1").await;
    assert_eq!(server.get("/livez").await.text, "ok\n");
    assert_eq!(server.get("/healthz").await.text, "ok\n");
    let verbose = server.get("/readyz?verbose").await.text;
    assert!(verbose.contains("[+] config #1 in force, 1 policy\n[+] store memory: 1 of "), "{verbose}");
    assert_eq!(server.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let schema = server.get("/config.schema.json").await;
    assert_eq!(schema.json()["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let metrics = server.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
    let text = send(server.addr, Method::GET, "/metrics", &[("accept", "text/plain")], "").await;
    assert_eq!(text.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(text.text.contains("# TYPE tidegate_decisions_total counter\n") && !text.text.contains("# EOF"));
    for line in [
        "tidegate_decisions_total{policy=\"per-ip\",decision=\"allowed\",mode=\"enforce\"} 1",
        "tidegate_policy_limit{policy=\"per-ip\"} 3.0",
        "tidegate_config_last_reload_successful 1",
        "tidegate_store_keys 1",
        "tidegate_decision_duration_seconds_count{transport=\"http\"} 1",
    ] {
        assert!(metrics.text.lines().any(|have| have == line), "{line}: {}", metrics.text);
    }
}

/// It was ready with `[+] config #1 in force, 0 policies`, and the reload had no warning.
#[tokio::test]
async fn a_file_without_policies_is_told() {
    let server = start("version: 1\npolicies: []\n").await;
    let told = async || server.get("/readyz?verbose").await.text;
    let empty = "config #1 in force, 0 policies: nothing is limited\n";
    assert!(told().await.contains(&format!("[!] {empty}")), "{}", told().await);
    let warnings = server.post("/v1/reload", "").await.json()["warnings"].to_string();
    assert!(warnings.starts_with("[\"no policy: nothing is limited; write policies: ["), "{warnings}");
    let put = server.put("/v1/policies/all", "limit: { rate: 1/s }").await;
    assert!(!put.text.contains("nothing is limited"), "{}", put.text);
    assert!(told().await.contains(" in force, 1 policy\n"), "{}", told().await);
    let reload = async || server.post("/v1/reload", "").await.json();
    assert_eq!(reload().await["warnings"], json!([]), "it has a policy, of the API");
    std::fs::write(&server.file, "version: 1\naccess: { deny: [198.51.100.0/24] }\npolicies: []\n").unwrap();
    send(server.addr, Method::DELETE, "/v1/policies/all", &[], "").await;
    assert_eq!(reload().await["warnings"], json!([]), "a list refuses");
}

#[tokio::test]
async fn series_are_as_many_as_the_policies_whatever_callers_send() {
    let server = start(FILE).await;
    server.check("192.0.2.1").await;
    let before = server.get("/metrics").await.text.lines().count();
    for at in 0..200 {
        let body =
            format!(r#"{{"attributes": {{"client.ip": "{at}", "x{at}": {at}}}, "cost": {}}}"#, 1 + at % 5);
        server.post("/v1/check", &body).await;
    }
    assert_eq!(server.get("/metrics").await.text.lines().count(), before);
}

#[tokio::test]
async fn a_reload_keeps_counters_and_a_bad_file_changes_nothing() {
    let server = start(FILE).await;
    server.check("192.0.2.1").await;
    server.check("192.0.2.1").await;
    std::fs::write(&server.file, FILE.replace("burst: 3", "burst: 5")).unwrap();
    let reloaded = server.post("/v1/reload", "").await;
    assert_eq!((reloaded.status, &reloaded.json()["policies"]), (StatusCode::OK, &json!(1)));
    assert_eq!(server.check("192.0.2.1").await.json()["remaining"], 2, "two of five were spent before");

    std::fs::write(&server.file, FILE.replace("rate: 10/min", "rate: 10/M").replace("client.ip", ""))
        .unwrap();
    let refused = server.post("/v1/reload", "").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let diagnostics = refused.json()["diagnostics"].to_string();
    assert!(diagnostics.contains("tidegate.yaml:6:"), "{diagnostics}");
    assert_eq!(server.check("192.0.2.1").await.json()["remaining"], 1, "the old policies are in force");
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("tidegate_config_last_reload_successful 0"));
    assert!(metrics.contains("decision=\"allowed\",mode=\"enforce\"} 4"), "{metrics}");
    let ready = server.get("/readyz?verbose").await;
    assert_eq!(ready.status, StatusCode::OK, "the old configuration serves on");
    assert!(ready.text.contains("the last reload was refused"), "{}", ready.text);

    std::fs::write(&server.file, FILE.replace("per-ip", "per-address")).unwrap();
    server.handle.reload().await.unwrap();
    assert!(
        !server.get("/metrics").await.text.contains("policy=\"per-ip\""),
        "series of what is gone are dropped"
    );
}

#[tokio::test]
async fn a_file_that_changes_is_read_again() {
    let server = start(FILE).await;
    server.write(&FILE.replace("burst: 3", "burst: 7"));
    until("the new limit is in force", async || server.check("192.0.2.1").await.json()["limit"] == 7).await;
    server.write("nonsense: [");
    until("the bad file is refused", async || {
        server.get("/metrics").await.text.contains("tidegate_config_last_reload_successful 0")
    })
    .await;
    assert_eq!(server.check("192.0.2.1").await.json()["limit"], 7);
}

#[tokio::test]
async fn a_token_is_asked_for_everywhere_but_health() {
    let token = "0123456789abcdef0123";
    let server = start_with(FILE, |mut options| {
        options.token = Some(Token::new(token).unwrap());
        options
    })
    .await;
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
    for path in ["/metrics", "/v1/policies", "/v1/forward-auth", "/nowhere", "/version"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tidegate\"");
    }
    // Health is public; the results of the checks are not.
    let public = "[+] serving\nready\n";
    let wrong = [("x-tidegate-token", "0123456789abcdef0124")];
    for headers in [&[][..], &wrong] {
        assert_eq!(send(server.addr, Method::GET, "/readyz?verbose", headers, "").await.text, public);
        assert_eq!(send(server.addr, Method::GET, "/healthz?verbose", headers, "").await.text, public);
    }
    let bearer = format!("Bearer {token}");
    let all = send(server.addr, Method::GET, "/readyz?verbose", &[("authorization", &bearer)], "").await.text;
    assert!(all.contains("[+] config #1 in force, 1 policy"), "{all}");
    let shown = send(server.addr, Method::GET, "/version", &[("authorization", &bearer)], "").await;
    assert_eq!(shown.status, StatusCode::OK);
    let wrong = send(server.addr, Method::GET, "/version", &[("x-tidegate-token", "guess")], "").await;
    assert!(wrong.detail().contains("the token is wrong"));
}

#[tokio::test]
async fn web_pages_cannot_use_a_server_without_a_token() {
    let server = start(FILE).await;
    for headers in [&[("origin", "https://evil.example")][..], &[("host", "evil.example")]] {
        let answer = send(server.addr, Method::POST, "/v1/reload", headers, "").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        let health = send(server.addr, Method::GET, "/readyz?verbose", headers, "").await;
        assert_eq!(health.text, "[+] serving\nready\n", "a page learns no more than a load balancer");
    }
}

/// Regression: a file that replaced the config file was read without a bound, or waited for, or not noticed at all.
#[cfg(unix)]
#[tokio::test]
async fn a_file_that_became_something_else_is_refused_at_once_and_reloads_go_on() {
    let server = start(FILE).await;
    let beside = server.file.with_extension("new");
    let pipe = || {
        assert!(std::process::Command::new("mkfifo").arg(&beside).status().unwrap().success());
    };
    let zero = || std::os::unix::fs::symlink("/dev/zero", &beside).unwrap();
    let large = || std::fs::write(&beside, vec![b'#'; (4 << 20) + 1]).unwrap();
    let hostile: [(&dyn Fn(), &str); 3] = [
        (&pipe, "is a pipe; only a regular file is read"),
        (&zero, "is a device; only a regular file is read"),
        (&large, "is longer than 4 MiB"),
    ];
    for (plant, words) in hostile {
        plant();
        std::fs::rename(&beside, &server.file).unwrap();
        until("the watch notices", async || server.get("/readyz?verbose").await.text.contains(words)).await;
        let refused = server.post("/v1/reload", "").await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    server.write(&FILE.replace("burst: 3", "burst: 7"));
    until("a good file is read", async || server.check("192.0.2.1").await.json()["limit"] == 7).await;
}

#[tokio::test]
async fn what_others_can_reach_is_not_bound_without_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, FILE).unwrap();
    for open in ["0.0.0.0:0", "[::]:0", "[::ffff:192.0.2.1]:0"] {
        let mut options = ServerOptions::default();
        options.http = open.parse().unwrap();
        let error = Server::bind(options, Source::file(&file)).await.unwrap_err();
        assert!(matches!(error, ServeError::Open { .. }), "{error}");
        assert!(error.to_string().contains("needs a token; set TIDEGATE_TOKEN"), "{error}");
    }
    std::fs::write(&file, "version: 2").unwrap();
    let mut options = ServerOptions::default();
    options.http = SocketAddr::from(([127, 0, 0, 1], 0)).into();
    let error = Server::bind(options, Source::file(&file)).await.unwrap_err();
    assert!(error.to_string().contains("tidegate.yaml:"), "{error}");
}
