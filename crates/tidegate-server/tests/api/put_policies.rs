//! Policies that are put and deleted through the API. Each has one owner.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;

use crate::running::{Answer, Running, on_disk, send, start, start_with};
use http::{Method, StatusCode};
use serde_json::json;
use tidegate_server::{Server, ServerOptions, Source};

const FILE: &str = "
version: 1
defaults: { near_limit: 50% }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 3 }
";

const PER_USER: &str = "by: [user.id]\nlimit: { rate: 2/min }\n";

async fn put(server: &Running, name: &str, headers: &[(&str, &str)], text: &str) -> Answer {
    send(server.addr, Method::PUT, &format!("/v1/policies/{name}"), headers, text).await
}

async fn delete(server: &Running, name: &str, headers: &[(&str, &str)]) -> Answer {
    send(server.addr, Method::DELETE, &format!("/v1/policies/{name}"), headers, "").await
}

async fn of_user(server: &Running, user: &str) -> StatusCode {
    server.post("/v1/check", &json!({ "attributes": { "user.id": user } }).to_string()).await.status
}

#[tokio::test]
async fn a_policy_is_put_shown_replaced_and_deleted() {
    let server = start(FILE).await;
    let new = put(&server, "per-user", &[], PER_USER).await;
    assert_eq!(new.status, StatusCode::CREATED, "{}", new.text);
    let said = new.json();
    assert_eq!((&said["owner"], &said["text"]), (&json!("api"), &json!(PER_USER)));
    assert_eq!(
        (&said["near_limit"], &said["survives_restart"]),
        (&json!("50%"), &json!(false)),
        "defaults of the file hold"
    );
    for expected in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(of_user(&server, "a").await, expected);
    }
    let shown = server.get("/v1/policies/per-user").await;
    assert_eq!(shown.header("etag"), new.header("etag"));
    let owners: Vec<_> = server.get("/v1/policies").await.json()["policies"].as_array().unwrap().clone();
    assert_eq!((&owners[0]["owner"], &owners[1]["owner"]), (&json!("file"), &json!("api")));
    assert!(owners[0]["place"].as_str().unwrap().ends_with("tidegate.yaml:5:5"), "{owners:?}");

    let json = json!({ "name": "per-user", "by": "user.id", "limit": { "rate": "4/min" } }).to_string();
    let replaced = put(&server, "per-user", &[], &json).await;
    assert_eq!(
        (replaced.status, &replaced.json()["limits"][0]["limit"]),
        (StatusCode::OK, &json!("gcra 4/min"))
    );
    assert_eq!(
        of_user(&server, "a").await,
        StatusCode::OK,
        "its counters went on, and two of four are spent"
    );

    let gone = delete(&server, "per-user", &[]).await;
    assert_eq!((gone.status, &gone.json()["deleted"]), (StatusCode::OK, &json!(true)));
    assert_eq!(server.get("/v1/policies/per-user").await.status, StatusCode::NOT_FOUND);
    assert!(!server.get("/metrics").await.text.contains("per-user"));
    assert_eq!(delete(&server, "per-user", &[]).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_name_has_one_owner() {
    let server = start(FILE).await;
    for answer in [put(&server, "per-ip", &[], PER_USER).await, delete(&server, "per-ip", &[]).await] {
        assert_eq!((answer.status, &answer.json()["owner"]), (StatusCode::CONFLICT, &json!("file")));
        let detail = answer.detail();
        assert!(
            detail.contains("the policy is in the file, at ") && detail.contains("tidegate.yaml:5:5"),
            "{detail}"
        );
    }
    assert_eq!(put(&server, "per-user", &[], PER_USER).await.status, StatusCode::CREATED);
    // A reload keeps the API's policies, and the file cannot take their names.
    std::fs::write(&server.file, FILE.replace("burst: 3", "burst: 5")).unwrap();
    assert_eq!(server.post("/v1/reload", "").await.json()["policies"], 2);
    std::fs::write(&server.file, format!("{FILE}  - {{ name: per-user, limit: {{ rate: 1/s }} }}\n"))
        .unwrap();
    let refused = server.post("/v1/reload", "").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let said = refused.json()["diagnostics"][0].as_str().unwrap().to_owned();
    assert!(said.contains("tidegate.yaml:8:5  error  policy \"per-user\" is owned by the API"), "{said}");
    assert_eq!(server.get("/v1/policies/per-user").await.json()["owner"], "api");
    // After the deletion the name is free, and the file may use it.
    assert_eq!(delete(&server, "per-user", &[]).await.status, StatusCode::OK);
    assert_eq!(server.post("/v1/reload", "").await.json()["policies"], 2);
    assert_eq!(server.get("/v1/policies/per-user").await.json()["owner"], "file");
}

#[tokio::test]
async fn a_change_is_made_only_to_what_the_caller_has_seen() {
    let server = start(FILE).await;
    let failed = put(&server, "per-user", &[("if-match", "*")], PER_USER).await;
    assert_eq!(failed.status, StatusCode::PRECONDITION_FAILED, "{}", failed.text);
    let new = put(&server, "per-user", &[("if-none-match", "*")], PER_USER).await;
    assert_eq!(new.status, StatusCode::CREATED);
    assert_eq!(
        put(&server, "per-user", &[("if-none-match", "*")], PER_USER).await.status,
        StatusCode::PRECONDITION_FAILED
    );
    let seen = new.header("etag");
    let second = PER_USER.replace("2/min", "3/min");
    assert_eq!(put(&server, "per-user", &[("if-match", seen)], &second).await.status, StatusCode::OK);
    assert_eq!(
        put(&server, "per-user", &[("if-match", seen)], PER_USER).await.status,
        StatusCode::PRECONDITION_FAILED
    );
    assert_eq!(
        delete(&server, "per-user", &[("if-match", seen)]).await.status,
        StatusCode::PRECONDITION_FAILED
    );
    let tag = server.get("/v1/policies/per-user").await.header("etag").to_owned();
    let known = send(server.addr, Method::GET, "/v1/policies/per-user", &[("if-none-match", &tag)], "").await;
    assert_eq!(known.status, StatusCode::NOT_MODIFIED);
    assert_eq!(delete(&server, "per-user", &[("if-match", &tag)]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_policy_is_validated_with_all_others_before_it_is_in_force() {
    let server = start(FILE).await;
    let wrong = put(&server, "x", &[], "by: [user.id]\nlimit: { rate: 10/M }\n").await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!((&wrong.json()["line"], &wrong.json()["column"]), (&json!(2), &json!(16)), "{}", wrong.text);
    let cases = [
        ("limit: { rate: 1/s }\nname: y\n", "policy x:2:7  error  the policy is put as \"x\""),
        ("- limit: { rate: 1/s }\n", "a policy is a map with a limit, found a list"),
        ("", "a policy is a map with a limit, found nothing"),
        ("limit: { rate: 1/s }\nwhen: policy nobody above 80%\n", "there is no policy \"nobody\""),
        ("version: 1\npolicies: []\n", "version"),
        ("limit: { rate: 1/s }\ndurable: strict\n", "durable"),
    ];
    for (text, words) in cases {
        let answer = put(&server, "x", &[], text).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
        let said = answer.json()["diagnostics"].to_string().replace("\\\"", "\"");
        assert!(said.contains(words), "{text}: {said}");
    }
    assert_eq!(server.get("/v1/policies").await.json()["config"]["number"], 1, "nothing was put in force");
    // A policy that others depend on cannot be deleted.
    assert_eq!(put(&server, "busy", &[], "limit: { rate: 5/s }").await.status, StatusCode::CREATED);
    let goes_by = "limit: { rate: 1/s }\nwhen: policy busy above 80%\n";
    assert_eq!(put(&server, "y", &[], goes_by).await.status, StatusCode::CREATED);
    let needed = delete(&server, "busy", &[]).await;
    assert_eq!(needed.status, StatusCode::UNPROCESSABLE_ENTITY);
    let said = needed.json()["diagnostics"][0].as_str().unwrap().to_owned();
    assert!(said.contains("policy y:2:7  error  policy \"y\": there is no policy \"busy\""), "{said}");
    let long = put(&server, "x", &[], &"#".repeat(64 * 1024 + 1)).await;
    assert_eq!(long.status, StatusCode::PAYLOAD_TOO_LARGE);
    let name = "n".repeat(129);
    assert_eq!(
        put(&server, &name, &[], "limit: { rate: 1/s }").await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    assert_eq!(server.post("/v1/policies/x", "").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn with_a_store_on_disk_a_restart_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("api-policies.json");
    let start = async || {
        let store = on_disk(folder.path()).await;
        start_with(FILE, |mut options| {
            options.store = Some(store);
            options
        })
        .await
    };
    let server = start().await;
    let new = put(&server, "per-user", &[], PER_USER).await;
    assert_eq!(
        (new.status, &new.json()["survives_restart"]),
        (StatusCode::CREATED, &json!(true)),
        "{}",
        new.text
    );
    assert_eq!(put(&server, "gone", &[], PER_USER).await.status, StatusCode::CREATED);
    assert_eq!(delete(&server, "gone", &[]).await.status, StatusCode::OK);
    server.handle.stop();
    server.stopped().await;
    let server = start().await;
    let shown = server.get("/v1/policies/per-user").await;
    assert_eq!((shown.json()["text"].as_str(), shown.header("etag")), (Some(PER_USER), new.header("etag")));
    assert_eq!(server.get("/v1/policies/gone").await.status, StatusCode::NOT_FOUND);
    server.handle.stop();
    server.stopped().await;

    // With a file that has taken the name meanwhile, the server does not start: otherwise one of the two would be lost.
    let taken = folder.path().join("taken.yaml");
    std::fs::write(&taken, format!("{FILE}  - {{ name: per-user, limit: {{ rate: 1/s }} }}\n")).unwrap();
    let bind = async || {
        let mut options = ServerOptions::default();
        options.http = SocketAddr::from(([127, 0, 0, 1], 0)).into();
        options.signals = false;
        options.store = Some(on_disk(folder.path()).await);
        Server::bind(options, Source::file(&taken)).await.map(drop).unwrap_err().to_string()
    };
    let error = bind().await;
    assert!(error.contains("policy \"per-user\" is owned by the API"), "{error}");
    std::fs::write(&kept, "{").unwrap();
    let error = bind().await;
    assert!(error.contains("api-policies.json: ") && error.contains("move it away"), "{error}");
}

/// A policy that cannot be stored is not put in force: otherwise a restart would undo what was acknowledged.
#[cfg(unix)]
#[tokio::test]
async fn a_policy_that_cannot_be_kept_is_not_put_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path()).await;
    let server = start_with(FILE, |mut options| {
        options.store = Some(store);
        options
    })
    .await;
    // A folder at the path of the file: even root cannot rename over it.
    std::fs::create_dir(folder.path().join("api-policies.json")).unwrap();
    let answer = put(&server, "per-user", &[], PER_USER).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.detail().contains("cannot be kept, and was not put in force"), "{}", answer.text);
    assert_eq!(server.get("/v1/policies/per-user").await.status, StatusCode::NOT_FOUND);
}
