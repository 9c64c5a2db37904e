//! For any call of Limitador's service: the answer is a readable message, or a code and a sentence; and a reservation
//! can be committed once.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate::clock::SystemClock;
use tidegate_server::fuzzing::{RateLimitDoor, answer};

const POLICIES: &str = "version: 1
access: { deny: [plan=banned] }
policies:
  - name: tokens
    match: { attributes: { rls.domain: [a, shop] } }
    by: [user]
    limit: { rate: 100/s }
  - name: window
    by: [model]
    absent: skip
    limit: { algorithm: fixed-window, rate: 1000/s }
    shadow_limit: { rate: 10/h }
";

const SERVICE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService";
const METHODS: [&str; 4] = ["CheckRateLimit", "Report", "Reserve", "Commit"];
/// The length of a gRPC message's head in the body of an answer.
const PREFIX: usize = 5;

static DOOR: LazyLock<RateLimitDoor> =
    LazyLock::new(|| RateLimitDoor::new(POLICIES, Arc::new(SystemClock::new())));

/// The message `ReserveResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
struct Reserved {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    reservation_id: String,
}

/// The message `CommitRequest`, without the request that the reservation was for.
#[derive(Clone, PartialEq, Eq, Message)]
struct Commit {
    #[prost(string, tag = "3")]
    reservation_id: String,
    #[prost(uint64, tag = "4")]
    actual_amount: u64,
}

fuzz_target!(|input: &[u8]| {
    let Some((&first, message)) = input.split_first() else { return };
    let method = METHODS[usize::from(first & 3)];
    let Some(body) = answered(method, message) else { return };
    match method {
        // The overall code comes first, and has one of two values.
        "CheckRateLimit" | "Report" => assert!(matches!(body[..2], [8, 1 | 2]), "{body:?}"),
        "Reserve" => {
            let Reserved { code, reservation_id } = Reserved::decode(&*body).expect("the answer is one");
            assert_eq!(code == 1, !reservation_id.is_empty(), "a reservation has an id");
            assert!(matches!(code, 1 | 2), "{code}");
            if code == 1 && reservation_id != "unlimited" {
                let commit = Commit { reservation_id, actual_amount: u64::from(first >> 2) }.encode_to_vec();
                let answer = || answered("Commit", &commit).expect("a commit is answered");
                assert!(matches!(answer()[..], [8, 1]), "it is released");
                assert!(answer().is_empty(), "and that once");
            }
        }
        _ => assert!(matches!(body[..], [] | [8, 1]), "{body:?}"),
    }
});

/// Returns the answer's message; an error must have a code and a sentence.
fn answered(method: &str, message: &[u8]) -> Option<Vec<u8>> {
    match answer(&DOOR, &format!("{SERVICE}/{method}"), message) {
        Ok(body) => {
            assert_eq!(body[0], 0, "not compressed");
            let length = u32::from_be_bytes([body[1], body[2], body[3], body[4]]);
            assert_eq!(length as usize, body.len() - PREFIX);
            Some(body[PREFIX..].to_vec())
        }
        Err((code, said)) => {
            assert!(matches!(code, 3 | 13), "{code}");
            assert!(!said.is_empty() && said.len() < 1000, "{said}");
            None
        }
    }
}
