//! Dry runs: how a request would be answered, under the policies in force and under proposed ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{Answer, Running, start};
use http::StatusCode;
use serde_json::{Value, json};

const FILE: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 3 }
";

async fn tried(server: &Running, config: Option<&str>) -> Answer {
    let mut body = json!({ "check": { "attributes": { "client.ip": "203.0.113.9" } } });
    if let Some(config) = config {
        body["config"] = config.into();
    }
    server.post("/v1/dry-run", &body.to_string()).await
}

#[tokio::test]
async fn a_request_is_tried_under_proposed_policies_over_the_counters_that_are_there() {
    let server = start(FILE).await;
    for _ in 0..3 {
        server.check("203.0.113.9").await;
    }
    let now = tried(&server, None).await.json();
    assert_eq!(
        (&now["decision"], &now["status"], &now["config"]),
        (&json!("denied"), &json!(429), &json!("in-force"))
    );
    let wider = FILE.replace("burst: 3", "burst: 5");
    let after = tried(&server, Some(&wider)).await.json();
    assert_eq!((&after["decision"], &after["status"]), (&json!("allowed"), &json!(200)));
    assert_eq!(
        (&after["config"], &after["remaining"]),
        (&json!("proposed"), &json!(2)),
        "two of five are left"
    );
    assert!(after["lines"][1].as_str().unwrap().contains("burst 5"), "{after}");
    assert_eq!(tried(&server, Some(&wider)).await.json()["remaining"], 2, "nothing was taken");
    assert_eq!(server.check("203.0.113.9").await.status, StatusCode::TOO_MANY_REQUESTS, "nor put in force");
    let status = FILE.replace("    limit:", "    deny: { status: 503 }\n    limit:");
    assert_eq!(tried(&server, Some(&status)).await.json()["status"], 503);
    let listed = format!("{FILE}access: {{ deny: [203.0.113.0/24] }}\n");
    assert_eq!(tried(&server, Some(&listed)).await.json()["status"], 403);
    let toml = "version = 1\n[[policies]]\nname = \"x\"\nlimit = { rate = \"5/s\" }\n";
    assert_eq!(tried(&server, Some(toml)).await.json()["policy"], "x");
}

/// Otherwise a caller that proposes policies under ever new names would make a series for each.
#[tokio::test]
async fn proposed_policies_leave_no_series_and_are_found_nowhere_else() {
    let server = start(FILE).await;
    server.check("203.0.113.9").await;
    let before = server.get("/metrics").await.text.lines().count();
    for at in 0..20 {
        let named = FILE.replace("per-ip", &format!("other-{at}"));
        assert_eq!(tried(&server, Some(&named)).await.json()["policy"], format!("other-{at}"));
    }
    assert_eq!(server.get("/metrics").await.text.lines().count(), before);
    assert_eq!(server.get("/v1/policies").await.json()["policies"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn mistakes_have_their_line_and_column_and_sizes_have_bounds() {
    let server = start(FILE).await;
    let wrong = tried(&server, Some(&FILE.replace("10/min", "10/M"))).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    let said = wrong.json();
    assert_eq!((&said["line"], &said["column"]), (&json!(6), &json!(37)), "{said}");
    assert!(
        said["diagnostics"][0].as_str().unwrap().starts_with("config:6:37  error  policy \"per-ip\": rate")
    );
    let strict = FILE.replace("    limit:", "    durable: strict\n    limit:");
    let unfit = tried(&server, Some(&strict)).await;
    assert_eq!(
        unfit.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "the store of this server keeps nothing: {}",
        unfit.text
    );
    let long = tried(&server, Some(&"#".repeat(256 * 1024 + 1))).await;
    assert_eq!((long.status, &long.json()["max_bytes"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!(262_144)));
    let body = async |body: Value| server.post("/v1/dry-run", &body.to_string()).await.detail();
    assert!(body(json!({})).await.contains("`check` is missing"));
    assert!(body(json!({ "chek": 1 })).await.contains("did you mean `check`?"));
    let only = json!({ "check": { "attributes": {}, "policies": ["per-ip"] }, "config": FILE.replace("per-ip", "per-id") });
    assert!(body(only).await.contains("did you mean \"per-id\"?"));
    let number = json!({ "check": { "attributes": {} }, "config": 1 });
    assert!(body(number).await.contains("`config` as the text of a file"));
    assert_eq!(server.get("/v1/dry-run").await.status, StatusCode::METHOD_NOT_ALLOWED);
}
