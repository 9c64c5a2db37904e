//! The keys of a policy: listed, read, blocked for a while and released.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::{Answer, Running, send, start};
use http::{Method, StatusCode};
use serde_json::json;

const FILE: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 3 }
  - name: trial
    mode: shadow
    by: [client.ip]
    limit: { rate: 1/min }
";

async fn block(server: &Running, ip: &str, body: &str) -> Answer {
    server.put(&format!("/v1/keys/per-ip?client.ip={ip}"), body).await
}

const TEN_MINUTES: &str = r#"{"block": {"for": "10min", "reason": "credential stuffing"}}"#;

#[tokio::test]
async fn a_blocked_key_is_refused_until_the_block_ends_or_is_ended() {
    let server = start(FILE).await;
    let put = block(&server, "203.0.113.9", TEN_MINUTES).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.text);
    assert_eq!(put.json()["block"]["until"], "2027-01-15T12:10:00.000Z");
    assert!(!put.text.contains("203.0.113.9"), "hidden as elsewhere");
    let refused = server.check("203.0.113.9").await;
    assert_eq!((refused.status, refused.header("retry-after")), (StatusCode::FORBIDDEN, "600"));
    assert!(
        refused.detail().contains("blocked under policy \"per-ip\" for 10 min more: credential stuffing")
    );
    assert_eq!(
        (&refused.json()["decision"], &refused.json()["policy"]),
        (&json!("denied"), &json!("per-ip"))
    );
    assert_eq!(server.check("203.0.113.8").await.status, StatusCode::OK);
    let body = r#"{"attributes": {"client.ip": "203.0.113.9"}}"#;
    let explained = server.post("/v1/explain", body).await.json();
    assert_eq!(
        explained["lines"][0],
        "DENIED by a block of its key under per-ip for 10 min more: credential stuffing"
    );
    let metrics = server.get("/metrics").await.text;
    for line in ["tidegate_blocked_total{policy=\"per-ip\"} 1", "tidegate_blocked_keys{policy=\"per-ip\"} 1"]
    {
        assert!(metrics.lines().any(|have| have == line), "{line}: {metrics}");
    }
    // A reload keeps the block.
    server.post("/v1/reload", "").await;
    assert_eq!(server.check("203.0.113.9").await.status, StatusCode::FORBIDDEN);
    let gone = send(server.addr, Method::DELETE, "/v1/keys/per-ip?client.ip=203.0.113.9", &[], "").await;
    assert_eq!((gone.status, &gone.json()["unblocked"]), (StatusCode::OK, &json!(true)));
    assert_eq!(server.check("203.0.113.9").await.status, StatusCode::OK);
    block(&server, "203.0.113.7", TEN_MINUTES).await;
    server.clock.advance(Duration::from_secs(600));
    assert_eq!(server.check("203.0.113.7").await.status, StatusCode::OK, "it has ended by itself");
}

/// `DELETE` also forgets what the key has spent; whoever only takes back a block must not hand out a fresh limit.
#[tokio::test]
async fn a_block_is_ended_without_forgetting_what_the_key_has_spent() {
    let server = start(FILE).await;
    for _ in 0..3 {
        assert_eq!(server.check("203.0.113.9").await.status, StatusCode::OK);
    }
    block(&server, "203.0.113.9", TEN_MINUTES).await;
    for unblocked in [true, false] {
        let put = block(&server, "203.0.113.9", r#"{"block": null}"#).await;
        assert_eq!(put.status, StatusCode::OK, "{}", put.text);
        assert_eq!(
            (&put.json()["block"], &put.json()["unblocked"]),
            (&json!(null), &json!(unblocked)),
            "{}",
            put.text
        );
        assert!(!put.text.contains("203.0.113.9"), "hidden as elsewhere");
    }
    assert_eq!(server.check("203.0.113.9").await.status, StatusCode::TOO_MANY_REQUESTS);
    // It works in every mode: a block set while the policy was enforced can be ended after a change to shadow.
    let shadow = server.put("/v1/keys/trial?client.ip=192.0.2.1", r#"{"block": null}"#).await;
    assert_eq!((shadow.status, &shadow.json()["unblocked"]), (StatusCode::OK, &json!(false)));
}

#[tokio::test]
async fn the_one_key_of_a_policy_without_by_is_always_listed() {
    let server = start("version: 1\npolicies:\n  - { name: all, limit: { rate: 10/min, burst: 3 } }\n").await;
    server.check("203.0.113.9").await;
    let listed = server.get("/v1/keys/all").await.json();
    assert_eq!((&listed["known"], &listed["keys"][0]["key"]), (&json!(1), &json!("(all)")), "{listed}");
    assert_eq!(listed["keys"][0]["standing"][0]["remaining"], 2, "{listed}");
}

#[tokio::test]
async fn a_block_that_makes_no_sense_is_refused_and_says_why() {
    let server = start(FILE).await;
    for (body, words) in [
        ("", "the body is empty; send JSON such as {\"block\""),
        ("{}", "`block` is missing"),
        (r#"{"block": {}}"#, "`for` is missing"),
        (r#"{"block": ["1h", "x"]}"#, "expected an object such as {\"block\""),
        (r#"{"block": {"for": 3600}}"#, "expected `for` as a string"),
        (r#"{"block": {"for": "10x"}}"#, "x"),
        (r#"{"block": {"for": "0s"}}"#, "is not a time to block a key for"),
        (r#"{"block": {"for": "31d"}}"#, "use up to 30d"),
        (r#"{"block": {"for": "1h", "reason": "a\nb"}}"#, "control character"),
        (r#"{"block": {"for": "1h", "resaon": "x"}}"#, "unknown field `resaon`"),
    ] {
        let answer = block(&server, "203.0.113.9", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.detail().contains(words), "{body}: {}", answer.detail());
    }
    let long = format!(r#"{{"block": {{"for": "1h", "reason": "{}"}}}}"#, "x".repeat(256));
    assert!(block(&server, "203.0.113.9", &long).await.detail().contains("has 256 bytes"));
    let shadow = server.put("/v1/keys/trial?client.ip=192.0.2.1", TEN_MINUTES).await;
    assert_eq!(shadow.status, StatusCode::CONFLICT, "{}", shadow.text);
    let keyless = server.put("/v1/keys/per-ip", TEN_MINUTES).await;
    assert!(keyless.detail().contains("`client.ip` is missing"));
    let unknown = server.put("/v1/keys/per-pi?client.ip=192.0.2.1", TEN_MINUTES).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_keys_of_a_policy_are_listed_by_pages_with_how_they_stand() {
    let server = start(FILE).await;
    for (ip, times) in [("203.0.113.9", 8), ("198.51.100.1", 4)] {
        for _ in 0..times {
            server.check(ip).await;
        }
    }
    block(&server, "192.0.2.1", TEN_MINUTES).await;
    let hidden = server.get("/v1/keys/per-ip").await;
    assert!(!hidden.text.contains("203.0.113.9"), "{}", hidden.text);
    let first = server.get("/v1/keys/per-ip?reveal=true&limit=2").await.json();
    assert_eq!((&first["known"], &first["next"]), (&json!(3), &json!(2)), "{first}");
    assert_eq!(first["keys"][0]["key"], "client.ip=192.0.2.1");
    assert_eq!(first["keys"][0]["block"]["reason"], "credential stuffing");
    let second = &first["keys"][1];
    assert_eq!((&second["key"], &second["denied"]), (&json!("client.ip=203.0.113.9"), &json!(5)));
    assert_eq!((&second["standing"][0]["remaining"], &second["standing"][0]["most"]), (&json!(0), &json!(3)));
    let last = server.get("/v1/keys/per-ip?reveal=true&limit=2&from=2").await.json();
    assert_eq!((&last["keys"][0]["key"], &last["next"]), (&json!("client.ip=198.51.100.1"), &json!(null)));
    let one = server.get("/v1/keys/per-ip?client.ip=203.0.113.200").await.json();
    assert_eq!((&one["denied"], &one["standing"][0]["remaining"]), (&json!(0), &json!(3)), "of any key");
    for (query, words) in
        [("limit=101", "use 1 to 100"), ("from=-1", "is not possible"), ("form=1", "did you mean `from`?")]
    {
        let answer = server.get(&format!("/v1/keys/per-ip?{query}")).await;
        assert!(answer.detail().contains(words), "{query}: {}", answer.detail());
    }
    assert_eq!(server.check("203.0.113.200").await.json()["remaining"], 2, "looking took nothing");
}

/// One request blocks a caller under every policy, and where no policy would have met it.
#[tokio::test]
async fn a_caller_is_blocked_for_all_policies_at_once() {
    let server = start(FILE).await;
    let put = async |query: &str, body: &str| server.put(&format!("/v1/keys{query}"), body).await;
    let done = put("?client.ip=203.0.113.0/24", TEN_MINUTES).await;
    assert_eq!((done.status, &done.json()["policy"]), (StatusCode::OK, &json!(null)), "{}", done.text);
    assert_eq!(done.json()["block"]["until"], "2027-01-15T12:10:00.000Z");
    assert_eq!(done.json()["addresses"], 256);
    for large in ["0.0.0.0/0", "0.0.0.0/7", "::/0", "2000::/3", "2001::/15"] {
        let refused = put(&format!("?client.ip={large}"), TEN_MINUTES).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{large}: {}", refused.text);
    }
    let refused = server.check("203.0.113.9").await;
    assert_eq!((refused.status, refused.header("retry-after")), (StatusCode::FORBIDDEN, "600"));
    let says = "203.0.113.0/24 is blocked for all policies for 10 min more: credential stuffing; nothing was charged";
    assert_eq!(refused.detail(), says);
    let elsewhere = server
        .post(
            "/v1/check",
            r#"{"attributes": {"client.ip": "203.0.113.9", "request.path": "/none"}, "policies": ["trial"]}"#,
        )
        .await;
    assert_eq!(elsewhere.status, StatusCode::FORBIDDEN, "whatever the policies say: {}", elsewhere.text);
    assert_eq!(server.check("203.0.114.9").await.status, StatusCode::OK);

    let body = r#"{"attributes": {"client.ip": "203.0.113.9"}}"#;
    let first = "DENIED by a block for all policies for 10 min more: credential stuffing";
    assert_eq!(server.post("/v1/explain", body).await.json()["lines"][0], first);
    let id = refused.json()["decision_id"].as_str().unwrap().to_owned();
    let record = server.get(&format!("/v1/explain?id={id}&reveal=true")).await.json();
    assert_eq!((&record["refused_by"], &record["cause"]), (&json!("block"), &json!("credential stuffing")));
    assert_eq!((&record["policy"], &record["key"]), (&json!(null), &json!("client.ip=203.0.113.0/24")));
    let key = server.get("/v1/keys/per-ip?client.ip=203.0.113.9").await.json();
    assert_eq!(key["block"]["reason"], "credential stuffing", "{key}");
    let listed = server.get("/v1/keys?reveal=true").await.json();
    assert_eq!(
        (&listed["known"], &listed["keys"][0]["key"]),
        (&json!(1), &json!("client.ip=203.0.113.0/24"))
    );
    assert_eq!(listed["keys"][0]["denied"], 2);
    assert!(!server.get("/v1/keys").await.text.contains("203.0.113"), "digests");
    let metrics = server.get("/metrics").await.text;
    for line in [
        "tidegate_blocked_total{policy=\"(blocked)\"} 2",
        "tidegate_blocked_keys{policy=\"(blocked)\"} 1",
        "tidegate_decisions_total{policy=\"(blocked)\",decision=\"denied\",mode=\"enforce\"} 2",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}: {metrics}");
    }
    server.post("/v1/reload", "").await;
    assert_eq!(server.check("203.0.113.9").await.status, StatusCode::FORBIDDEN, "a reload keeps it");

    let done = put("?client.ip=203.0.113.0/24", r#"{"block": null}"#).await;
    assert_eq!(done.json()["unblocked"], true, "{}", done.text);
    assert_eq!(server.check("203.0.113.9").await.status, StatusCode::OK);
    // An IPv6 address is the network that shares its capacity, as in keys.
    put("?client.ip=2001:db8:1:2:3::4", TEN_MINUTES).await;
    assert_eq!(server.check("2001:db8:1:2:ffff::1").await.status, StatusCode::FORBIDDEN);
    assert_eq!(server.check("2001:db8:1:3::1").await.status, StatusCode::OK);
    server.clock.advance(Duration::from_secs(600));
    assert_eq!(server.check("2001:db8:1:2:ffff::1").await.status, StatusCode::OK, "it has ended by itself");

    for (query, says) in [
        ("", "name one attribute of the caller"),
        ("?client.ip=192.0.2.1&user.id=b", "name one attribute of the caller"),
        ("?ip=8.8.8.8", "a block of it would refuse nobody; did you mean client.ip?"),
        ("?CLIENT.IP=8.8.8.8", "a block of it would refuse nobody; did you mean client.ip?"),
        (
            "?client.ip=10.0.0.5/8",
            "10.0.0.5/8 has host bits; write 10.0.0.5 for that address alone, or 10.0.0.0/8",
        ),
        ("?client.ip=nobody", "`nobody` is neither an address nor a network"),
        ("?client.ip=%3A%3Affff%3A203.0.113.0/120", "IPv4 is compared as IPv4; write 203.0.113.0/24"),
        (
            "?client.i=203.0.113.9",
            "no policy reads the attribute `client.i`, so a block of it would refuse nobody; did you mean client.ip?",
        ),
    ] {
        let wrong = put(query, TEN_MINUTES).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{query}");
        assert!(wrong.detail().contains(says), "{}", wrong.detail());
    }
}

/// Each of these said "is blocked", and blocked nobody.
#[tokio::test]
async fn a_block_is_of_one_key_and_says_how_far_it_reaches() {
    let server = start(FILE).await;
    for (value, says) in [
        (
            "9.9.9.0/24",
            "`9.9.9.0/24` is not one address, and one key of the policy is; for a network write `tidegate key block client.ip=9.9.9.0/24` without a policy",
        ),
        ("9.9.9.999", "client.ip is not an address: \"9.9.9.999\""),
        ("2001:db8::1/64", "send one address, not a network: 2001:db8::1"),
    ] {
        let refused = block(&server, value, TEN_MINUTES).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{value}");
        assert!(refused.detail().contains(says), "{}", refused.detail());
    }
    let blocked = block(&server, "2001:db8::1", TEN_MINUTES).await.json();
    assert_eq!(blocked["network"], "2001:db8::/64", "{blocked}");
    assert_eq!(server.check("2001:db8::2").await.status, StatusCode::FORBIDDEN);
    // As keys are listed.
    let listed = server.put("/v1/keys/per-ip?client.ip=2001:db8::/64", r#"{"block": null}"#).await;
    assert_eq!(listed.json()["unblocked"], true, "{}", listed.text);
    assert_eq!(block(&server, "203.0.113.9", TEN_MINUTES).await.json().get("network"), None);
}

#[tokio::test]
async fn a_reload_says_which_blocks_no_longer_hold() {
    let file = FILE.split("  - name: trial").next().unwrap();
    let told = |answer: &Answer| answer.text.contains("no longer holds");
    for (from, to, why) in [
        ("name: per-ip", "name: per-address", "no policy has that name any more"),
        ("by: [client.ip]", "by: [client.ip, user.id]", "it has other keys now (`by`)"),
        ("name: per-ip", "name: per-ip\n    mode: shadow", "it is not enforced any more"),
    ] {
        let server = start(file).await;
        block(&server, "203.0.113.9", TEN_MINUTES).await;
        assert!(!told(&server.post("/v1/reload", "").await), "nothing changed");
        server.write(&file.replace(from, to));
        let reloaded = server.post("/v1/reload", "").await.text;
        let says = format!("policy \\\"per-ip\\\": 1 block no longer holds, since {why}");
        assert!(reloaded.contains(&says), "{reloaded}");
    }
}

/// A file in shadow mode alone refuses nobody, which is easily forgotten.
#[tokio::test]
async fn readiness_tells_that_no_policy_refuses() {
    let ready = async |server: &Running| server.get("/readyz?verbose").await.text;
    assert!(ready(&start(FILE).await).await.contains("[+] config #1 in force, 2 policies"));
    let shadow = FILE
        .replace("    by: [client.ip]\n    limit: { algorithm", "    mode: shadow\n    limit: { algorithm");
    let told = ready(&start(&shadow).await).await;
    assert!(
        told.contains("[!] config #1 in force, 2 policies, and none refuses: all are in shadow mode or off"),
        "{told}"
    );
}
