//! For any bytes in a call of Envoy's rate limit service: the answer is a readable message, or a code and a sentence.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tidegate::clock::SystemClock;
use tidegate_server::fuzzing::RateLimitDoor;

const POLICIES: &str = "version: 1
policies:
  - name: per-address
    by: [remote_address]
    limit: { rate: 3/min }
  - name: window
    match: { attributes: { rls.domain: [a, shop] } }
    limit: { algorithm: fixed-window, rate: 1000/h }
    shadow_limit: { rate: 10/h }
  - name: marked
    by: [generic_key, generic_key.2]
    limit: { rate: 1/s, burst: 5 }
    over: mark
";

static DOOR: LazyLock<RateLimitDoor> =
    LazyLock::new(|| RateLimitDoor::new(POLICIES, Arc::new(SystemClock::new())));

fuzz_target!(|input: (u8, &[u8])| {
    let (words, bytes) = input;
    let details = ["", "headers", "decision", "headers, decision"][usize::from(words % 4)];
    // The bytes as they are, and as one framed message.
    let mut framed = vec![0];
    framed.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    framed.extend_from_slice(bytes);
    for body in [bytes, &framed] {
        match DOOR.answer(details, body) {
            Ok(answer) => {
                assert_eq!(answer[0], 0, "not compressed");
                let length = u32::from_be_bytes([answer[1], answer[2], answer[3], answer[4]]);
                assert_eq!(length as usize, answer.len() - 5);
                // The overall code comes first, and has one of two values.
                assert!(matches!(answer[5..7], [8, 1 | 2]), "{answer:?}");
            }
            Err((code, message)) => {
                assert!(matches!(code, 3 | 12 | 13), "{code}");
                assert!(!message.is_empty() && message.len() < 1000, "{message}");
            }
        }
    }
});
