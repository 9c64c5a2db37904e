//! The program's output, its log and its results, is not read or cannot be written.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::{Arc, Mutex};

use tidegate_testkit::free_port;

use crate::attack::raw::{Answer, ask};
use crate::attack::rounds;
use crate::attack::serving::{Desk, FIVE_A_DAY, end_of, signal};
use crate::attack::waiting::{PATIENCE, within};

/// A server without a greeting, because the attack decides where its log goes.
struct Mute {
    child: Child,
    addr: SocketAddr,
}

impl Mute {
    #[track_caller]
    fn start(desk: &Desk, stderr: impl Into<Stdio>) -> Self {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let at = addr.to_string();
        let mut command = desk.command(&["serve", "--http", &at, "-c", "p.yaml", "--drain", "1s"]);
        let child = command.stdin(Stdio::null()).stderr(stderr).spawn().unwrap();
        let mut mute = Self { child, addr };
        mute.until("it listens", || TcpStream::connect(addr).is_ok());
        mute
    }

    fn get(&self, path: &str) -> Answer {
        ask(self.addr, "GET", path, &[], b"")
    }

    fn check(&self) -> Answer {
        ask(self.addr, "POST", "/v1/check", &[], b"{\"attributes\":{\"client.ip\":\"203.0.113.9\"}}")
    }

    fn dropped(&self) -> u64 {
        let metrics = self.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("tidegate_log_lines_dropped_total "));
        line.unwrap_or_else(|| panic!("no such metric in {metrics}")).parse().unwrap()
    }

    /// Waits until a condition holds, while this server lives.
    #[track_caller]
    fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        within(PATIENCE, what, || {
            assert_eq!(self.child.try_wait().unwrap(), None, "the server ended before {what}");
            holds()
        });
    }

    /// Requires that SIGTERM ends it normally.
    #[track_caller]
    fn stops(mut self) {
        signal(&self.child, "TERM");
        assert_eq!(end_of(&mut self.child).code(), Some(0));
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the server log: each mistake in a refused reload is a line.
fn makes_it_log(desk: &Desk, server: &Mute) {
    let mistakes = "nonsense: 1\n".repeat(3);
    std::fs::write(desk.path("p.yaml"), format!("{FIVE_A_DAY}{mistakes}")).unwrap();
    for _ in 0..rounds(100, 10_000) {
        assert_eq!(ask(server.addr, "POST", "/v1/reload", &[], b"").status, 422);
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let desk = Desk::with(FIVE_A_DAY);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let server = Mute::start(&desk, full);
    makes_it_log(&desk, &server);
    assert_eq!(server.check().status, 200);
    assert!(server.dropped() > 0);
    server.stops();
}

#[test]
fn a_reader_of_the_log_who_goes_away_ends_nothing() {
    let desk = Desk::with(FIVE_A_DAY);
    let (reader, writer) = std::io::pipe().unwrap();
    let server = Mute::start(&desk, writer);
    drop(reader);
    makes_it_log(&desk, &server);
    assert_eq!(server.check().status, 200);
    assert!(server.dropped() > 0);
    server.stops();
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up_and_says_later_what_is_missing() {
    let desk = Desk::with(FIVE_A_DAY);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // As many bytes as a pipe holds, so that not even the first line fits.
    writer.write_all(&vec![b'\n'; 64 << 10]).unwrap();
    let mut server = Mute::start(&desk, writer);
    makes_it_log(&desk, &server);
    for _ in 0..rounds(100, 10_000) {
        assert!(matches!(server.check().status, 200 | 429));
    }
    assert!(server.dropped() > 0);
    let text = Arc::new(Mutex::new(Vec::new()));
    let read = {
        let text = Arc::clone(&text);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut piece) {
                text.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        })
    };
    let says = |words: &str| String::from_utf8_lossy(&text.lock().unwrap()).contains(words);
    server.until("it says that lines are missing", || says("log lines are missing"));
    std::fs::write(desk.path("p.yaml"), FIVE_A_DAY).unwrap();
    assert_eq!(ask(server.addr, "POST", "/v1/reload", &[], b"").status, 200);
    server.stops();
    read.join().unwrap();
    assert!(says("tidegate serves 1 policy on http://"), "the greeting came late and whole");
    assert!(says("configuration reloaded"), "what is left is written at the end");
}

#[test]
fn a_log_that_nobody_ever_reads_does_not_keep_the_server_from_ending() {
    let desk = Desk::with(FIVE_A_DAY);
    let (_reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'\n'; 64 << 10]).unwrap();
    Mute::start(&desk, writer).stops();
}

#[test]
fn a_reader_who_has_seen_enough_changes_no_verdict() {
    let desk = Desk::with("version: 2\n");
    std::fs::write(desk.path("good.yaml"), FIVE_A_DAY).unwrap();
    for (verb, code) in [
        (&["config", "check", "p.yaml"][..], 2),
        (&["config", "check", "good.yaml"], 0),
        (&["completions", "bash"], 0),
        (&["simulate", "--traffic", "steady 1000/s 1m", "--rate", "5/s", "-o", "json"], 0),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = desk.command(verb).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let _ = child.stderr.take().map(|mut err: ChildStderr| err.read_to_string(&mut said));
        assert_eq!(child.wait().unwrap().code(), Some(code), "{verb:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("pipe"), "{verb:?}: {said}");
        // A full disk must not be treated like a reader that has read enough.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = desk.command(verb).stdout(full).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{verb:?}");
    }
}

/// Requires that each line of a log is JSON, and returns its lines.
#[track_caller]
fn all_json(log: &str) -> Vec<serde_json::Value> {
    let lines = log.lines().map(|line| {
        let read: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for name in ["timestamp", "level", "target"] {
            assert!(read[name].is_string(), "no {name}: {line}");
        }
        assert!(read["fields"]["message"].is_string(), "{line}");
        read
    });
    lines.collect()
}

/// Whoever collects the log reads each of its lines, the greeting and the error that ends a start too.
#[test]
fn every_line_of_a_log_that_is_no_terminal_is_json() {
    let desk = Desk::with(FIVE_A_DAY);
    let log = desk.path("log");
    let mut server = Mute::start(&desk, File::create(&log).unwrap());
    let said = || std::fs::read_to_string(&log).unwrap();
    server.until("the greeting", || said().contains("tidegate serves 1 policy"));
    for _ in 0..7 {
        server.check();
    }
    ask(server.addr, "POST", "/v1/check", &[], b"{\"attributes\":{\"client_ip\":\"203.0.113.9\"}}");
    std::fs::write(desk.path("p.yaml"), "version: 2\n").unwrap();
    assert_eq!(ask(server.addr, "POST", "/v1/reload", &[], b"").status, 422);
    server.stops();
    let unmet = all_json(&said()).into_iter().find(|line| {
        line["fields"]["message"].as_str().unwrap().starts_with("no policy is about HTTP requests")
    });
    let unmet = unmet.unwrap();
    assert_eq!(unmet["level"], "WARN");
    let advice = unmet["fields"]["advice"].as_str().unwrap();
    assert_eq!(advice, "no policy reads the attribute client_ip; did you mean client.ip?");
    // The file is refused now, then its port is taken, there is no file, and the filter of the log is wrong.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (arguments, filter, says) in [
        (
            &["serve", "-c", "p.yaml"][..],
            "info",
            "p.yaml:1:10  error  version: 2 is out of range; use 1\n2 problems",
        ),
        (&["serve", "--http", &taken], "info", "another program listens there"),
        (&["serve", "-c", "none.yaml"], "info", "none.yaml"),
        (&["serve"], "info=loud", "TIDEGATE_LOG"),
    ] {
        let mut command = desk.command(arguments);
        command.env("TIDEGATE_LOG", filter);
        let failed = crate::attack::serving::ended(command);
        let lines = all_json(&String::from_utf8(failed.stderr).unwrap());
        let error = lines.iter().find(|line| line["level"] == "ERROR").unwrap();
        assert!(error["fields"]["message"].as_str().unwrap().contains(says), "{error}");
    }
}

/// A caller who makes up names of attributes fills neither the log nor the memory with kinds of requests.
#[test]
fn made_up_kinds_of_requests_are_some_lines_and_one_number() {
    let desk = Desk::with(FIVE_A_DAY);
    let log = desk.path("log");
    let server = Mute::start(&desk, File::create(&log).unwrap());
    let many = rounds(300, 20_000);
    for kind in 0..many {
        let body = format!("{{\"attributes\":{{\"made-up-{kind}\":\"x\"}}}}");
        assert_eq!(ask(server.addr, "POST", "/v1/check", &[], body.as_bytes()).status, 200);
    }
    let metrics = server.get("/metrics").body;
    let line = format!("tidegate_requests_total{{transport=\"http\",outcome=\"unmatched\"}} {many}");
    assert!(metrics.lines().any(|have| have == line), "{line} is missing in {metrics}");
    let told = server.get("/readyz?verbose").body;
    assert!(told.contains(&format!("[!] {many} requests were limited by no policy")), "{told}");
    assert!(told.len() < 4096, "{told}");
    server.stops();
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("no policy is about").count(), 32, "{log}");
}
