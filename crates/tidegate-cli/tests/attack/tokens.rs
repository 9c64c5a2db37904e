//! A caller guesses tokens, shows two at once, or goes on with one that was taken away.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidegate_testkit::free_port;

use crate::attack::grpc::{PREFACE, frame, head_of};
use crate::attack::raw::{Answer, JSON, connect, send};
use crate::attack::rounds;
use crate::attack::serving::{Desk, FIVE_A_DAY, Serving};

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

/// Regression: `/readyz?verbose` told at once whether a token is right, and 256 calls on one gRPC connection were answered
/// after one wait.
#[test]
#[allow(clippy::disallowed_methods, reason = "how fast guesses are answered is what is tested")]
fn guesses_are_as_slow_where_no_token_is_needed_and_over_grpc() {
    let desk = Desk::with(FIVE_A_DAY);
    std::fs::write(desk.path("tokens"), format!("one check,read {TOKEN}\n")).unwrap();
    let (serving, grpc) = crate::attack::grpc::serve(&desk, &["--tokens-file", "tokens"]);
    let guesses = rounds(4, 20);
    let least = Duration::from_millis(250 * guesses as u64);
    let begun = Instant::now();
    let guess =
        "GET /readyz?verbose HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer guessguessguess\r\n";
    let all = format!("{guess}\r\n").repeat(guesses - 1) + guess + "connection: close\r\n\r\n";
    let answers = send(serving.addr, all.as_bytes()).unwrap();
    let public = |answer: &Answer| answer.status == 200 && answer.body == "[+] serving\nready\n";
    assert!(answers.len() == guesses && answers.iter().all(public), "{answers:?}");
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    let right = serving.ask("GET", "/readyz?verbose", &[("x-tidegate-token", TOKEN)], "");
    assert!(right.status == 200 && right.body.contains("in force, 1 policy"), "{right:?}");
    assert_eq!(serving.get("/readyz?verbose").body, "[+] serving\nready\n");
    let counted = serving.ask("GET", "/metrics", &[("x-tidegate-token", TOKEN)], "").body;
    let line = format!("tidegate_auth_failures_total{{transport=\"http\"}} {guesses}");
    assert!(counted.contains(&line), "{line} in {counted}");

    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let call = |number: usize, token: &str| {
        let head = head_of(path, &[("authorization", &format!("Bearer {token}"))]);
        let stream = 2 * u32::try_from(number).unwrap() + 1;
        [
            frame(1, 4, stream, &head),
            frame(0, 1, stream, b"\0\0\0\0\x0d\x0a\x01d\x12\x08\x0a\x06\x0a\x01a\x12\x01b"),
        ]
        .concat()
    };
    let begun = Instant::now();
    let mut stream = connect(grpc);
    let wrong: Vec<u8> = (0..guesses).flat_map(|number| call(number, "guessguessguess!")).collect();
    // A right one behind them is not told apart any sooner.
    stream.write_all(&[PREFACE, &wrong, &call(guesses, TOKEN)].concat()).unwrap();
    let mut left = guesses + 1;
    while left > 0 {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        stream.read_exact(&mut vec![0; usize::from(head[1]) << 8 | usize::from(head[2])]).unwrap();
        // A head that ends its stream.
        left -= usize::from(head[3] == 1 && head[4] & 1 == 1);
    }
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
}

/// Regression: the log named the first valid token of a request, and another one had the scope.
#[test]
fn of_two_headers_with_tokens_the_own_one_counts_and_is_logged() {
    let desk = Desk::with(FIVE_A_DAY);
    std::fs::write(desk.path("tokens"), format!("low check {OTHER}\nhigh admin {TOKEN}\n")).unwrap();
    let serving = desk.serve(&["--tokens-file", "tokens"]);
    let put = |own: &str, bearer: &str| {
        let headers = [("x-tidegate-token", own), ("authorization", &*format!("Bearer {bearer}")), JSON];
        serving.ask("PUT", "/v1/keys?client.ip=203.0.113.9", &headers, r#"{"block": {"for": "1h"}}"#).status
    };
    assert_eq!(put(OTHER, TOKEN), 403, "another token in another header lends no scope");
    assert_eq!(put("guessguessguess!", TOKEN), 401);
    assert_eq!(put(TOKEN, OTHER), 200);
    let line = serving.hears("a change through the API");
    assert!(line.contains("\"high\"") && !line.contains("\"low\""), "{line}");
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
