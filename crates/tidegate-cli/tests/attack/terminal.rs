//! Untrusted texts with escape sequences: in logs, traces, policy files, arguments, variables and servers' answers.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Output;

use crate::attack::serving::{Desk, FIVE_A_DAY, ended, words};
use crate::attack::waiting::{PATIENCE, within};

/// Sequences that must not reach a terminal: clear the screen, set the title, the same with C1 controls, and a
/// direction override.
const ESCAPES: &str = "\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}2J\u{9d}0;title\u{9c}\u{202e}gpj\u{7f}";

/// Requires that a terminal would only draw this output.
#[track_caller]
fn draws(what: &str, output: &Output) {
    let hostile = |char: char| {
        (char.is_control() && !matches!(char, '\n' | '\t')) || matches!(char, '\u{202a}'..='\u{202e}')
    };
    let text = words(output);
    assert!(!text.contains(hostile), "{what}: {text:?}");
}

#[test]
fn texts_of_strangers_leave_the_terminal_alone() {
    let desk = Desk::with(FIVE_A_DAY);
    let json = serde_json::to_string(ESCAPES).unwrap();
    let line = |at: u32| {
        format!(
            "203.0.113.9 - {ESCAPES} [10/Oct/2026:13:55:{at:02} +0000] \"GET /{ESCAPES} HTTP/1.1\" 200 1 \"{ESCAPES}\" \"{ESCAPES}\"\n"
        )
    };
    let log: String = (0..60).map(line).chain([format!("{ESCAPES} malformed\n")]).collect();
    std::fs::write(desk.path("access.log"), log).unwrap();
    let logged = |at: u32| format!("{{\"time\":\"2026-10-10T13:55:{at:02}Z\",\"tenant\":{json}}}\n");
    std::fs::write(desk.path("log.jsonl"), (0..60).map(logged).collect::<String>()).unwrap();
    std::fs::write(desk.path(ESCAPES), "nonsense").unwrap();
    std::fs::write(desk.path("trace.jsonl"), format!("{{\"t\":1,\"key\":{json}}}\n")).unwrap();
    let policies = format!(
        "version: 1\npolicies:\n  - name: {json}\n    by: [tenant, {json}]\n    limit: {{ rate: {json} }}\n    {json}: 1\n"
    );
    std::fs::write(desk.path("names.yaml"), policies).unwrap();
    let rate = ["--rate", "5/min"];
    let verbs: Vec<Vec<&str>> = vec![
        [&["replay", "access.log", "--plot", "out"][..], &rate].concat(),
        [&["replay", "access.log", "--by", "http.path"][..], &rate].concat(),
        [&["replay", "log.jsonl", "--by", "tenant"][..], &rate].concat(),
        [&["replay", ESCAPES][..], &rate].concat(),
        vec!["suggest", "log.jsonl", "--by", "tenant"],
        vec!["suggest", "access.log", "--by", ESCAPES],
        vec!["config", "check", "names.yaml"],
        vec!["config", "check", ESCAPES],
        vec!["config", "show", "-c", "names.yaml"],
        vec!["config", "fmt", ESCAPES],
        vec!["serve", "-c", "names.yaml", "--http", "127.0.0.1:0"],
        vec!["serve", "-c", ESCAPES, "--http", "127.0.0.1:0"],
        vec!["explain", "-c", "p.yaml", "--attr", ESCAPES],
        vec![
            "explain",
            "-c",
            "p.yaml",
            "--attr",
            &*Box::leak(format!("client.ip={ESCAPES}").into_boxed_str()),
        ],
        vec!["simulate", "--traffic", ESCAPES, "--rate", "5/s"],
        vec!["simulate", "--trace", "trace.jsonl", "--rate", "5/s"],
        vec!["simulate", "--traffic", "burst 5", "--rate", ESCAPES],
        vec!["replay", "access.log", "--limit", ESCAPES],
        vec!["replay", "access.log", "--rate", "5/s", "--fail-if", ESCAPES],
        vec!["init", "--preset", ESCAPES],
        vec![ESCAPES],
    ];
    for verb in &verbs {
        for form in ["table", "wide", "json", "jsonl", "yaml"] {
            let output = ended(desk.command(&[&verb[..], &["-o", form]].concat()));
            draws(&format!("{verb:?} -o {form}"), &output);
        }
    }
    for file in ["report.html", "load.svg"] {
        let text = std::fs::read_to_string(desk.path("out").join(file)).unwrap();
        assert!(!text.contains(|char: char| char.is_control() && char != '\n'), "{file}");
    }
}

#[test]
fn a_servers_answers_leave_the_terminal_alone() {
    let json = serde_json::to_string(ESCAPES).unwrap();
    // Whatever a verb reads in an answer is such a text.
    let key = format!(
        "{{\"policy\":{json},\"key\":{json},\"count\":1,\"block\":{{\"until\":{json},\"reason\":{json}}},\"standing\":[{{\"limit\":{json}}}]}}"
    );
    let off = format!("{{\"below\":{json},\"until\":{json},\"reason\":{json}}}");
    let switch = format!("{{\"name\":{json},\"state\":{json},\"by_hand\":{off},\"by_signal\":null}}");
    let told = format!("\"decision\":{json},\"lines\":[{json}],{json}:{json}");
    let change =
        format!("{{\"at\":{json},\"what\":{json},\"who\":{json},\"reason\":{json},\"text\":{json}}}");
    let bodies = [
        (
            "200 OK",
            format!(
                "{{{told},\"keys\":[{key}],\"switches\":[{switch}],\"changes\":[{change}],\"block\":{{\"until\":{json}}}}}"
            ),
        ),
        ("403 Forbidden", format!("{{\"detail\":{json}}}")),
        ("500 Oops", format!("{{\"title\":{json}}}")),
        ("200 OK", ESCAPES.to_owned()),
    ];
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let desk = Desk::with(FIVE_A_DAY);
    std::thread::scope(|scope| {
        for (status, body) in &bodies {
            let verbs = [
                &["explain", "--id", "x"][..],
                &["top", "--reveal"],
                &["key", "list", "per-ip", "--reveal"],
                &["key", "block", ESCAPES, "--key", "client.ip=203.0.113.9", "--for", "1h"],
                &["switch", "list"],
                &["changes"],
                &["why", "01J9ZQ4M8XT5B0K3W2V7C6D1EF"],
            ];
            let forms = ["table", "wide", "json", "jsonl", "yaml"];
            for (verb, form) in verbs.into_iter().flat_map(|verb| forms.map(|form| (verb, form))) {
                let listener = &listener;
                scope.spawn(move || {
                    let mut asked = None;
                    within(PATIENCE, "the command asks the server", || {
                        asked = listener.accept().ok();
                        asked.is_some()
                    });
                    let Some((mut stream, _)) = asked else { return };
                    stream.set_nonblocking(false).unwrap();
                    let mut head = [0; 4096];
                    let _ = stream.read(&mut head);
                    let answer = format!(
                        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = stream.write_all(answer.as_bytes());
                    // Reads until the other end has the answer and closes.
                    let _ = stream.read(&mut head);
                });
                let output = ended(desk.command(&[verb, &["--server", &url, "-o", form]].concat()));
                draws(&format!("{verb:?}: {status} -o {form}"), &output);
            }
        }
    });
}

#[test]
fn what_is_set_and_cannot_be_read_is_an_error() {
    let desk = Desk::with(FIVE_A_DAY);
    let bytes = OsStr::from_bytes(b"0123456789abcdef\xff");
    let serve = ["serve", "--http", "127.0.0.1:0", "-c", "p.yaml"];
    for variable in [
        "TIDEGATE_TOKEN",
        "TIDEGATE_TOKEN_FILE",
        "TIDEGATE_LOG",
        "TIDEGATE_HTTP",
        "TIDEGATE_KEYS",
        "TIDEGATE_DRAIN",
    ] {
        let mut command = desk.command(if variable == "TIDEGATE_HTTP" { &["serve"] } else { &serve });
        command.env(variable, bytes);
        let output = ended(command);
        assert!(!output.status.success(), "{variable}: {output:?}");
        draws(variable, &output);
    }
    let mut command = desk.command(&["explain", "--id", "x"]);
    command.env("TIDEGATE_TOKEN", bytes);
    let output = ended(command);
    assert!(words(&output).contains("TIDEGATE_TOKEN is set to bytes that are not UTF-8 text"), "{output:?}");
    // A misspelt level must be an error.
    let mut command = desk.command(&serve);
    command.env("TIDEGATE_LOG", "tidegate=lots");
    assert_eq!(ended(command).status.code(), Some(2));
}
