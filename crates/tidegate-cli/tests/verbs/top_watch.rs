//! `tidegate top --watch`: lists until it is interrupted, on a terminal and in a pipe.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::verbs::Desk;
use crate::verbs::serve::{Serving, refusing, until};
use crate::verbs::terminal::seen;

/// A running watch with its output in a pipe. Killed when dropped, so that a failed test does not leave it behind.
struct Watch {
    child: Child,
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Watch {
    /// Starts a watch that ends by itself some day, so that a test of what it never shows fails.
    fn start(serving: &Serving, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["top", "--watch", "--reveal", "--every", "1s", "--times", "300"]);
        command.args(["--server", serving.url()]).args(words);
        command.env_remove("TIDEGATE_TOKEN").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = Some(BufReader::new(child.stdout.take().unwrap()).lines());
        Self { child, lines }
    }

    fn lines(&mut self) -> impl Iterator<Item = String> {
        self.lines.as_mut().unwrap().map_while(Result::ok)
    }

    /// Reads lines until one contains these words.
    #[track_caller]
    fn shows(&mut self, words: &str) -> String {
        let found = self.lines().find(|line| line.contains(words));
        found.unwrap_or_else(|| panic!("it ended without `{words}`"))
    }

    /// Waits for its end. Returns the exit code.
    fn end(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // After a successful test it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_watch_in_a_pipe_shows_what_is_new_until_ctrl_c() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let mut watch = Watch::start(&serving, &[]);
    let first = watch.shows("UTC");
    assert!(first.ends_with(serving.url()), "{first}");
    assert_eq!(watch.shows("POLICY"), "POLICY   KEY                     DENIED       %");
    assert_eq!(watch.shows("per-ip"), "per-ip   client.ip=203.0.113.9        2   100.0");
    // Once counted, the refusal is in one list only as new.
    assert_eq!(serving.statuses("203.0.113.9", 1), [429]);
    assert_eq!(
        watch.shows("client.ip=203.0.113.9        3"),
        "per-ip   client.ip=203.0.113.9        3   100.0     1"
    );
    assert_eq!(watch.shows("per-ip"), "per-ip   client.ip=203.0.113.9        3   100.0     0");
    assert_eq!(serving.statuses("203.0.113.8", 2), [200, 429]);
    let other = watch.shows("203.0.113.8");
    assert!(other.ends_with("     1"), "a key that was not in the list before: {other}");
    interrupt(&watch);
    assert_eq!(watch.end(), Some(0));
}

/// The counts are those since the server's start, so that old ones must not hide who is refused now.
#[test]
fn a_watch_lists_first_who_was_refused_since_the_list_before() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let mut watch = Watch::start(&serving, &["-n", "1"]);
    watch.shows("203.0.113.9        2");
    assert_eq!(serving.statuses("203.0.113.8", 2), [200, 429]);
    assert_eq!(watch.shows("203.0.113.8"), "per-ip   client.ip=203.0.113.8        1   33.3     1");
    watch.shows("203.0.113.9        2");
    interrupt(&watch);
    assert_eq!(watch.end(), Some(0));
}

#[test]
fn a_watch_is_a_document_a_line_for_programs() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let mut watch = Watch::start(&serving, &["-o", "jsonl"]);
    for line in watch.lines().take(2) {
        let list: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(list["keys"][0]["count"], 2, "{line}");
    }
    interrupt(&watch);
    assert_eq!(watch.end(), Some(0));
}

/// Otherwise `tidegate top -w | head` would run for ever.
#[test]
fn a_watch_ends_when_its_reader_is_gone() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let mut watch = Watch::start(&serving, &[]);
    watch.shows("per-ip");
    watch.lines = None;
    until("the watch ends", || watch.child.try_wait().unwrap().is_some());
    assert_eq!(watch.end(), Some(0));
}

#[test]
fn a_watch_on_a_terminal_clears_it_and_ends_after_as_many_lists_as_wanted() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let words = ["top", "-w", "--every", "1s", "--times", "2", "--server", serving.url()];
    for variable in [("NO_COLOR", "1"), ("TERM", "xterm")] {
        let shown = seen(&desk, &words, Some(variable));
        assert_eq!(shown.matches("\u{1b}[H\u{1b}[J").count(), 2, "{shown:?}");
        assert_eq!(shown.matches("per-ip").count(), 2, "{shown:?}");
    }
    for (words, variable) in
        [(&words[..], ("TERM", "dumb")), (&[&words[..], &["-o", "jsonl"]].concat(), ("NO_COLOR", "1"))]
    {
        let shown = seen(&desk, words, Some(variable));
        assert!(!shown.contains("\u{1b}[H") && shown.matches("per-ip").count() == 2, "{shown:?}");
    }
}

/// A server that is started again is found again; one that is gone ends the watch.
#[test]
fn a_watch_goes_on_after_a_failure_and_ends_after_several() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let mut watch = Watch::start(&serving, &[]);
    watch.shows("per-ip");
    let said = BufReader::new(watch.child.stderr.take().unwrap()).lines();
    serving.kill();
    let said: Vec<String> = said.map_while(Result::ok).collect();
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said.iter().all(|line| line.contains("no server answers at http://127.0.0.1:")), "{said:?}");
    assert_eq!(watch.end(), Some(1));
}

fn interrupt(watch: &Watch) {
    let sent = Command::new("kill").args(["-s", "INT", &watch.child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}
