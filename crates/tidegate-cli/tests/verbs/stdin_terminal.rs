//! Verbs whose standard input is a terminal, where a person waits.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use nix::pty::openpty;

use crate::verbs::Desk;

/// Runs the command with a terminal as its standard input, and types `input` after its first output. Returns its
/// output and its exit code.
fn at_a_terminal(desk: &Desk, arguments: &[&str], input: &str) -> (String, i32) {
    let pty = openpty(None, None).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .current_dir(desk.path("."))
        .stdin(pty.slave)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = vec![0; 1 << 12];
    let mut errors = child.stderr.take().unwrap();
    // Blocks forever if the command waits without printing anything.
    let first = errors.read(&mut said).unwrap();
    said.truncate(first);
    std::fs::File::from(pty.master.try_clone().unwrap()).write_all(input.as_bytes()).unwrap();
    errors.read_to_end(&mut said).unwrap();
    (String::from_utf8(said).unwrap(), child.wait().unwrap().code().unwrap())
}

/// Ctrl-D at the beginning of a line.
const END: &str = "\u{4}";

#[test]
fn a_terminal_that_is_read_is_told_at_once() {
    let desk = Desk::new();
    let line = "203.0.113.9 - - [02/Mar/2026:09:14:29 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let (said, code) = at_a_terminal(&desk, &["replay", "-", "--rate", "1/s"], &format!("{line}{END}"));
    let says = "reading lines from this terminal; end them with Ctrl-D, or name a file: tidegate replay access.log\n";
    assert!(said.starts_with(says) && code == 0, "{code}: {said}");
    let trace = ["simulate", "--trace", "-", "--rate", "1/s"];
    let (said, code) = at_a_terminal(&desk, &trace, &format!("{{\"t\":1}}\n{END}"));
    let says = "reading lines from this terminal; end them with Ctrl-D, or name a file: tidegate simulate --trace trace.jsonl\n";
    assert!(
        said.starts_with(says) && said.contains("1 operations, 1 allowed") && code == 0,
        "{code}: {said}"
    );
}

#[test]
fn a_terminal_without_a_file_is_refused() {
    let desk = Desk::new();
    let (said, code) = at_a_terminal(&desk, &["replay", "--rate", "1/s"], "");
    let says = "no log named; name files, as in `tidegate replay access.log`, or pipe one in\n";
    assert!(said.ends_with(says) && code == 2, "{code}: {said}");
}
