//! Properties of every verb: help, wrong flags, JSON for programs; and files generated from the definition of all
//! verbs.

use crate::verbs::{Desk, sample};

const VERBS: [&[&str]; 41] = [
    &["serve"],
    &["init"],
    &["config"],
    &["config", "check"],
    &["config", "show"],
    &["config", "schema"],
    &["config", "fmt"],
    &["config", "diff"],
    &["simulate"],
    &["replay"],
    &["suggest"],
    &["explain"],
    &["bench"],
    &["top"],
    &["stat"],
    &["tail"],
    &["why"],
    &["changes"],
    &["key"],
    &["key", "list"],
    &["key", "get"],
    &["key", "reset"],
    &["key", "block"],
    &["key", "unblock"],
    &["switch"],
    &["switch", "list"],
    &["switch", "off"],
    &["switch", "on"],
    &["breaker"],
    &["breaker", "list"],
    &["breaker", "force-open"],
    &["ready"],
    &["drain"],
    &["policies"],
    &["policies", "put"],
    &["policies", "show"],
    &["policies", "history"],
    &["policies", "rollback"],
    &["policies", "nodes"],
    &["completions"],
    &["man"],
];

#[test]
fn every_verb_has_help_and_refuses_flags_it_does_not_know() {
    let desk = Desk::new();
    let all = desk.run(&["--help"]).code(0).out;
    for verb in VERBS {
        assert!(all.contains(verb[0]), "{verb:?}");
        let help = desk.run(&[verb, &["--help"]].concat()).code(0);
        assert!(help.out.contains("Usage: tidegate") && help.err.is_empty(), "{help:?}");
        let wrong = desk.run(&[verb, &["--frobnicate"]].concat()).code(2);
        assert!(wrong.err.contains("--frobnicate") && wrong.out.is_empty(), "{wrong:?}");
    }
    desk.run(&[]).code(2);
    desk.run(&["frobnicate"]).code(2);
    let version = desk.run(&["--version"]).code(0).out;
    assert!(version.starts_with("tidegate ") && version.contains("\nbuilt with"), "{version}");
    assert_eq!(desk.run(&["-V"]).code(0).out.lines().collect::<Vec<_>>(), [version.lines().next().unwrap()]);
}

const ASKING: [&str; 11] =
    ["explain", "top", "stat", "tail", "why", "changes", "key", "switch", "ready", "drain", "breaker"];

/// Only verbs that use a server have the flags for it; for other verbs these flags would have no effect.
#[test]
fn only_those_who_ask_a_server_have_flags_for_it() {
    let desk = Desk::new();
    for verb in VERBS {
        let help = desk.run(&[verb, &["--help"]].concat()).code(0).out;
        let has = |flag: &str| help.contains(&format!("  {flag} <"));
        let asks = verb[..] == ["config", "diff"] || ASKING.contains(&verb[0]);
        assert_eq!(has("--server"), asks, "{verb:?}: {help}");
        for flag in ["--ca", "--client-cert", "--client-key"] {
            assert_eq!(has(flag), asks || verb[0] == "bench", "{verb:?} {flag}: {help}");
        }
    }
    for words in [&["serve", "--server", "http://127.0.0.1:1"][..], &["config", "check", "--ca", "ca.pem"]] {
        let refused = desk.run(words).code(2);
        assert!(refused.err.contains("unexpected argument"), "{refused:?}");
    }
    // The message must not suggest --speed, a similarly spelled option of replay.
    let replay = desk.run(&["replay", "--server", "http://127.0.0.1:1", "access.log"]).code(2);
    assert!(
        replay.err.contains(
            "'--server' is an option of: config diff, explain, top, stat, tail, why, changes, key, switch, breaker, ready, drain"
        ),
        "{replay:?}"
    );
    assert!(!replay.err.contains("--speed"), "{replay:?}");
    // Of a verb with subcommands, those that have the option are named.
    let auto = desk.run(&["breaker", "auto", "payments", "--for", "5s"]).code(2);
    let places = "bench, key block, switch off, switch on, breaker force-open, breaker force-closed";
    assert!(auto.err.contains(&format!("'--for' is an option of: {places}")), "{auto:?}");
    for (word, names) in [
        ("open", "a similar subcommand exists: 'breaker force-open'\n"),
        ("close", "a similar subcommand exists: 'breaker force-closed'\n"),
    ] {
        let told = desk.run(&["breaker", word, "payments"]).code(2);
        assert!(told.err.contains(names), "{told:?}");
    }
    let before = desk.run(&["--server", "http://127.0.0.1:1", "ready"]).code(2);
    assert!(before.err.contains("ready --server"), "where it belongs is said: {before:?}");
}

/// Every format for programs is complete: one document, one document per line, or YAML, with nothing else on standard
/// output.
#[test]
fn every_verb_speaks_to_programs() {
    let (log, csv) = (sample("access.log"), sample("llm-calls.csv"));
    let limit = ["--rate", "5/s"];
    let verbs: Vec<Vec<&str>> = vec![
        vec!["init", "--force"],
        vec!["init", "-"],
        vec!["config", "check"],
        vec!["config", "show"],
        vec!["config", "show", "--origin"],
        vec!["config", "schema"],
        vec!["config", "fmt"],
        vec!["config", "fmt", "--check"],
        [&["simulate", "--traffic", "burst 10"][..], &limit].concat(),
        [&["replay", &log][..], &limit].concat(),
        [&["replay", &csv, "--by", "tenant", "--plot", "out"][..], &limit].concat(),
        vec!["suggest", &log],
        vec!["explain", "--attr", "client.ip=203.0.113.9"],
        vec!["completions", "bash"],
        vec!["man", "pages"],
        vec!["serve", "--check"],
    ];
    let desk = Desk::new();
    for verb in &verbs {
        let json = desk.run(&[&verb[..], &["-o", "json"]].concat()).code(0).json();
        let lines = desk.run(&[&verb[..], &["-o", "jsonl"]].concat()).code(0).out;
        for line in lines.lines() {
            serde_json::from_str::<serde_json::Value>(line)
                .unwrap_or_else(|error| panic!("{verb:?}: {error}: {line}"));
        }
        assert!(json.is_object() && !lines.is_empty(), "{verb:?}");
        assert!(!desk.run(&[&verb[..], &["-o", "yaml"]].concat()).code(0).out.is_empty(), "{verb:?}");
    }
}

#[test]
fn completions_for_every_shell() {
    let desk = Desk::new();
    for (shell, mark) in
        [("bash", "complete -F"), ("zsh", "#compdef tidegate"), ("fish", "complete -c tidegate")]
    {
        let script = desk.run(&["completions", shell]).code(0).out;
        assert!(script.contains(mark) && script.contains("fail-if"), "{shell}");
    }
    assert!(desk.run(&["completions", "powershell"]).code(0).out.contains("Register-ArgumentCompleter"));
    assert!(desk.run(&["completions", "tcl"]).code(2).err.contains("powershell"));
}

#[test]
fn a_man_page_for_every_verb() {
    let desk = Desk::new();
    desk.run(&["man", "share/man1"]).code(0);
    assert!(desk.read("share/man1/tidegate.1").contains(".TH tidegate 1"));
    for verb in VERBS {
        let page = desk.read(&format!("share/man1/tidegate-{}.1", verb.join("-")));
        assert!(page.contains(".SH SYNOPSIS"), "{verb:?}");
    }
}

/// `tidegate … | head` must not fail.
#[cfg(unix)]
#[test]
fn a_closed_pipe_is_no_failure() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
