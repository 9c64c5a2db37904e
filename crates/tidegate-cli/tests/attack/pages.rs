//! A stranger walks around the login of the pages, sends forms without end, or listens and reads nothing.

use std::io::{Read as _, Write as _};

use crate::attack::raw::{connect, send};
use crate::attack::rounds;
use crate::attack::serving::{Desk, FIVE_A_DAY};

const TOKEN: &str = "0123456789abcdef";

/// Stands on pages, and in nothing that a stranger sends.
const SECRET: &str = "5/day";

#[test]
fn no_spelling_of_a_path_and_no_cookie_is_a_login() {
    let desk = Desk::with(FIVE_A_DAY);
    std::fs::write(desk.path("tokens"), format!("on-call read,admin,keys {TOKEN}\n")).unwrap();
    let mut serving = desk.serve(&["--tokens-file", "tokens"]);
    let own = [("x-tidegate-token", TOKEN)];
    assert!(serving.ask("GET", "/v1/policies", &own, "").body.contains(SECRET));
    let cookies =
        ["", "tidegate_session=", "tidegate_session=0123456789abcdef", "__Secure-tidegate_session=x"];
    for path in [
        "/ui/",
        "/ui//",
        "/ui/.",
        "/ui/../v1/policies",
        "/ui/..%2fv1/policies",
        "/ui/%2e%2e/v1/policies",
        "/ui/;/v1/policies",
        "/ui/%00",
        "/ui/?reveal=true",
        "/ui/overview",
        "/ui/keys?reveal=true",
        "/ui/lab/per-ip?rate=6/s",
    ] {
        for cookie in cookies {
            for method in ["GET", "HEAD", "POST"] {
                let answer = serving.ask(method, path, &[("cookie", cookie)], "");
                assert!((200..500).contains(&answer.status), "{method} {path}: {answer:?}");
                assert!(!answer.body.contains(SECRET), "{method} {path} {cookie}: {answer:?}");
            }
        }
    }
    // A session counts for pages alone, whatever it is.
    for cookie in cookies {
        assert_eq!(serving.ask("GET", "/v1/policies", &[("cookie", cookie)], "").status, 401);
        assert_eq!(serving.ask("POST", "/v1/reload", &[("cookie", cookie)], "").status, 401);
    }
    assert_eq!(serving.child.try_wait().unwrap(), None, "the server ended");
    assert_eq!(serving.get("/livez").status, 200);
}

#[test]
fn forms_are_bounded_and_foreign_ones_are_refused() {
    let desk = Desk::with(FIVE_A_DAY);
    let mut serving = desk.serve(&[]);
    assert_eq!(serving.ask("POST", "/ui/", &[], &"x".repeat((64 << 10) + 1)).status, 413);
    let chunks = format!("10000\r\n{}\r\n", "x".repeat(0x10000)).repeat(2);
    let head = "POST /ui/ HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    let answers = send(serving.addr, format!("{head}{chunks}0\r\n\r\n").as_bytes());
    // The server may close before all of it is sent.
    assert!(answers.is_err() || answers.unwrap()[0].status == 413);
    for header in
        [("origin", "http://evil.example"), ("host", "evil.example"), ("sec-fetch-site", "cross-site")]
    {
        assert_eq!(serving.ask("POST", "/ui/", &[header], "").status, 403, "{header:?}");
    }
    serving.is_well();
}

#[test]
fn listeners_who_read_nothing_hold_no_more_than_a_second() {
    let desk = Desk::with(FIVE_A_DAY);
    let mut serving = desk.serve(&[]);
    let head = b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let listeners: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = connect(serving.addr);
            stream.write_all(head).unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            stream
        })
        .collect();
    assert_eq!(serving.get("/v1/live").status, 503);
    let before = serving.resident();
    for caller in 0..rounds(500, 50_000) {
        serving.check("client.ip", &format!("198.51.{}.{}", caller / 256 % 256, caller % 256));
    }
    let grown = serving.resident().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB");
    serving.is_well();
    drop(listeners);
}
