//! For any requests to any path of the HTTP API: each is answered, a refusal with a sentence, and a decision with the
//! status that matches its answer.
#![no_main]

use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode, Uri};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tidegate_server::fuzzing::ApiDoor;

const POLICIES: &str = "version: 1
access: { deny: [plan=banned] }
policies:
  - name: per-user
    by: [user]
    limit: { rate: 5/s, burst: 20 }
  - name: tokens
    by: [model]
    absent: skip
    cost: { estimate: 20, caller: believed, settle: llm.output }
    limit: { rate: 1000/min }
  - name: places
    by: [user]
    absent: skip
    limit: { algorithm: concurrency, max: 4, ttl: 30s }
";

thread_local! {
    /// One per thread, for all inputs: state that one input leaves is there for the next.
    static DOOR: ApiDoor = ApiDoor::new(POLICIES);
}

/// The longest problem, which quotes the request shortened; in bytes of JSON.
const LONGEST_PROBLEM: usize = 64 << 10;

/// The placeholder in a body for the latest ticket.
const TICKET: &str = "@";

// Requests separated by an empty line: `METHOD TARGET`, followed by the lines of the body.
fuzz_target!(|input: &str| {
    let mut ticket = "none".to_owned();
    for asked in input.split("\n\n") {
        let (head, body) = asked.split_once('\n').unwrap_or((asked, ""));
        let Some((method, target)) = head.split_once(' ') else { continue };
        let (Ok(method), Ok(uri)) = (method.parse::<Method>(), target.parse::<Uri>()) else { continue };
        let path = uri.path().to_owned();
        // Reloading the file would remove all policies.
        if path == "/v1/reload" {
            continue;
        }
        let mut request = Request::new(body.replace(TICKET, &ticket).into_bytes());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let answer = DOOR.with(|door| door.answer(request));
        if let Some(new) = judge(&path, &answer) {
            ticket = new;
        }
    }
});

/// Asserts that an answer is valid, and returns a check's ticket if it has one.
fn judge(path: &str, answer: &Response<Vec<u8>>) -> Option<String> {
    let (status, body) = (answer.status(), answer.body());
    let content_type = answer.headers().get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert!(status != StatusCode::INTERNAL_SERVER_ERROR, "{path}: {}", String::from_utf8_lossy(body));
    let json = || serde_json::from_slice::<Value>(body).expect("what is called JSON is JSON");
    if path == "/v1/check" {
        let decision = serde_json::from_slice::<Value>(body).map(|said| said["decision"].clone());
        if let Ok(Value::String(decision)) = decision {
            assert_eq!(decision != "denied", status.is_success(), "{decision} with {status}");
        }
    }
    if content_type == "application/problem+json" {
        assert!(body.len() < LONGEST_PROBLEM, "{path}: {} bytes", body.len());
        let said = json();
        assert_eq!(said["status"].as_u64(), Some(u64::from(status.as_u16())), "{path}");
        // If the file gives no sentence, a denial has none.
        assert!(
            said["detail"].as_str().is_some_and(|detail| !detail.is_empty()) || said["title"].is_string()
        );
    } else if content_type == "application/json" {
        let said = json();
        if path == "/v1/check" {
            return said["ticket"].as_str().map(str::to_owned);
        }
    } else {
        assert!(
            status.is_success() || body.is_empty() || content_type.starts_with("text/"),
            "{path}: {status}"
        );
    }
    None
}
