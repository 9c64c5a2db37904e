//! A stranger sends anything to every door: it must be answered or closed, must not slow others down, and must not
//! end the server.

use std::io::Write as _;

use crate::attack::raw::{JSON, connect, send_and_end};
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::Desk;

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: nginx }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 5/day }
  - name: witness
    by: [attack.witness]
    limit: { rate: 1000000/s }
";

/// How many of [`PATHS`] take a body in JSON: the first ones.
const TAKE_A_BODY: usize = 6;

/// All paths that are answered, and some that are not.
const PATHS: [&str; 25] = [
    "/v1/check",
    "/v1/check/batch",
    "/v1/peek",
    "/v1/explain",
    "/v1/settle",
    "/v1/extend",
    "/v1/forward-auth",
    "/v1/policies",
    "/v1/policies/per-ip",
    "/v1/policies/%2e%2e",
    "/v1/keys/top",
    "/v1/keys/per-ip?client.ip=203.0.113.9",
    "/v1/keys/",
    "/v1/reload",
    "/v1/drain",
    "/metrics",
    "/livez",
    "/readyz?verbose",
    "/healthz",
    "/version",
    "/config.schema.json",
    "/",
    "/v1/check/../check",
    "/v1/report",
    "/v1/refund",
];

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND"];

const BODIES: [&str; 20] = [
    "",
    "{",
    "{}",
    "[]",
    "null",
    "\"x\"",
    "{\"attributes\":{}}",
    "{\"attributes\":[]}",
    "{\"attributes\":{\"client.ip\":\"203.0.113.9\"},\"cost\":0}",
    "{\"attributes\":{\"client.ip\":\"203.0.113.9\"},\"cost\":-1}",
    "{\"attributes\":{\"client.ip\":\"203.0.113.9\"},\"cost\":18446744073709551615}",
    "{\"attributes\":{\"client.ip\":\"203.0.113.9\"},\"cost\":1e308}",
    "{\"attributes\":{\"client.ip\":\"203.0.113.9\"},\"cost\":18446744073709551616}",
    "{\"attributes\":{\"client.ip\":\"\\u0000\\ud800\"}}",
    "{\"attributes\":{\"client.ip\":null}}",
    "{\"attributes\":{\"client.ip\":\"a\",\"client.ip\":\"b\"}}",
    "{\"attributes\":{\"\":\"\"}}",
    "{\"attributes\":{\"client.ip\":\"a\"},\"policies\":[\"per-ip\",\"per-ip\"]}",
    "{\"ticket\":\"AQEB\",\"status\":200}",
    "{\"requests\":[{\"attributes\":{}},{}]}",
];

#[test]
fn whatever_is_asked_is_answered_and_a_refusal_says_why() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    for path in PATHS {
        for method in METHODS {
            for body in BODIES {
                let answer = serving.ask(method, path, &[JSON], body);
                // 500 would be a fault of the server, 502 and above would blame a server behind it.
                assert!(matches!(answer.status, 200..=499 | 503), "{method} {path} {body}: {answer:?}");
                let problem = answer.status >= 400 && method != "HEAD";
                assert!(!problem || !answer.body.is_empty(), "{method} {path} {body}: {answer:?}");
            }
        }
    }
    serving.is_well();
}

#[test]
fn deep_and_wide_bodies_are_refused_in_bounded_work() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let deep = "[".repeat(100_000);
    let nested = "{\"attributes\":".repeat(10_000);
    let wide = (0..10_000).map(|at| format!("\"a{at}\":\"b\"")).collect::<Vec<_>>().join(",");
    let wide = format!("{{\"attributes\":{{{wide}}}}}");
    let long = format!("{{\"attributes\":{{\"client.ip\":\"{}\"}}}}", "9".repeat(5 << 20));
    let batch = format!("{{\"requests\":[{}]}}", vec!["{\"attributes\":{}}"; 100_000].join(","));
    for path in &PATHS[..TAKE_A_BODY] {
        for body in [&deep, &nested, &wide, &long, &batch] {
            let answer = serving.ask("POST", path, &[], body);
            assert!((400..500).contains(&answer.status), "{path} {body:.40}: {answer:?}");
        }
    }
    serving.is_well();
}

#[test]
fn bytes_that_are_no_http_are_answered_or_closed() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let mut seed = Seed::printed("bytes_that_are_no_http");
    for _ in 0..rounds(200, 20_000) {
        let length = 1 + seed.below(4096);
        let mut bytes = seed.bytes(length);
        if seed.below(2) == 0 {
            // A head with a valid beginning reaches more of the parser.
            let (method, path) = (seed.one_of(&METHODS), seed.one_of(&PATHS));
            bytes.splice(0..0, format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n").into_bytes());
        }
        if let Ok(answers) = send_and_end(serving.addr, &bytes) {
            assert!(answers.iter().all(|answer| (200..500).contains(&answer.status)), "{answers:?}");
        }
    }
    serving.is_well();
}

#[test]
fn whoever_leaves_in_the_middle_leaves_nothing_behind() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let body = "{\"attributes\":{\"attack.witness\":\"1\"}}";
    let whole =
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for cut in 1..whole.len() {
        let mut stream = connect(serving.addr);
        stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        drop(stream);
    }
    serving.is_well();
}
