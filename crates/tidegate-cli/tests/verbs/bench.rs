//! Load on a real server, and the judgement of its answers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};
use crate::verbs::serve::Serving;

/// A policy file with `count` requests per second for each client.
fn per_second(count: u32) -> String {
    format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    limit: {{ rate: {count}/s }}\n"
    )
}

/// Starts a server with 100 a second, and writes files with 100, 50 and 1000.
fn served(desk: &Desk) -> (Serving, String) {
    for count in [50, 100, 1_000] {
        desk.write(&format!("{count}.yaml"), per_second(count));
    }
    let serving = Serving::start(desk, &["-c", "100.yaml", "--resp", "127.0.0.1:0"]);
    let said = serving.hears("answers Redis clients on ");
    let addr = said.split("clients on ").nth(1).unwrap().split(": ").next().unwrap().to_owned();
    (serving, format!("resp://{addr}"))
}

/// Runs a bench of 2 s. Returns its document, which must match its schema.
#[track_caller]
fn judged(desk: &Desk, url: &str, words: &[&str], code: i32) -> Value {
    let all = [&["bench", url, "-z", "2s", "-o", "json"], words].concat();
    let told = desk.run(&all).code(code).json();
    holds(&schema(desk, "bench"), &told, "bench");
    told
}

#[track_caller]
fn count(told: &Value, path: &str) -> u64 {
    told.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path}: {told:#}"))
}

/// The limit is 100 at once and 100 a second: even a slow machine asks for more than that within 2 s.
#[test]
fn a_server_that_does_what_its_file_says_is_right() {
    let desk = Desk::new();
    let (serving, resp) = served(&desk);
    for (url, load) in [
        (serving.url(), &["-c", "4"][..]),
        (serving.url(), &["-q", "400", "-c", "8"]),
        (&resp, &["-c", "4", "--expect", "per-ip"]),
        (&resp, &["-q", "400", "--keys", "uniform:2"]),
    ] {
        // In an open loop, a busy machine may fail to send the last asks within the 2 s.
        let judging = ["--config", "100.yaml", "--max-wrong", "0", "--max-failed", "5%"];
        let told = judged(&desk, url, &[load, &judging].concat(), 0);
        let (allowed, denied) = (count(&told, "/allowed"), count(&told, "/denied"));
        assert!(allowed >= 100 && denied > 0, "{told:#}");
        assert_eq!((count(&told, "/judged/let_through"), count(&told, "/judged/refused")), (allowed, denied));
        assert_eq!(count(&told, "/asked"), allowed + denied, "{told:#}");
        assert_eq!(count(&told, "/failed"), 0, "{told:#}");
        assert_eq!(count(&told, "/latency/count"), allowed + denied + count(&told, "/unsent"));
    }
}

/// Such a run shows how fast nothing is decided.
#[test]
fn a_run_that_no_policy_limits_says_so() {
    let desk = Desk::new();
    let (serving, _) = served(&desk);
    let run = |by: &str| desk.run(&["bench", serving.url(), "-z", "1s", "-c", "1", "--by", by]).code(0).err;
    let says = "no policy of the server limits any of these requests, which have user.id; give what";
    let (without, with) = (run("user.id"), run("client.ip"));
    assert!(without.contains(says) && !with.contains("no policy of the server"), "{without}{with}");
}

#[test]
fn a_server_of_another_rate_is_found_out() {
    let desk = Desk::new();
    let (serving, resp) = served(&desk);
    for url in [serving.url(), &resp] {
        let load = ["-c", "4", "--max-wrong", "10%", "--config"];
        let strict = judged(&desk, url, &[&load[..], &["50.yaml"]].concat(), 3);
        // 50 at once, and 50 in each of 2 s; a machine that is busy for long may have fewer.
        assert!(count(&strict, "/judged/wrongly_let_through") >= 50, "{strict:#}");
        assert_eq!(count(&strict, "/judged/wrongly_refused"), 0, "{strict:#}");
        let generous = judged(&desk, url, &[&load[..], &["1000.yaml"]].concat(), 3);
        assert!(count(&generous, "/judged/wrongly_refused") >= 50, "{generous:#}");
        assert_eq!(count(&generous, "/judged/wrongly_let_through"), 0, "{generous:#}");
    }
}

#[cfg(feature = "grpc")]
#[test]
fn what_envoy_would_ask_is_judged_as_well() {
    let desk = Desk::new();
    desk.write("50.yaml", per_second(50));
    desk.write("100.yaml", per_second(100));
    let serving = Serving::start(&desk, &["-c", "100.yaml", "--grpc", "127.0.0.1:0"]);
    let said = serving.hears("rate limit service over gRPC on ");
    let url = format!("grpc://{}", said.rsplit(' ').next().unwrap());
    let right =
        judged(&desk, &url, &["-c", "4", "--config", "100.yaml", "--max-wrong", "0", "--max-failed", "0"], 0);
    assert!(count(&right, "/allowed") >= 100 && count(&right, "/denied") > 0, "{right:#}");
    assert_eq!(right["codes"]["OVER_LIMIT"], right["denied"]);
    let wrong = judged(&desk, &url, &["-q", "400", "--config", "50.yaml", "--max-wrong", "10%"], 3);
    assert!(count(&wrong, "/judged/wrongly_let_through") >= 50, "{wrong:#}");
    let one = desk.run(&["bench", &url, "--config", "100.yaml", "--expect", "per-ip"]).code(2);
    assert!(one.err.contains("--expect checks a single policy, which Envoy's protocol cannot do"), "{one:?}");
}

#[test]
fn throttle_is_judged_by_its_own_numbers() {
    let desk = Desk::new();
    let (_serving, resp) = served(&desk);
    let told = judged(&desk, &resp, &["--throttle", "9 50 1", "--max-wrong", "0", "-c", "2"], 0);
    assert!(count(&told, "/allowed") >= 10 && count(&told, "/denied") > 0, "{told:#}");
    assert_eq!(told["codes"]["allowed"], told["allowed"]);
}

#[test]
fn people_see_a_row_each_second_and_what_was_kept_to() {
    let desk = Desk::new();
    let (serving, _) = served(&desk);
    let words =
        ["bench", serving.url(), "-z", "2s", "-q", "300/s", "--config", "100.yaml", "--max-wrong", "0"];
    let told = desk.run(&words).code(0);
    let lines: Vec<&str> = told.out.lines().collect();
    assert!(lines[0].starts_with("SECOND") && lines[0].ends_with("P99"), "{told:?}");
    assert!(lines[1].trim_start().starts_with("1 "), "{told:?}");
    // A busy machine may leave the last ones unsent.
    let asked = lines.iter().find_map(|line| line.split_once(" asked in 2.00 s, "));
    let (asked, rest) = asked.unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!(rest, "300 a second: open loop of 300/s, 16 connections", "{told:?}");
    let unsent = 600 - asked.parse::<u32>().unwrap();
    assert!(unsent <= 3 && told.out.contains("never sent") == (unsent > 0), "{told:?}");
    for says in ["wrongly refused 0 of ", &format!("passed  --max-wrong 0: measured 0 of {asked}\n")] {
        assert!(told.out.contains(says), "{says}: {told:?}");
    }
    let failed = desk.run(&["bench", serving.url(), "-z", "1s", "--quiet", "--max-p99", "1us"]).code(3);
    assert!(
        failed.out.contains("FAILED  --max-p99 0.00 ms: measured ") && !failed.out.contains("SECOND"),
        "{failed:?}"
    );
}

#[test]
fn ctrl_c_ends_with_what_there_is() {
    let desk = Desk::new();
    let (serving, _) = served(&desk);
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", serving.url(), "-z", "1h", "-q", "100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut begin = [0; 60];
    out.read_exact(&mut begin).unwrap();
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    assert!(rest.contains("interrupted: these are the figures so far\nallowed "), "{rest}");
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let desk = Desk::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for scheme in ["http", "resp"] {
        let url = format!("{scheme}://{free}");
        let told = desk.run(&["bench", &url, "-z", "1s"]).code(1);
        let says = format!(
            "error: no server answers at {url}; start one with `tidegate serve`, or name another one: "
        );
        assert!(told.err.starts_with(&says) && told.err.contains("refused"), "{told:?}");
    }
}

/// A server that accepts and never answers, and one that uses another protocol.
#[test]
fn a_server_that_decides_nothing_is_an_error() {
    let desk = Desk::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let words = ["bench", &url, "-z", "1s", "-c", "1", "--timeout", "100ms"];
    let told = desk.run(&words).code(1);
    assert!(told.err.contains(&format!("requests to {url} was decided: no answer within 100ms")), "{told:?}");
    drop(TcpStream::connect(silent.local_addr().unwrap()));
    let (serving, _) = served(&desk);
    let wrong = serving.url().replace("http://", "resp://");
    let told = desk.run(&["bench", &wrong, "-z", "1s", "-c", "1"]).code(1);
    assert!(told.err.contains("was decided: "), "{told:?}");
}

/// After a pause, an ask must not fail because the server closed the idle connection.
#[test]
fn a_server_may_close_connections_that_are_idle() {
    let desk = Desk::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("resp://{}", server.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut connection in server.incoming().map_while(Result::ok) {
            let read = connection.read(&mut [0; 1_000]).unwrap_or_default();
            if read > 0 {
                connection.write_all(b"*2\r\n:1\r\n+per-ip\r\n").unwrap();
            }
        }
    });
    let told = judged(&desk, &url, &["-q", "10", "-c", "1", "--max-failed", "0"], 0);
    assert_eq!((count(&told, "/asked"), count(&told, "/allowed")), (20, 20), "{told:#}");
}

#[test]
fn a_wrong_flag_is_told_with_what_would_work() {
    let desk = Desk::new();
    desk.write("100.yaml", per_second(100));
    for (words, says) in [
        ("-z 100ms", "`100ms` is too short or too long for a run; use 1s to 24h"),
        ("-z 10", "\"10\" has no unit; write 10ms, 10s or 10min"),
        ("-q 0", "`0` sends no requests; use 1 or more, such as 500/s or 30/min"),
        ("-q 99999999", "`99999999` is more than this command can send; use at most 10000000/s"),
        ("-q unlimited", "`unlimited` is not a rate of requests"),
        (
            "-c 100.yaml",
            "`100.yaml` is not a number of connections; use 1 to 10000 (a policy file is named by --config here)",
        ),
        ("--keys zip:1:2", "`zip:1:2` is not a choice of keys; did you mean `zipf`?"),
        ("--timeout 2min", "`2min` is too short or too long to wait for an answer; use 1ms to 60s"),
        ("--max-failed many", "`many` is neither a number nor a share; write 0 or 0.1%"),
        ("--max-failed 100%", "nothing is more than `100%`, so this never fails; use less, such as 0.1%"),
        ("--max-wrong 100% --config 100.yaml", "nothing is more than `100%`, so this never fails"),
        (
            "--max-wrong 0",
            "--max-wrong needs to know which answers are right: name the server's policy file with --config",
        ),
        ("--expect per-ip", "--config <FILE>"),
        (
            "--config 100.yaml --expect per-up",
            "--expect: there is no policy \"per-up\" in 100.yaml; there are per-ip",
        ),
        (
            "--config 100.yaml --by user.id",
            "no policy in force of 100.yaml matches these requests, which have user.id",
        ),
        ("--throttle 1,2,3", "--throttle needs a resp:// server"),
        ("--cost 0", "--cost 0 asks for nothing; use 1 or more"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let told = desk.run(&[&["bench", "http://127.0.0.1:1"], &words[..]].concat()).code(2);
        assert!(told.err.contains(says) && told.out.is_empty(), "{words:?}: {told:?}");
    }
    let told = desk.run(&["bench", "127.0.0.1:8080"]).code(2);
    assert!(told.err.contains("does not name a protocol; write http://127.0.0.1:8080"), "{told:?}");
}
