//! The program under attack: started with a policy file, asked, signalled, stopped.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::raw::{Answer, JSON, ask};
use super::waiting::{PATIENCE, within};

/// A policy file for attacks that do not depend on policies.
pub(crate) const FIVE_A_DAY: &str = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 5/day }
";

/// A folder with a policy file, in which the program runs.
pub(crate) struct Desk(tempfile::TempDir);

impl Desk {
    /// Makes a folder with this policy file, as `p.yaml`.
    pub(crate) fn with(policies: &str) -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        std::fs::write(desk.path("p.yaml"), policies).unwrap();
        desk
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the program, to run in this folder, without the developer's environment variables.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.run(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments);
        command
    }

    /// Returns a shell script, to run like the program; `"$0"` is the program.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = self.run("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]);
        command
    }

    fn run(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") || name == "NOTIFY_SOCKET" {
                command.env_remove(name);
            }
        }
        command.current_dir(self.0.path());
        command
    }

    /// Starts `tidegate serve` on `p.yaml`, with more arguments.
    #[track_caller]
    pub(crate) fn serve(&self, arguments: &[&str]) -> Serving {
        let all = [&["serve", "--http", "127.0.0.1:0", "-c", "p.yaml"], arguments].concat();
        Serving::start(self.command(&all))
    }
}

/// A running server. Killed when dropped, so that a failed test does not leave it behind.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) addr: SocketAddr,
    said: Receiver<String>,
}

impl Serving {
    /// Starts a server, which prints on standard error where it listens.
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (say, said) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // Read to the end, so that the server never waits for room in the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(say.send(line))));
        let mut serving = Self { child, addr: SocketAddr::from(([127, 0, 0, 1], 0)), said };
        let greeting = serving.hears("tidegate serves");
        // A server on a Unix socket has no address.
        if let Some((_, addr)) = greeting.split_once(" on http://") {
            serving.addr = addr.parse().unwrap();
        }
        serving
    }

    /// Waits for a line of the log that contains these words, and returns its message.
    #[track_caller]
    pub(crate) fn hears(&self, words: &str) -> String {
        message(self.hears_line(words))
    }

    /// Waits for a line of the log that contains these words.
    #[track_caller]
    pub(crate) fn hears_line(&self, words: &str) -> String {
        let mut before = Vec::new();
        loop {
            match self.said.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => before.push(line),
                Err(error) => panic!("no `{words}`: {error}; but {before:#?}"),
            }
        }
    }

    /// Asks as an honest caller, on a connection of its own.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        ask(self.addr, method, path, headers, body.as_bytes())
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// Checks a request with a single attribute.
    #[track_caller]
    pub(crate) fn check(&self, name: &str, value: &str) -> Answer {
        let body = serde_json::json!({ "attributes": { name: value } });
        self.ask("POST", "/v1/check", &[JSON], &body.to_string())
    }

    /// Requires that the server lives and answers: health, and one check.
    #[track_caller]
    pub(crate) fn is_well(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the server ended");
        assert_eq!(self.get("/livez").status, 200);
        assert!(matches!(self.check("attack.witness", "1").status, 200 | 429));
    }

    /// Returns the resident memory of the process, in KiB.
    pub(crate) fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // After a successful test it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until a server that was told to end has ended.
#[track_caller]
pub(crate) fn end_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    within(PATIENCE, "the server ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Runs a command until it ends by itself, within [`PATIENCE`]. Returns its output.
#[track_caller]
pub(crate) fn ended(command: Command) -> Output {
    let output = assert_cmd::Command::from_std(command).timeout(PATIENCE).output().unwrap();
    assert!(
        output.status.code().is_some(),
        "stopped by a signal, or after {PATIENCE:?}: {:.2000}",
        words(&output)
    );
    output
}

/// Returns all the output of a command.
pub(crate) fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Returns the message of a line of the log that the program itself prints, such as the greeting; other lines as they
/// are.
fn message(line: String) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_str(&line).ok();
    let own = parsed.filter(|line| line["target"] == "tidegate");
    own.and_then(|line| Some(line["fields"]["message"].as_str()?.to_owned())).unwrap_or(line)
}
