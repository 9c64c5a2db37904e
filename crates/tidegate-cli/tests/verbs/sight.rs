//! The verbs that show what a running server sees: `stat`, `tail`, `why`, `changes`, `config diff`, and `top` on a
//! terminal.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};
use crate::verbs::serve::{ONE_A_DAY, Serving, refusing, until};

/// A command that runs until it is ended; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // After a successful test it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for (name, _) in std::env::vars_os() {
        let theirs = name.to_string_lossy();
        if theirs.starts_with("TIDEGATE_") || theirs.starts_with("CLICOLOR") || theirs == "NO_COLOR" {
            command.env_remove(&name);
        }
    }
    command.args(words).env("TERM", "xterm");
    command
}

#[test]
fn a_line_of_stat_counts_what_is_refused_and_conditions_fail() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let server = ["--server", serving.url()];
    let stat = |more: &[&str]| desk.run(&[&["stat", "-n", "1"][..], more, &server].concat());
    until("the refusals are counted", || {
        serving.statuses("203.0.113.9", 1);
        let line = stat(&["-o", "json"]).code(0);
        assert_eq!(line.out.lines().count(), 1, "{line:?}");
        holds(&schema(&desk, "stat"), &line.json(), "stat");
        line.json()["per_second"]["denied"].as_f64() > Some(0.0)
    });
    let lines = stat(&[]).code(0).out;
    assert!(lines.starts_with("TIME ") && lines.lines().count() == 2, "{lines}");
    stat(&["--fail-if", "requests >= 0"]).code(3);
    stat(&["--fail-if", "requests < 0", "--fail-if", "p99 > 1min"]).code(0);
    assert!(stat(&["--fail-if", "dnied > 5%"]).code(2).err.contains("`dnied` is not a measure"));
    assert!(stat(&["-o", "yaml"]).code(2).err.contains("-o jsonl"));
}

#[test]
fn another_limit_is_tried_on_the_requests_of_a_running_server() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    assert_eq!(serving.statuses("203.0.113.8", 1), [200]);
    let tried = |rate: &str| -> Value {
        let body = json!({ "policy": "per-ip", "limit": { "rate": rate }, "w": "1h" });
        let mut answer = serving.ask("/v1/lab?reveal=true", Some(&body));
        serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
    };
    until("the requests are kept", || tried("1000/s")["requests"] == 4);
    let (same, wide) = (tried("1/day"), tried("1000/s"));
    let of = |tried: &Value| {
        ["denied_then", "denied_now", "keys", "no_longer_keys"].map(|field| tried[field].clone())
    };
    assert_eq!(of(&same), [2, 2, 2, 0].map(Value::from), "{same}");
    assert_eq!(of(&wide), [2, 0, 2, 1].map(Value::from), "{wide}");
    let page = serving.text("/ui/lab/per-ip?rate=1000/s&w=1h");
    assert!(page.contains("4 requests of all keys") && page.contains("Tried: gcra 1000/s"), "{page}");
}

/// Starts `tail`, and refuses until it tells a line.
fn tailed(serving: &Serving, words: &[&str]) -> Value {
    let all = [&["tail", "-o", "jsonl", "--server", serving.url()][..], words].concat();
    let mut tail = Running(command(&all).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(tail.0.stdout.take().unwrap()).lines();
    let (say, said) = channel();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(say.send(line))));
    let mut told = None;
    until("a refusal is told", || {
        serving.statuses("203.0.113.9", 1);
        told = said.try_recv().ok();
        told.is_some()
    });
    serde_json::from_str(&told.unwrap()).unwrap()
}

#[test]
fn a_refusal_is_told_and_its_id_says_why() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let told = tailed(&serving, &[]);
    assert_eq!(told["event"], "denied", "{told}");
    assert_eq!(told["policy"], "per-ip", "{told}");
    holds(&schema(&desk, "tail"), &told, "tail");
    assert_eq!(tailed(&serving, &["--reveal", "--policy", "per-ip"])["key"], "client.ip=203.0.113.9");
    let id = told["decision_id"].as_str().unwrap();
    let server = ["--server", serving.url()];
    let why = |text: &str| desk.run(&[&["why", text][..], &server].concat());
    // Each answer says how long ago that was.
    let timeless = |text: String| {
        let (begun, rest) = text.split_once(", ").unwrap();
        (begun.to_owned(), rest.split_once(" ago").unwrap().1.to_owned())
    };
    let alone = timeless(why(id).code(1).out);
    assert!(alone.0.starts_with("DENIED by per-ip"), "{alone:?}");
    let line = format!("{{\"fields\":{{\"message\":\"denied\",\"decision_id\":\"{id}\"}}}}\n");
    assert_eq!(timeless(why(&line).code(1).out), alone);
    let piped = desk.run_with(&[&["why", "-"][..], &server].concat(), line).code(1);
    assert_eq!(timeless(piped.out), alone);
    assert!(why("denied").code(2).err.contains("there is no decision id in it"));
}

#[test]
fn a_change_names_its_reason() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let server = ["--server", serving.url()];
    let block =
        ["key", "block", "per-ip", "--key", "client.ip=203.0.113.9", "--for", "1h", "--reason", "scraper"];
    desk.run(&[&block[..], &server].concat()).code(0);
    let changes = |more: &[&str]| desk.run(&[&["changes"][..], more, &server].concat()).code(0);
    until("the change is listed", || changes(&["-o", "json"]).json()["changes"][0]["reason"] == "scraper");
    holds(&schema(&desk, "changes"), &changes(&["-o", "json"]).json(), "changes");
    assert!(changes(&["-n", "1", "-o", "wide"]).out.contains("scraper"));
}

#[test]
fn a_file_is_compared_with_what_is_in_force() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    desk.write("other.yaml", ONE_A_DAY.replace("1/day", "2/day").replace("by:", "mode: shadow\n    by:"));
    let server = ["--server", serving.url()];
    let diff = |file: &str, more: &[&str]| desk.run(&[&["config", "diff", file][..], more, &server].concat());
    let same = diff("p.yaml", &[]).code(0).out;
    assert!(same.starts_with("no policy differs: 1 the same as in force at http://"), "{same}");
    let other = diff("other.yaml", &[]).code(1).out;
    assert!(other.contains("per-ip   changed") && other.contains("mode: enforce → shadow"), "{other}");
    for file in ["p.yaml", "other.yaml"] {
        holds(&schema(&desk, "config-diff"), &diff(file, &["-o", "json"]).json(), file);
    }
    diff("gone.yaml", &[]).code(2);
    desk.run(&["config", "diff", "p.yaml", "--server", "http://127.0.0.1:1"]).code(2);
}

#[test]
fn the_file_beside_names_the_server() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let address = serving.url().strip_prefix("http://").unwrap();
    let with = |settings: &str| {
        ONE_A_DAY.replace("version: 1\n", &format!("version: 1\nserver: {{ {settings} }}\n"))
    };
    desk.write("tidegate.yaml", with(&format!("http: '127.0.0.1:1', admin: '{address}'")));
    assert!(desk.run(&["top", "--plain"]).code(0).out.contains("per-ip"));
    desk.write("tidegate.yaml", with("http: '127.0.0.1:1'"));
    let nobody = desk.run(&["ready"]).code(1).err;
    assert!(nobody.contains("http://127.0.0.1:1 (server.http of tidegate.yaml)"), "{nobody}");
    desk.write("tidegate.yaml", with("admin: '192.0.2.5:81'"));
    let foreign = desk.run(&["ready"]).code(2).err;
    assert!(foreign.contains("--server http://192.0.2.5:81"), "{foreign}");
    desk.write("tidegate.yaml", "version: 0\n");
    desk.run(&["ready", "--server", serving.url()]).code(0);
}

/// A command on a terminal of its own, and what it draws.
struct Terminal {
    child: Running,
    keys: std::fs::File,
    drawn: Receiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    fn start(words: &[&str]) -> Self {
        let size = nix::pty::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = nix::pty::openpty(Some(&size), None).unwrap();
        let child = {
            let mut command = command(words);
            let slave = || terminal.slave.try_clone().unwrap();
            command.stdin(slave()).stdout(slave()).stderr(slave());
            Running(command.spawn().unwrap())
        };
        drop(terminal.slave);
        let keys = std::fs::File::from(terminal.master);
        let mut master = keys.try_clone().unwrap();
        let (say, drawn) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // On Linux the read ends with an error once the last writer is gone.
            while let Ok(read @ 1..) = master.read(&mut bytes) {
                if say.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, drawn, text: String::new() }
    }

    /// Waits until this was drawn.
    #[track_caller]
    fn shows(&mut self, words: &str) {
        until(words, || {
            let new: Vec<u8> = self.drawn.try_iter().flatten().collect();
            self.text.push_str(&String::from_utf8_lossy(&new));
            self.text.contains(words)
        });
    }

    /// Requires that it ends with the terminal as it was.
    #[track_caller]
    fn ends(mut self, code: i32) {
        assert_eq!(self.child.0.wait().unwrap().code(), Some(code), "{:?}", self.text);
        // The other page is left, and the cursor is seen again.
        self.shows("\u{1b}[?1049l");
        self.shows("\u{1b}[?25h");
    }
}

#[test]
fn a_test_message_reaches_a_receiver_signed_and_a_bad_secret_ends_the_start() {
    let desk = Desk::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let receiver = format!("{{ webhook: 'http://{to}/hook', secret_file: secret }}");
    desk.write("p.yaml", format!("{ONE_A_DAY}server: {{ sight: {{ alerts: {{ to: [{receiver}] }} }} }}\n"));
    desk.write("secret", "short");
    let told = desk.run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0"]).code(2);
    assert!(told.err.contains("secret_file secret: a secret has at least 16 bytes"), "{told:?}");
    desk.write("secret", "0123456789abcdef\n");
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.ask("/v1/alerts", Some(&json!({ "do": "test" }))).status(), 200);
    listener.set_nonblocking(true).unwrap();
    let mut accepted = None;
    until("the receiver is asked", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (mut stream, _) = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !(text.contains("TidegateTest") && text.contains("\"version\":\"4\"")) {
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    assert!(text.starts_with("POST /hook HTTP/1.1\r\n"), "{text}");
    assert!(text.contains("x-tidegate-signature: t=") && text.contains(",v1="), "{text}");
    until("it is counted", || serving.text("/v1/alerts").contains("\"sent\":1"));
    let shown = serving.text("/v1/alerts");
    assert!(shown.contains(&format!("http://{to}")) && !shown.contains("/hook"), "{shown}");
}

#[test]
fn top_is_a_live_view_on_a_terminal_and_gives_the_terminal_back() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    let words = ["top", "--reveal", "--server", serving.url()];
    let mut top = Terminal::start(&words);
    top.shows("[1 Now]");
    top.shows("per-ip");
    top.keys.write_all(b"2").unwrap();
    top.shows("client.ip=203.0.113.9");
    top.keys.write_all(b"?").unwrap();
    // Cells that stay the same are not drawn again, above all spaces.
    top.shows("24h");
    top.keys.write_all(b"qq").unwrap();
    top.ends(0);
    // A signal, Ctrl-C, and a server that is gone.
    let mut top = Terminal::start(&words);
    top.shows("[1 Now]");
    let sent = Command::new("kill").args(["-s", "TERM", &top.child.0.id().to_string()]).status().unwrap();
    assert!(sent.success());
    top.ends(0);
    // The terminal goes with a signal.
    let mut top = Terminal::start(&words);
    top.shows("[1 Now]");
    let Terminal { mut child, keys, drawn, .. } = top;
    drop((keys, drawn));
    let sent = Command::new("kill").args(["-s", "HUP", &child.0.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let mut top = Terminal::start(&words);
    top.shows("[1 Now]");
    top.keys.write_all(b"\x03").unwrap();
    top.ends(0);
    let mut top = Terminal::start(&words);
    top.shows("[1 Now]");
    serving.kill();
    top.shows("no server answers at http://127.0.0.1:");
    top.ends(1);
}

#[test]
fn the_live_view_has_no_colours_where_none_are_wanted() {
    let desk = Desk::new();
    let serving = refusing(&desk);
    for (more, has_colors) in [(&["--color", "never"][..], false), (&["--color", "always"], true)] {
        let words = [&["top", "--server", serving.url()][..], more].concat();
        let mut top = Terminal::start(&words);
        top.shows("per-ip");
        top.keys.write_all(b"q").unwrap();
        top.shows("\u{1b}[?1049l");
        // Red, or an index of it, for what was refused in the last seconds.
        let is_red = ["\u{1b}[38;5;1m", "\u{1b}[31m"].iter().any(|red| top.text.contains(red));
        assert!(has_colors || !is_red, "{:?}", top.text);
        top.ends(0);
    }
}

/// "Why was this refused last Tuesday?": the server has been restarted since, and the limit is another one.
#[cfg(unix)]
#[test]
fn two_hundred_refusals_are_explained_after_a_reload_and_a_restart() {
    let desk = Desk::new();
    let file = |rate: &str| {
        ONE_A_DAY
            .replace("policies:", "store: { kind: disk, path: counters }\npolicies:")
            .replace("1/day", rate)
    };
    desk.write("p.yaml", file("1/day"));
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let refused: Vec<(String, String)> = (0..200)
        .map(|number| {
            let ip = format!("10.0.0.{number}");
            serving.check(&ip);
            let answer = value(&serving.check(&ip).body_mut().read_to_string().unwrap());
            assert_eq!(answer["decision"], "denied", "{answer}");
            (ip, answer["decision_id"].as_str().unwrap().to_owned())
        })
        .collect();
    desk.write("p.yaml", file("9/day"));
    until("the new limit is in force", || {
        let told = value(&serving.text(&format!("/v1/explain?id={}", refused[0].1)));
        told["configuration"]["in_force"] == false
    });
    let explained = |serving: &Serving, from: &str| {
        let each = refused.iter().map(|(ip, id)| {
            let told = value(&serving.text(&format!("/v1/explain?id={id}&reveal=true")));
            assert_eq!((&told["from"], &told["decision"]), (&json!(from), &json!("denied")), "{told}");
            assert_eq!(told["key"], format!("client.ip={ip}"), "{told}");
            assert_eq!(told["configuration"]["in_force"], false, "{told}");
            assert_eq!(
                (&told["limits"][0]["of"], &told["limits"][0]["state_known"]),
                (&json!(1), &json!(true))
            );
            told
        });
        each.collect::<Vec<_>>()
    };
    let before = explained(&serving, "memory");
    serving.stop();

    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let after = explained(&serving, "record");
    for (before, after) in before.iter().zip(&after) {
        for name in ["policy", "refused_by", "retry_after_ms", "limits"] {
            assert_eq!(before[name], after[name], "{name}");
        }
        assert!(after["policy_then"].as_str().unwrap().contains("1/day"), "{after}");
        assert_eq!(after["now"]["answers"], "now", "{after}");
    }
    let (_, id) = &refused[0];
    let with = |rate: &str| {
        let body = json!({ "with": { "policy": "per-ip", "limit": { "rate": rate } } });
        let path = format!("/v1/explain?id={id}");
        value(&serving.ask(&path, Some(&body)).body_mut().read_to_string().unwrap())["with"]["decision"]
            .take()
    };
    assert_eq!((with("1/day"), with("2/day")), (json!("denied"), json!("allowed")));
    let why = desk.run(&["why", id, "--server", serving.url()]).code(1).out;
    assert!(why.starts_with("DENIED by per-ip") && why.contains("of an earlier run of the server"), "{why}");
}
