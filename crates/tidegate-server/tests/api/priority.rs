//! Priorities at the doors: who may set one, and what a refusal says about the part that is kept back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{Answer, Running, send, start};
use http::{Method, StatusCode};
use serde_json::json;

const FILE: &str = "
version: 1
policies:
  - name: backend
    limit: { rate: 10/min, keep_for: { critical: 20%, critical-plus: 1 } }
";

async fn check(server: &Running, more: &str) -> Answer {
    server.post("/v1/check", &format!(r#"{{"attributes": {{"client.ip": "192.0.2.1"}}{more}}}"#)).await
}

#[tokio::test]
async fn a_check_says_its_priority_and_a_refusal_what_is_kept() {
    let server = start(FILE).await;
    let first = check(&server, r#", "priority": "sheddable", "cost": 7"#).await;
    let body = first.json();
    assert_eq!((first.status, &body["remaining"], &body["limit"]), (StatusCode::OK, &json!(1), &json!(10)));
    assert_eq!(body["policies"][0]["kept_back"], 2);
    assert!(first.header("ratelimit").contains("r=1"), "{first:?}");
    let refused = check(&server, r#", "priority": "sheddable/17", "cost": 2"#).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let told =
        "policy \"backend\" has 3 of 10 left, 2 kept for higher priority, and 2 asked for; try again in 6 s";
    assert_eq!(refused.detail(), told);
    assert_eq!(refused.json()["policies"][0]["decision"], "denied");

    let id = refused.json()["decision_id"].as_str().unwrap().to_owned();
    let explained = server.get(&format!("/v1/explain?id={id}&reveal=true")).await.json();
    let lines = explained["lines"].as_array().unwrap();
    assert!(lines[0].as_str().unwrap().ends_with("ago; retry after 6 s"), "{lines:?}");
    assert!(
        lines[1].as_str().unwrap().contains("needed 2, had 3 of 10, kept 2 for higher priority"),
        "{lines:?}"
    );
    assert_eq!(
        explained["now"]["reasons"][0]["limits"][0]["allowed_with"],
        json!({ "burst_at_least": 12, "cost_at_most": 1, "priority_at_least": "critical", "max_wait_at_least_ms": 6000 })
    );
    let asked =
        server.post("/v1/explain", r#"{"attributes": {}, "priority": "critical", "cost": 2}"#).await.json();
    assert_eq!(asked["decision"], "allowed");

    let never = check(&server, r#", "priority": "sheddable", "cost": 9"#).await;
    assert!(never.detail().ends_with(
        "never grants a cost of 9: its limit is 10, 2 kept for higher priority; ask for less at a time"
    ));
    assert_eq!(check(&server, r#", "cost": 2"#).await.status, StatusCode::OK, "critical unless it is said");
    assert_eq!(check(&server, r#", "priority": null"#).await.status, StatusCode::TOO_MANY_REQUESTS);
    let last = check(&server, r#", "priority": "critical-plus""#).await;
    assert_eq!(last.status, StatusCode::OK);
    assert!(last.json()["policies"][0].get("kept_back").is_none());
}

/// Regression: a refusal of a low priority was told as one of a cost, with the advice to ask for less than one unit.
#[tokio::test]
async fn a_limit_that_is_kept_whole_names_the_priority_that_passes() {
    let door = "version: 1\nclient_ip: { trusted_proxies: [127.0.0.0/8] }\nforward_auth: { proxy: caddy, priority_header: X-Priority }\n";
    let file =
        FILE.replacen("version: 1\n", door, 1).replace("critical: 20%, critical-plus: 1", "critical: 100%");
    let server = start(&file).await;
    for cost in [1, 9] {
        let never = check(&server, &format!(r#", "priority": "sheddable", "cost": {cost}"#)).await;
        assert_eq!(
            never.detail(),
            "policy \"backend\" keeps all 10 of its limit for priority critical and above, so it grants nothing to this request; ask with \
             priority critical"
        );
    }
    let proxied = ask(&server, &["sheddable-plus"]).await;
    assert_eq!(proxied.detail(), "policy \"backend\" never allows a request of this priority");
    let costly = check(&server, r#", "cost": 11"#).await;
    assert!(costly.detail().ends_with("never grants a cost of 11: its limit is 10; ask for less at a time"));
}

#[tokio::test]
async fn what_is_no_priority_is_named() {
    let server = start(FILE).await;
    for (field, says) in [
        (
            r#""priority": "important""#,
            "`priority` \"important\" is not a priority; use critical-plus, critical, sheddable-plus or sheddable",
        ),
        (
            r#""priority": "critical/128""#,
            "`priority` \"critical/128\" names no cohort after its slash; use a whole number from 0 to 127",
        ),
        (r#""priority": 3"#, "expected `priority` as a text such as \"sheddable\""),
        (r#""priority": "critical", "priority": "critical""#, "`priority` is given twice"),
        (r#""prioritty": "critical""#, "did you mean `priority`?"),
    ] {
        let answer = check(&server, &format!(", {field}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field}");
        assert!(answer.detail().contains(says), "{}", answer.detail());
    }
    let batch = r#"[{"attributes": {}, "priority": "sheddable", "cost": 8}, {"attributes": {}, "priority": "sheddable"}, {"attributes": {}}]"#;
    let statuses: Vec<_> = server
        .post("/v1/check/batch", batch)
        .await
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["status"].clone())
        .collect();
    assert_eq!(statuses, [200, 429, 200]);
}

async fn behind(trusted: &str) -> Running {
    let door = format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [{trusted}] }}\nforward_auth: {{ proxy: caddy, priority_header: X-Priority }}\n"
    );
    start(&FILE.replacen("version: 1\n", &door, 1)).await
}

async fn ask(server: &Running, priority: &[&str]) -> Answer {
    let mut headers = vec![
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    headers.extend(priority.iter().map(|word| ("x-priority", *word)));
    send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await
}

#[tokio::test]
async fn a_proxy_of_ours_tells_the_priority_of_what_it_asks() {
    let server = behind("127.0.0.0/8").await;
    for (word, passes) in [("sheddable", 8), ("", 1), ("critical-plus", 1)] {
        for _ in 0..passes {
            assert_eq!(ask(&server, &[word]).await.status, StatusCode::OK, "{word}");
        }
        let refused = ask(&server, &[word]).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{word}");
        assert!(!refused.text.contains("kept"), "strangers are not told: {refused:?}");
    }
    let twice = ask(&server, &["critical-plus", "sheddable"]).await;
    assert!(
        twice.detail().contains("x-priority came several times; the proxy must set it itself"),
        "{twice:?}"
    );
    let unknown = ask(&server, &["vip"]).await;
    assert_eq!(
        (unknown.status, unknown.detail().contains("x-priority: `vip` is not a priority")),
        (StatusCode::BAD_REQUEST, true),
        "{unknown:?}"
    );
}

/// Regression: a request that lost its priority header on the way had the default priority. Now the file sets the
/// priority for that case.
#[tokio::test]
async fn a_request_that_lost_its_priority_has_the_one_that_the_file_says() {
    for trusted in ["127.0.0.0/8", "10.0.0.0/8"] {
        let door = format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [{trusted}] }}\n\
             forward_auth: {{ proxy: caddy, priority_header: X-Priority, default_priority: sheddable }}\n"
        );
        let server = start(&FILE.replacen("version: 1\n", &door, 1)).await;
        for words in [&[][..], &[""]].iter().cycle().take(8) {
            assert_eq!(ask(&server, words).await.status, StatusCode::OK);
        }
        for words in [&[][..], &[""]] {
            let refused = ask(&server, words).await;
            assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "two of ten are kept");
        }
        let said = ask(&server, &["critical"]).await.status;
        assert_eq!(said.is_success(), trusted.starts_with("127"), "the word of our proxy alone raises it");
    }
}

/// A request that does not come through a trusted proxy has the default priority, whatever it sends.
#[tokio::test]
async fn the_word_of_a_stranger_is_not_read() {
    let server = behind("10.0.0.0/8").await;
    for word in ["critical-plus", "sheddable", "no word", "critical-plus"].iter().cycle().take(9) {
        assert_eq!(ask(&server, &[word]).await.status, StatusCode::OK);
    }
    for words in [&["critical-plus"][..], &["critical-plus", "critical-plus"], &[]] {
        assert_eq!(ask(&server, words).await.status, StatusCode::TOO_MANY_REQUESTS, "one of ten is kept");
    }
}

/// Under one limit of 100, users of one level are refused one cohort after the other, each after all of the level below,
/// at each of the ways a priority comes in. Where nobody names a cohort nothing is different.
#[tokio::test]
async fn a_cohort_leaves_more_of_the_limit_than_an_earlier_one() {
    const FILE: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: traefik, priority_header: x-priority }
policies:
  - name: backend
    limit: { rate: 100/day, keep_for: { critical: 40%, critical-plus: 20% } }
";
    let server = start(FILE).await;
    assert_eq!(check(&server, r#", "cost": 70"#).await.status, StatusCode::OK);
    // Thirty are left. Critical requests leave 20 and a 128th of further 20 for each cohort.
    let peek = async |priority: &str| {
        let body = format!(r#"{{"attributes": {{}}, "priority": "{priority}"}}"#);
        let answer = server.post("/v1/peek", &body).await.json();
        (answer["decision"] == "allowed", answer["policies"][0]["kept_back"].as_u64().unwrap_or(0))
    };
    assert_eq!(peek("critical").await, (true, 20));
    assert_eq!(peek("critical/0").await, (true, 20));
    assert_eq!(peek("critical/63").await, (true, 29));
    assert_eq!(peek("critical/64").await, (false, 30));
    assert_eq!(peek("critical/127").await, (false, 39));
    assert_eq!(peek("sheddable-plus/0").await, (false, 40));
    assert_eq!(peek("critical-plus/127").await, (true, 19));

    let refused = check(&server, r#", "priority": "critical/127""#).await;
    assert!(refused.detail().contains("39 kept for higher priority"), "{}", refused.detail());
    let id = refused.json()["decision_id"].as_str().unwrap().to_owned();
    let explained = server.get(&format!("/v1/explain?id={id}&reveal=true")).await.json()["now"].take();
    let with = &explained["reasons"][0]["limits"][0]["allowed_with"];
    assert_eq!(with["priority_at_least"], "critical", "the same level in an earlier cohort: {explained}");
    assert_eq!(explained["reasons"][0]["limits"][0]["admitted_share"], 0.5, "{explained}");
    let says = "keeps 39 for higher priority and sheds critical: 50% of it is admitted now, cohorts 0 to 63 of 128; key";
    assert!(explained["lines"][1].as_str().unwrap().contains(says), "{explained}");
    // 70 spent, 1 asked for, and of 117 places 45 kept: 23 and 127/128 of 23.
    assert_eq!(with["burst_at_least"], 117, "{explained}");

    let ask = async |priority: &str| {
        let headers = [
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-host", "a"),
            ("x-priority", priority),
        ];
        send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await.status
    };
    assert_eq!(ask("critical/127").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("critical/10").await, StatusCode::OK);
    // What is no cohort is refused and not read as cohort 0, the best one.
    let wrong = check(&server, r#", "priority": "critical/128""#).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.text);
}
