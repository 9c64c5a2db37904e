//! Strangers who never repeat a key try to make the server forget the debt of other callers.

use std::io::Write as _;
use std::net::Shutdown;

use crate::attack::raw::{connect, read_all};
use crate::attack::rounds;
use crate::attack::serving::{Desk, Serving};

/// Sends many requests on few connections, without waiting for each answer. Returns their statuses.
fn flood(serving: &Serving, requests: impl Iterator<Item = String>) -> Vec<u16> {
    let mut statuses = Vec::new();
    let requests: Vec<String> = requests.collect();
    for some in requests.chunks(500) {
        let mut stream = connect(serving.addr);
        let mut reading = stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || read_all(&mut reading).unwrap());
        for (at, request) in some.iter().enumerate() {
            let last = if at + 1 == some.len() { "connection: close\r\n" } else { "" };
            let head = format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{last}");
            write!(stream, "{head}content-length: {}\r\n\r\n{request}", request.len()).unwrap();
        }
        let answers = reader.join().unwrap();
        let _ = stream.shutdown(Shutdown::Both);
        assert_eq!(answers.len(), some.len(), "each request is answered");
        statuses.extend(answers.iter().map(|answer| answer.status));
    }
    statuses
}

fn body(name: &str, value: &str) -> String {
    serde_json::json!({ "attributes": { name: value } }).to_string()
}

/// A capacity of a thousand keys, ten callers who have used up their day, and keys of another policy that are used up
/// by their first request: sixty thousand of them in the long form.
#[test]
fn used_up_keys_of_one_policy_free_no_debtor_of_another() {
    for algorithm in ["gcra", "fixed-window"] {
        let desk = Desk::with(&format!(
            "version: 1
store: {{ kind: memory, keys: 1000 }}
policies:
  - name: per-user
    by: [user.id]
    limit: {{ algorithm: {algorithm}, rate: 5/day }}
  - name: once
    by: [form.code]
    limit: {{ rate: 1/day }}
  - name: witness
    by: [attack.witness]
    limit: {{ rate: 1000000/s }}
"
        ));
        let mut serving = desk.serve(&[]);
        let users: Vec<String> = (0..10).map(|user| format!("user-{user}")).collect();
        for user in &users {
            let statuses: Vec<u16> = (0..6).map(|_| serving.check("user.id", user).status).collect();
            assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
        }
        let codes = rounds(6_000, 60_000);
        let statuses = flood(&serving, (0..codes).map(|code| body("form.code", &format!("code-{code}"))));
        assert!(statuses.iter().all(|status| *status == 200), "a new key starts full");
        let free = users.iter().filter(|user| serving.check("user.id", user).status != 429);
        assert_eq!(free.count(), 0, "{algorithm}: debtors that the flood set free");
        serving.hears("the store is full, and keys over their limit were forgotten");
        let told = serving.get("/readyz?verbose").body;
        assert!(
            told.contains("\n[!] store memory: ")
                && told.contains("over their limit were forgotten; raise store.keys\n"),
            "{told}"
        );
        serving.is_well();
    }
}
