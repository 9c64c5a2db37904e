//! A stranger walks around the login of the pages, guesses tokens there, names himself like a script or without end, sends
//! forms without end, or listens and reads nothing.

use std::io::{Read as _, Write as _};

use crate::attack::raw::{connect, send};
use crate::attack::rounds;
use crate::attack::serving::{Desk, FIVE_A_DAY};
use crate::attack::waiting::{PATIENCE, within};

const TOKEN: &str = "0123456789abcdef";

/// Stands on pages, and in nothing that a stranger sends.
const SECRET: &str = "5/day";

/// Callers choose the names of keys.
const ONE_A_USER: &str = "version: 1
policies:
  - name: per-user
    by: [user.id]
    limit: { rate: 1/day }
";

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

#[test]
fn names_like_scripts_stay_words_on_each_page() {
    let desk = Desk::with(ONE_A_USER);
    let mut serving = desk.serve(&[]);
    let hostile = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "'><svg/onload=alert(1)>",
        "</title></textarea><script>alert(2)</script>",
        "--><iframe src=//evil.example>",
        "javascript:alert(1)",
        "a\u{202e}b",
    ];
    // A name is asked for when its key is refused, and told at its next refusal.
    within(PATIENCE, "the names are known", || {
        hostile.iter().for_each(|name| drop(serving.check("user.id", name)));
        serving.get("/ui/keys?w=1m").body.contains("&lt;script&gt;alert(1)")
    });
    let own = "<script type=\"module\" src=\"/ui/live.js\"></script>";
    for path in [
        "/ui/",
        "/ui/keys?w=1m",
        "/ui/keys?w=1m&by=rate&q=%3Cscript%3E",
        "/ui/keys/per-user?user.id=%3Cscript%3Ealert(1)%3C/script%3E",
        "/ui/policies/per-user",
        "/ui/policies?q=%22%3E%3Cscript%3E",
        "/ui/why?q=%3C/textarea%3E%3Cscript%3E",
        "/ui/%3Cscript%3E",
        "/ui/keys?by=%3Cscript%3E",
    ] {
        let page = serving.get(path).body.replace(own, "");
        for raw in ["<script", "<img", "<svg/", "<iframe", "\"javascript:", "\u{202e}"] {
            assert!(!page.contains(raw), "{raw} in {path}: {page}");
        }
    }
    serving.is_well();
}

#[test]
fn long_names_hide_nobody() {
    let desk = Desk::with(ONE_A_USER);
    let mut serving = desk.serve(&[]);
    // Each takes six bytes for each of its own.
    let long: Vec<String> = (0..110).map(|number| format!("{number:03}{}", "\"".repeat(240))).collect();
    within(PATIENCE, "the names are known", || {
        long.iter().for_each(|name| drop(serving.check("user.id", name)));
        serving.get("/ui/keys?w=1m").body.contains("more are not shown")
    });
    let page = serving.get("/ui/keys?w=1m");
    assert!(page.status == 200 && page.body.matches("<tr>").count() > 20, "{page:?}");
    serving.is_well();
}

#[test]
fn guesses_at_the_login_are_few_and_a_session_is_not_chosen_by_others() {
    let desk = Desk::with(FIVE_A_DAY);
    std::fs::write(desk.path("tokens"), format!("on-call read,admin,keys {TOKEN}\n")).unwrap();
    let mut serving = desk.serve(&["--tokens-file", "tokens"]);
    let page = serving.get("/ui/login").body;
    let (_, form) = page.split_once("name=\"form\" value=\"").unwrap();
    let form = form.split('"').next().unwrap();
    let log_in = |site: &str, token: &str| {
        let headers = [("sec-fetch-site", site), ("cookie", "tidegate_session=chosen")];
        serving.ask("POST", "/ui/login", &headers, &format!("form={form}&to=//evil.example/&token={token}"))
    };
    assert_eq!(log_in("cross-site", TOKEN).status, 403);
    let opened = log_in("same-origin", TOKEN);
    let cookie = opened.header("set-cookie").unwrap();
    assert_eq!((opened.status, opened.header("location")), (303, Some("/ui/")));
    assert!(!cookie.contains("chosen") && !cookie.contains(TOKEN), "{cookie}");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/ui/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let session = cookie.split(';').next().unwrap();
    assert!(serving.ask("GET", "/ui/policies", &[("cookie", session)], "").body.contains(SECRET));
    assert_eq!(serving.ask("GET", "/v1/policies", &[("cookie", session)], "").status, 401);

    let guessed: Vec<u16> =
        (0..rounds(20, 2_000)).map(|at| log_in("same-origin", &format!("guess-{at:016}")).status).collect();
    assert!(guessed[..5].iter().all(|status| *status == 401), "{guessed:?}");
    assert!(guessed[5..].iter().all(|status| *status == 429), "{guessed:?}");
    // Who is in stays in.
    assert!(serving.ask("GET", "/ui/policies", &[("cookie", session)], "").body.contains(SECRET));
    assert_eq!(serving.child.try_wait().unwrap(), None, "the server ended");
}
