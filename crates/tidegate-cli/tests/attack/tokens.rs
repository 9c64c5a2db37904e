//! A caller guesses tokens, shows two at once, or goes on with one that was taken away.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidegate_testkit::free_port;

use crate::raw::{JSON, connect, send};
use crate::rounds;
use crate::serving::{Desk, FIVE_A_DAY, Serving};

const TOKEN: &str = "0123456789abcdef";
const OTHER: &str = "fedcba9876543210";

/// Starts a server with two named tokens that may read and check, and a door for Redis clients.
fn serve(desk: &Desk) -> (Serving, SocketAddr) {
    let tokens = format!("one check,read,admin {TOKEN}\ntwo check,read {OTHER}\n");
    std::fs::write(desk.path("tokens"), tokens).unwrap();
    let resp = SocketAddr::from(([127, 0, 0, 1], free_port()));
    (desk.serve(&["--tokens-file", "tokens", "--resp", &resp.to_string()]), resp)
}

#[test]
fn a_stream_of_events_ends_with_its_token() {
    let desk = Desk::with(FIVE_A_DAY);
    let (serving, _) = serve(&desk);
    let listens = |token: &str| {
        let mut stream = connect(serving.addr);
        let head = format!(
            "GET /v1/events HTTP/1.1\r\nhost: localhost\r\nx-tidegate-token: {token}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert!(lines.by_ref().any(|line| line.unwrap().starts_with(": events from now on")));
        lines
    };
    let (mut kept, removed) = (listens(TOKEN), listens(OTHER));
    std::fs::write(desk.path("tokens"), format!("one check,read,admin {TOKEN}\n")).unwrap();
    assert_eq!(serving.ask("POST", "/v1/reload", &[("x-tidegate-token", TOKEN)], "").status, 200);
    let rest: Vec<_> = removed.map(|line| line.unwrap()).collect();
    assert!(rest.iter().any(|line| line.contains("no longer valid")), "{rest:?}");
    // A change after that reaches only the other.
    let key = "/v1/keys/per-ip?client.ip=203.0.113.9";
    let block = r#"{"block": {"for": "1h"}}"#;
    assert_eq!(serving.ask("PUT", key, &[("x-tidegate-token", TOKEN), JSON], block).status, 200);
    assert!(kept.any(|line| line.unwrap().starts_with("event: key")));
    assert!(!rest.iter().any(|line| line.starts_with("event: key")), "{rest:?}");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "how fast guesses are answered is what is tested")]
fn guesses_are_slow_and_keep_nobody_out() {
    let desk = Desk::with(FIVE_A_DAY);
    let (serving, resp) = serve(&desk);
    let guesses = rounds(5, 20);
    let begun = Instant::now();
    let mut guesser = connect(resp);
    guesser.write_all("AUTH guessguessguess\r\n".repeat(guesses).as_bytes()).unwrap();
    // More guessers than one, none of whom reads.
    let others: Vec<_> = (0..rounds(50, 1000))
        .map(|_| {
            let mut other = connect(resp);
            other.write_all("HELLO 3 AUTH default guessguessguess\r\n".repeat(500).as_bytes()).unwrap();
            other
        })
        .collect();
    let asked = Instant::now();
    let honest = serving.ask("GET", "/v1/policies", &[("x-tidegate-token", TOKEN)], "");
    assert_eq!(honest.status, 200);
    let mut client = connect(resp);
    client.write_all(format!("AUTH {TOKEN}\r\nPING\r\n").as_bytes()).unwrap();
    let mut said = [0; 12];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"+OK\r\n+PONG\r\n");
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    let mut lines = BufReader::new(guesser).lines();
    for _ in 0..guesses {
        assert_eq!(lines.next().unwrap().unwrap(), "-WRONGPASS the token is wrong");
    }
    let least = Duration::from_millis(250 * guesses as u64);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    drop(others);
    // The same over HTTP, one after the other on a connection.
    let begun = Instant::now();
    let guess = "GET /v1/policies HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer guessguessguess\r\n";
    let all = format!("{guess}\r\n").repeat(guesses - 1) + guess + "connection: close\r\n\r\n";
    let answers = send(serving.addr, all.as_bytes()).unwrap();
    assert!(answers.len() == guesses && answers.iter().all(|answer| answer.status == 401), "{answers:?}");
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
}

#[test]
fn two_tokens_in_one_request_are_an_error() {
    let desk = Desk::with(FIVE_A_DAY);
    let (serving, _) = serve(&desk);
    let wrong = "guessguessguess!";
    let bearers = [TOKEN, wrong].map(|token| format!("Bearer {token}"));
    for (name, [one, other]) in
        [("x-tidegate-token", [TOKEN, wrong]), ("authorization", bearers.each_ref().map(|bearer| &**bearer))]
    {
        for both in [[(name, one), (name, other)], [(name, other), (name, one)], [(name, one); 2]] {
            let refused = serving.ask("GET", "/v1/policies", &both, "");
            assert!(refused.status == 401 && refused.body.contains("came twice"), "{both:?}: {refused:?}");
        }
    }
    // A proxy hands on what its caller sent as `authorization`, and shows its own token beside it.
    let handed_on =
        [("authorization", "Basic YTpi"), ("authorization", "Bearer x"), ("x-tidegate-token", TOKEN)];
    assert_eq!(serving.ask("GET", "/v1/policies", &handed_on, "").status, 200);
}
