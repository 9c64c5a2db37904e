//! For any sequence of a Redis client's commands: each is answered with one readable reply.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use tidegate_server::fuzzing::RespClient;

const POLICIES: &str = "version: 1
access: { deny: [plan=banned] }
policies:
  - name: per-user
    by: [user]
    limit: { rate: 5/s, burst: 20 }
  - name: places
    by: [user]
    absent: skip
    limit: { algorithm: concurrency, max: 4, ttl: 30s }
  - name: sign-in
    match: { attributes: { path: [/login] } }
    by: [user]
    charge: on-failure
    limit: { algorithm: fixed-window, rate: 3/min }
";

thread_local! {
    static CLIENT: RefCell<RespClient> = RefCell::new(RespClient::new(POLICIES));
}

fuzz_target!(|bytes: &[u8]| {
    CLIENT.with_borrow_mut(|client| {
        client.connect_again();
        let mut rest = bytes;
        while let Some((reply, took)) = client.run(rest) {
            let asked = &rest[..took];
            let end = end_of_value(&reply, 0);
            // An empty command has no reply.
            assert!(reply.is_empty() || end == Some(reply.len()), "{asked:?} is answered with {reply:?}");
            assert!(reply.len() < 1 << 20, "a reply has a bound");
            rest = &rest[took..];
        }
    });
});

/// Returns the end of the reply that begins at `at`; `None` if it is not a complete reply.
fn end_of_value(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes[at..].windows(2).position(|two| two == b"\r\n")?;
    let (head, after) = (&bytes[at..at + length], at + length + 2);
    let (kind, said) = head.split_first()?;
    let number = || std::str::from_utf8(said).ok()?.parse::<i64>().ok();
    let values = |count: i64| (0..count).try_fold(after, |at, _| end_of_value(bytes, at));
    match kind {
        b'+' | b'-' if !said.contains(&b'\r') && !said.contains(&b'\n') => Some(after),
        b':' => number().map(|_| after),
        b'_' => said.is_empty().then_some(after),
        b'#' => matches!(said, b"t" | b"f").then_some(after),
        b',' => Some(after),
        b'$' => match number()? {
            -1 => Some(after),
            length => {
                let end = after + usize::try_from(length).ok()?;
                (bytes.get(end..end + 2)? == b"\r\n").then_some(end + 2)
            }
        },
        b'*' => values(number()?.max(0)),
        b'%' => values(number()?.checked_mul(2)?),
        _ => None,
    }
}
