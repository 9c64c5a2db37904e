//! A stranger only connects: takes places, fills buffers, sends invalid requests. Meanwhile health requests and
//! honest callers must be answered, including those behind a proxy that the stranger came through.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::attack::proxy::Proxy;
use crate::attack::raw::{connect, read_all, send};
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving};

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: witness
    limit: { rate: 1000000/s }
";
const TOKEN: &str = "0123456789abcdef";

/// How long a blocked peer is given to accept more bytes; a blocked peer never does.
const BLOCKED: Duration = Duration::from_millis(500);

/// Raises this process's limit of open sockets.
fn room_for(sockets: u64) {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(RLIMIT_NOFILE).unwrap();
    let needed = soft.max(sockets + 256);
    assert!(hard >= needed, "this attack needs {needed} open files, and the hard limit is {hard}");
    setrlimit(RLIMIT_NOFILE, needed, hard).unwrap();
}

/// Opens `count` connections and sends these bytes on each.
fn hold(addr: SocketAddr, count: usize, bytes: &str) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = connect(addr);
        // The server may have closed this connection already, to make room for another.
        let _ = stream.write_all(bytes.as_bytes());
        stream
    };
    (0..count).map(open).collect()
}

fn head(fill: &str) -> String {
    format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fill}\r\n")
}

fn lines(count: usize) -> String {
    (0..count).map(|at| format!("x-filler-{at}: {at}\r\n")).collect()
}

/// Writes requests until the server accepts no more, at most `most` bytes. Returns how many it accepted.
fn pour(stream: &mut TcpStream, requests: &str, most: usize) -> usize {
    stream.set_write_timeout(Some(BLOCKED)).unwrap();
    let mut poured = 0;
    while poured < most {
        match stream.write(requests.as_bytes()) {
            Ok(written) => poured += written,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return poured;
            }
            Err(_) => return poured,
        }
    }
    poured
}

#[test]
fn a_pipeline_that_nobody_reads_costs_bounded_memory() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    serving.is_well();
    let body = "{\"attributes\":{\"attack.witness\":\"1\"}}";
    let check =
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let before = serving.resident();
    let mut held = Vec::new();
    for request in [
        check.as_str(),
        "GET /v1/policies HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "HEAD /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx",
        "GET /v1/forward-auth HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx",
        "POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx",
    ] {
        for _ in 0..rounds(1, 8) {
            let mut stream = connect(serving.addr);
            let most = 128 << 20;
            let poured = pour(&mut stream, &request.repeat(500), most);
            assert!(poured < most, "the server took all of {most} bytes of {request:?}");
            held.push(stream);
            serving.is_well();
        }
    }
    // Half a megabyte for each connection, plus what the server remembers of decisions and what the allocator keeps.
    let most = 48 * 1024 + 512 * held.len();
    let grown = serving.resident().saturating_sub(before);
    assert!(grown < most, "{} connections cost {grown} KiB", held.len());
}

/// A peer that stays blocked is closed: the documented time is half a minute.
#[test]
fn a_peer_that_never_reads_is_cut_in_the_end() {
    if rounds(0, 1) == 0 {
        return;
    }
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let mut stream = connect(serving.addr);
    pour(&mut stream, &"GET /v1/policies HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(500), 128 << 20);
    let count = "tidegate_connections_cut_total{reason=\"unread\"} 1\n";
    let cut = (0..600).any(|_| {
        // Pause between the requests, for a minute at least.
        std::thread::park_timeout(Duration::from_millis(100));
        serving.get("/metrics").body.contains(count)
    });
    assert!(cut, "not cut: {}", serving.get("/metrics").body);
    serving.is_well();
}

/// Holds more connections than there are places, and asks as an honest caller meanwhile.
fn crowd(arguments: &[&str], count: usize, bytes: &str) {
    room_for(count as u64);
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(arguments);
    let held = hold(serving.addr, count, bytes);
    for _ in 0..20 {
        serving.is_well();
        assert_eq!(serving.get("/readyz").status, 200);
        assert_eq!(serving.get("/metrics").status, 200);
        assert_eq!(serving.get("/v1/policies").status, 200);
    }
    drop(held);
    serving.is_well();
}

#[test]
fn half_open_heads_by_the_thousand_keep_nobody_out() {
    crowd(&["--connections", "500"], 1000, "GET /livez HTTP/1.1\r\nhost: loc");
    if rounds(0, 1) == 1 {
        crowd(&[], 12_000, "GET /livez HTTP/1.1\r\nhost: loc");
        crowd(&[], 12_000, "G");
    }
}

/// Opens connections as fast as possible for as long as honest callers ask.
#[test]
fn a_storm_of_half_open_heads_keeps_nobody_out() {
    room_for(4000);
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&["--connections", "2000"]);
    let (addr, done) = (serving.addr, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = VecDeque::new();
            while !done.load(Ordering::Relaxed) {
                held.extend(hold(addr, 1, "GET /livez HTTP/1.1\r\nhost: loc"));
                if held.len() > 3000 {
                    held.pop_front();
                }
            }
        });
        // Sets the flag however the asking ends; otherwise the storm would never end.
        struct Ends<'a>(&'a AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _ends = Ends(&done);
        for _ in 0..rounds(60, 10_000) {
            serving.is_well();
        }
    });
    serving.is_well();
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    crowd(&["--connections", "500"], rounds(1000, 12_000), "");
}

#[test]
fn kept_connections_keep_nobody_out() {
    crowd(
        &["--connections", "500"],
        rounds(1000, 12_000),
        "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\nGET /half",
    );
}

/// A stranger without a token is refused before the body is read, so a slow body holds no place.
#[test]
fn slow_bodies_of_strangers_hold_no_place() {
    room_for(1000);
    let desk = Desk::with(FILE);
    std::fs::write(desk.path("token"), TOKEN).unwrap();
    let serving = desk.serve(&["--connections", "200", "--token-file", "token"]);
    let slow = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{";
    let mut held = hold(serving.addr, 600, slow);
    for _ in 0..10 {
        assert_eq!(serving.get("/livez").status, 200);
        let honest = serving.ask("GET", "/v1/policies", &[("x-tidegate-token", TOKEN)], "");
        assert_eq!(honest.status, 200, "{honest:?}");
    }
    let told = read_all(held.last_mut().unwrap()).unwrap();
    assert_eq!(told[0].status, 401, "{told:?}");
}

/// Callers with a token, or on this machine if no token is set, may hold a place with a slow body for ten seconds.
/// Health requests are answered meanwhile; others at the same address are told to retry, and are served in the end.
#[test]
fn slow_bodies_of_callers_leave_health_alone_and_end() {
    room_for(1000);
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&["--connections", "40"]);
    let slow = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{";
    let mut held = hold(serving.addr, 100, slow);
    for _ in 0..20 {
        assert_eq!(serving.get("/livez").status, 200);
        assert_eq!(serving.get("/metrics").status, 200);
        assert_eq!(serving.ask("POST", "/v1/reload", &[], "").status, 200);
    }
    let told = serving.get("/v1/policies");
    assert!(told.status == 200 || told.header("retry-after") == Some("1"), "{told:?}");
    let told = read_all(&mut held[0]).unwrap();
    assert!(matches!(told[0].status, 408 | 503), "{told:?}");
    // The first times out first; the others follow within the time that connecting took.
    for stream in &mut held {
        let _ = read_all(stream);
    }
    serving.is_well();
}

#[test]
fn floods_of_headers_are_answered_431() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    for (fill, status) in [
        (lines(150), 200),
        (lines(300), 431),
        (lines(1000), 431),
        (lines(30_000), 431),
        (format!("x: {}\r\n", "y".repeat(60_000)), 200),
        (format!("x: {}\r\n", "y".repeat(100_000)), 431),
        (format!("x: {}\r\n", "y".repeat(5_000_000)), 431),
        (format!("{}: y\r\n", "x".repeat(70_000)), 431),
    ] {
        for _ in 0..rounds(2, 50) {
            let answers = send(serving.addr, head(&fill).as_bytes()).unwrap();
            assert_eq!(answers[0].status, status, "{} bytes: {answers:?}", fill.len());
        }
    }
    serving.is_well();
}

/// nginx considers a server broken if it closes without an answer, and with two broken servers it asks none for ten
/// seconds: a single request could make the site unavailable to all.
#[test]
fn what_one_caller_sends_through_nginx_takes_no_server_from_the_others() {
    let desk = Desk::with(FILE);
    let serve = || desk.serve(&["--forward-auth", "nginx"]);
    let (mut one, mut two) = (serve(), serve());
    let servers = format!("server {}; server {};", one.addr, two.addr);
    let more = "large_client_header_buffers 8 256k; client_header_buffer_size 256k;";
    let Some(nginx) = Proxy::nginx_set(&servers, more) else { return };
    for fill in [
        lines(150),
        lines(300),
        lines(1000),
        lines(4000),
        format!("x: {}\r\n", "y".repeat(20_000)),
        format!("x: {}\r\n", "y".repeat(100_000)),
        format!("x: {}\r\n", "y".repeat(250_000)),
    ] {
        for _ in 0..rounds(3, 30) {
            let mine = send(nginx.addr, head(&fill).replace("/livez", "/free").as_bytes()).unwrap();
            assert!(matches!(mine[0].status, 200 | 400 | 500), "{} bytes: {:?}", fill.len(), mine[0]);
            for _ in 0..4 {
                let honest = send(nginx.addr, head("").replace("/livez", "/free").as_bytes()).unwrap();
                assert_eq!(honest[0].status, 200, "after {} bytes: {:?}", fill.len(), honest[0]);
            }
        }
    }
    one.is_well();
    two.is_well();
}

#[test]
fn what_one_caller_sends_through_caddy_takes_nothing_from_the_others() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&["--forward-auth", "caddy"]);
    let Some(caddy) = Proxy::caddy(serving.addr) else { return };
    let to_site = |fill: &str| head(fill).replace("/livez", "/free").replace("localhost", "example.org");
    for fill in [lines(150), lines(1000), format!("x: {}\r\n", "y".repeat(100_000))] {
        let mine = send(caddy.addr, to_site(&fill).as_bytes()).unwrap();
        assert!(matches!(mine[0].status, 200 | 431), "{} bytes: {:?}", fill.len(), mine[0]);
        for _ in 0..4 {
            let honest = send(caddy.addr, to_site("").as_bytes()).unwrap();
            assert_eq!(honest[0].status, 200, "after {} bytes: {:?}", fill.len(), honest[0]);
        }
    }
    serving.is_well();
}

/// Each form may make a proxy and the server disagree on where a request ends. The rest must never be answered as a
/// request.
#[test]
fn no_request_hides_behind_another() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let hidden = "GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for lengths in [
        "content-length: 0\r\ncontent-length: 9",
        "content-length: 0, 9",
        "content-length: 0\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 0",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\ncontent-length: 0",
        "transfer-encoding: identity",
        "transfer-encoding: xchunked\r\ncontent-length: 0",
        "transfer-encoding:\u{b}chunked\r\ncontent-length: 0",
        "transfer-encoding : chunked\r\ncontent-length: 0",
        "content-length: +0",
        "content-length: 0x0",
        "content-length: -0",
        "content-length:",
        "content-length: 18446744073709551616",
    ] {
        let request =
            format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{lengths}\r\n\r\n0\r\n\r\n{hidden}");
        let answers = send(serving.addr, request.as_bytes()).unwrap();
        assert_eq!(answers.len(), 1, "{lengths}: {answers:?}");
        assert!((400..500).contains(&answers[0].status), "{lengths}: {answers:?}");
        assert!(!answers[0].body.contains("commit"), "{lengths}: {answers:?}");
    }
    serving.is_well();
}

/// Garbage after a valid request must not affect that request's answer, nor anything else.
#[test]
fn nonsense_behind_good_requests_takes_no_answer_away() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let mut seed = Seed::printed("nonsense_behind_good_requests");
    let good = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for _ in 0..rounds(100, 5000) {
        let count = 1 + seed.below(20);
        let length = 1 + seed.below(200_000);
        // It contains no empty line, so it does not end a head either.
        let nonsense: Vec<u8> = seed.bytes(length).iter().map(|byte| byte | 0x80).collect();
        let bytes = [good.repeat(count).as_bytes(), &nonsense].concat();
        let answers = send(serving.addr, &bytes).unwrap();
        assert_eq!(answers.len(), count + 1, "{count} good requests, {length} bytes: {answers:?}");
        assert!(answers[..count].iter().all(|answer| answer.status == 200));
        assert_eq!(answers[count].status, 400);
    }
    serving.is_well();
}

/// With a low limit of open files there are fewer places, but accepting must not fail.
#[test]
fn a_low_limit_of_open_files_keeps_health_answered() {
    room_for(1000);
    let desk = Desk::with(FILE);
    let mut serving =
        Serving::start(desk.shell("ulimit -n 300; exec \"$0\" serve --http 127.0.0.1:0 -c p.yaml"));
    let held = hold(serving.addr, 600, "GET /");
    for _ in 0..10 {
        serving.is_well();
    }
    drop(held);
    let mut kept = connect(serving.addr);
    kept.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    kept.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("ok\n"), "{answer}");
}
