//! Output on a terminal: colours, and the source lines of mistakes. In a pipe there are neither.

use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::verbs::Desk;

const GOOD: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 2/min, burst: 3 }
";

const BAD: &str = "version: 1
policies:
  - name: per-ip
    limit: { rate: 5/M, bust: 3 }
";

/// Runs the command with its output and its errors on a terminal. Returns both, in order.
pub(crate) fn seen(desk: &Desk, arguments: &[&str], variable: Option<(&str, &str)>) -> String {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut child = {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("TIDEGATE_") || name.starts_with("CLICOLOR") || name == "NO_COLOR" {
                command.env_remove(&*name);
            }
        }
        command.env("TERM", "xterm").envs(variable).current_dir(desk.path("")).args(arguments);
        command.stdin(Stdio::null()).stdout(terminal.slave.try_clone().unwrap()).stderr(terminal.slave);
        command.spawn().unwrap()
        // This drops the command with its ends of the terminal, so that only the child has some.
    };
    let (mut master, mut bytes) = (std::fs::File::from(terminal.master), Vec::new());
    // On Linux the read ends with an error once the last writer is gone.
    let _ = master.read_to_end(&mut bytes);
    child.wait().unwrap();
    String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
}

#[test]
fn a_mistake_of_a_file_is_shown_in_its_line_on_a_terminal_only() {
    let desk = Desk::new();
    desk.write("bad.yaml", BAD);
    let marks = "4 |     limit: { rate: 5/M, bust: 3 }\n  |                    ^^^\n";
    let lines =
        "bad.yaml:4:20  error  policy \"per-ip\": rate: \"M\" could be minute or month; write min or month\n";
    let plain = Some(("NO_COLOR", "1"));
    for verb in [
        &["config", "check", "bad.yaml"][..],
        &["serve", "-c", "bad.yaml"],
        &["serve", "-c", "bad.yaml", "--check"],
        &["explain", "-c", "bad.yaml"],
        &["simulate", "-c", "bad.yaml", "--traffic", "burst 1"],
    ] {
        let told = seen(&desk, verb, plain);
        assert!(told.contains(marks) && told.contains(" --> bad.yaml:4:20\n"), "{told}");
        assert!(told.contains("2 problems (2 errors") && !told.contains('\u{1b}'), "{told:?}");
        let piped = desk.run(verb).code(2);
        let piped = piped.out + &piped.err;
        assert!(piped.contains(lines) && !piped.contains('^'), "{piped}");
    }
    let json = seen(&desk, &["config", "check", "bad.yaml", "-o", "json", "--color", "always"], None);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["errors"], 2);
    let colored = seen(&desk, &["config", "check", "bad.yaml"], None);
    assert!(colored.contains("\u{1b}[1m\u{1b}[91merror") && colored.contains("2 problems"), "{colored:?}");
}

/// `--color` and NO_COLOR must affect all output, including the log.
#[test]
fn colours_are_where_they_are_wanted_and_nowhere_else() {
    const RED: &str = "\u{1b}[1m\u{1b}[31m";
    let desk = Desk::new();
    desk.write("good.yaml", GOOD);
    let denied = ["explain", "-c", "good.yaml", "--cost", "9", "--attr", "client.ip=203.0.113.9"];
    let table = ["simulate", "-c", "good.yaml", "--traffic", "burst 7"];
    let failed = ["simulate", "--rate", "10rps", "--traffic", "burst 7"];
    let usage = ["simulate", "--nonsense"];
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let serve = ["serve", "-c", "good.yaml", "--http", &port];
    let shown = [
        (&denied[..], format!("{RED}DENIED\u{1b}[0m by per-ip")),
        (&denied[..], format!("per-ip  {RED} DENIED \u{1b}[0m")),
        (&table[..], "\u{1b}[1mPOLICY   MODE".to_owned()),
        (&table[..], format!("7        {RED}4\u{1b}[0m")),
        (&failed[..], format!("{RED}error:\u{1b}[0m --rate: \"10rps\"")),
        (&usage[..], format!("{RED}error:\u{1b}[0m unexpected")),
        (&serve[..], format!("{RED}error:\u{1b}[0m 127.0.0.1:{port}: another program listens there")),
    ];
    for (verb, part) in shown {
        let told = seen(&desk, verb, None);
        assert!(told.contains(&part), "{part:?}: {told:?}");
        for (variable, words) in [(Some(("NO_COLOR", "1")), &[][..]), (None, &["--color", "never"])] {
            let told = seen(&desk, &[verb, words].concat(), variable);
            assert!(!told.contains('\u{1b}'), "{told:?}");
        }
        let piped = desk.run(verb);
        assert!(!(piped.out + &piped.err).contains('\u{1b}'), "{verb:?}");
        let piped = desk.run(&[verb, &["--color", "always"]].concat());
        // The log of a server is JSON where it is no terminal.
        let is_log = verb[0] == "serve";
        assert!(is_log != (piped.out + &piped.err).contains(&part), "{verb:?}");
        for form in ["json", "jsonl", "yaml"] {
            let printed = desk.run(&[verb, &["--color", "always", "-o", form]].concat());
            assert!(!printed.out.contains('\u{1b}'), "{printed:?}");
        }
    }
}

/// A log is read about four times, which takes a while: each reading shows its progress.
#[test]
fn the_readings_of_a_suggestion_are_shown_on_a_terminal() {
    let desk = Desk::new();
    let log = crate::verbs::sample("access.log");
    let shown = seen(&desk, &["suggest", &log], None);
    for reading in ["reading 1, measuring", "choosing", "replaying"] {
        assert!(shown.contains(reading), "{reading}: {shown:?}");
    }
    let quiet = seen(&desk, &["suggest", &log, "-q"], None);
    assert!(!quiet.contains("reading 1") && quiet.contains("recommended"), "{quiet:?}");
    // Logs are not typed: without a file the command ends at once.
    assert!(seen(&desk, &["suggest"], None).contains("no log named"));
}
