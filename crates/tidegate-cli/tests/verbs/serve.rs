//! The server as a process: its answers, how it reloads, how it ends.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};

const FIVE: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 5/day }
";

/// One request a day of each address.
pub(crate) const ONE_A_DAY: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 1/day }
";

/// Long enough for a busy machine; a test that passes never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Killed when dropped, so that a failed test does not leave it behind.
pub(crate) struct Serving {
    child: Child,
    said: Receiver<String>,
    url: String,
}

/// Returns the command without the developer's environment variables.
fn command(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for (name, _) in std::env::vars_os() {
        let theirs = name.to_string_lossy();
        if theirs.starts_with("TIDEGATE_") || theirs.starts_with("OTEL_") || name == "NOTIFY_SOCKET" {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).args(arguments);
    command
}

impl Serving {
    #[track_caller]
    pub(crate) fn start(desk: &Desk, arguments: &[&str]) -> Self {
        Self::spawn(desk, arguments).greeted()
    }

    /// Starts the server with environment variables.
    #[cfg(feature = "otel")]
    #[track_caller]
    pub(crate) fn with_variables(desk: &Desk, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn_with(desk, arguments, variables).greeted()
    }

    /// Starts the server without waiting until it serves.
    pub(crate) fn spawn(desk: &Desk, arguments: &[&str]) -> Self {
        Self::spawn_with(desk, arguments, &[])
    }

    /// Starts the server with variables, without waiting. Of two with the same name the second wins; an empty one
    /// counts as unset.
    pub(crate) fn spawn_with(desk: &Desk, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let all = [&["serve", "--http", "127.0.0.1:0"], arguments].concat();
        let mut command = command(&all, &desk.path(""));
        command.envs(variables.iter().copied());
        Self::of(command)
    }

    /// Starts the server so that [`Serving::fill_disk`] can be called.
    #[track_caller]
    pub(crate) fn on_disk_that_fills(desk: &Desk, arguments: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_tidegate");
        let mut command = Command::new("sh");
        // The signal would end a process that writes more than it may.
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", program, "serve", "--http", "127.0.0.1:0"]);
        command.current_dir(desk.path("")).args(arguments);
        Self::of(command).greeted()
    }

    /// From now on no file can be written beyond its first 4 kB, as on a full disk.
    pub(crate) fn fill_disk(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("prlimit").args(["--fsize=4096", "--pid", &pid]).status().unwrap().success());
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (say, said) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // Read to the end, so that the server never waits for room in the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(say.send(line))));
        Self { child, said, url: String::new() }
    }

    /// Waits for the greeting, which is printed once the server listens: from then on connections queue.
    #[track_caller]
    pub(crate) fn greeted(self) -> Self {
        self.greeting().0
    }

    /// Waits for the greeting, and returns it too.
    #[track_caller]
    pub(crate) fn greeting(mut self) -> (Self, String) {
        let greeting = self.hears("tidegate serves");
        greeting.split_once(" on ").unwrap().1.clone_into(&mut self.url);
        (self, greeting)
    }

    /// Waits for a line that contains these words.
    #[track_caller]
    pub(crate) fn hears(&self, words: &str) -> String {
        let mut before = Vec::new();
        loop {
            match self.said.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(words) => return message(line),
                Ok(line) => before.push(line),
                Err(error) => panic!("no `{words}`: {error}; but {before:#?}"),
            }
        }
    }

    pub(crate) fn ask(&self, path: &str, body: Option<&Value>) -> http::Response<ureq::Body> {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        let agent: ureq::Agent = config.build().into();
        let url = format!("{}{path}", self.url);
        match body {
            Some(body) => agent.post(url).header("content-type", "application/json").send(body.to_string()),
            None => agent.get(url).call(),
        }
        .unwrap()
    }

    /// Puts a text. Returns the answer, whatever its status.
    pub(crate) fn put(&self, path: &str, text: &str) -> Value {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        let agent: ureq::Agent = config.build().into();
        let mut answer = agent.put(format!("{}{path}", self.url)).send(text).unwrap();
        serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
    }

    pub(crate) fn check(&self, ip: &str) -> http::Response<ureq::Body> {
        self.ask("/v1/check", Some(&json!({ "attributes": { "client.ip": ip } })))
    }

    pub(crate) fn statuses(&self, ip: &str, checks: usize) -> Vec<u16> {
        (0..checks).map(|_| self.check(ip).status().as_u16()).collect()
    }

    /// Returns the text of an answer.
    pub(crate) fn text(&self, path: &str) -> String {
        self.ask(path, None).body_mut().read_to_string().unwrap()
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Kills the server.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Asks the server to stop, and waits for a line of its log. Returns its exit code.
    #[track_caller]
    pub(crate) fn stop_saying(mut self, words: &str) -> Option<i32> {
        self.signal("TERM");
        self.hears(words);
        self.child.wait().unwrap().code()
    }

    /// Asks the server to stop. Returns its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        self.child.wait().unwrap().code()
    }
}

/// Starts a server with [`ONE_A_DAY`] that has refused `203.0.113.9` twice.
#[track_caller]
pub(crate) fn refusing(desk: &Desk) -> Serving {
    desk.write("p.yaml", ONE_A_DAY);
    let serving = Serving::start(desk, &["-c", "p.yaml"]);
    assert_eq!(serving.statuses("203.0.113.9", 3), [200, 429, 429]);
    serving
}

/// Repeats a check until it holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    #[allow(clippy::disallowed_methods, reason = "real processes take their own time; the wait is bounded")]
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        // The program that is waited for needs the processor.
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // After a successful test it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_answers_refuses_and_ends_well() {
    let desk = Desk::new();
    desk.write("p.yaml", FIVE);
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.ask("/readyz", None).status(), 200);
    assert_eq!(serving.statuses("203.0.113.9", 5), [200; 5]);
    let mut refused = serving.check("203.0.113.9");
    assert_eq!(refused.status(), 429);
    // A unit returns every 17,280 seconds; some of that time has passed.
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((17_000..=17_280).contains(&wait), "{wait}");
    let problem: Value = serde_json::from_str(&refused.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(serving.statuses("203.0.113.10", 1), [200], "another caller");
    let metrics = serving.ask("/metrics", None).body_mut().read_to_string().unwrap();
    assert!(metrics.contains("tidegate_decisions_total"), "{metrics}");
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn without_a_file_the_greeting_says_what_to_try() {
    let desk = Desk::new();
    let serving = Serving::start(&desk, &[]);
    let offered = serving.hears("curl -i");
    assert!(offered.contains(&serving.url), "{offered}");
    let statuses = serving.statuses("203.0.113.9", 11);
    assert_eq!(statuses[..10], [200; 10]);
    assert_eq!(serving.stop(), Some(0));
}

/// Regression: the quickstart's limits held, and nothing named the file that was meant.
#[test]
fn a_file_beside_the_quickstart_is_named() {
    let desk = Desk::new();
    desk.write("tidegate.yml", FIVE);
    let serving = Serving::spawn(&desk, &[]);
    let told = serving.hears("did you mean -c tidegate.yml?");
    assert!(told.contains("the quickstart allows each client"), "{told}");
    assert_eq!(serving.greeted().stop(), Some(0));
}

#[test]
fn a_new_limit_holds_at_once_and_what_was_spent_stays_spent() {
    let desk = Desk::new();
    let file = desk.write("p.yaml", FIVE);
    let serving = Serving::start(&desk, &["-c", "p.yaml", "--no-watch"]);
    assert_eq!(serving.statuses("203.0.113.9", 6), [200, 200, 200, 200, 200, 429]);
    std::fs::write(&file, FIVE.replace("5/day", "7/day")).unwrap();
    serving.signal("HUP");
    serving.hears("reloaded");
    assert_eq!(serving.statuses("203.0.113.9", 3), [200, 200, 429], "two more, not seven");
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn an_edit_is_noticed_and_a_bad_one_refused() {
    let desk = Desk::new();
    let file = desk.write("p.yaml", FIVE);
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.statuses("203.0.113.9", 5), [200; 5]);

    desk.write("new.yaml", FIVE.replace("5/day", "5/dya"));
    std::fs::rename(desk.path("new.yaml"), &file).unwrap();
    serving.hears("p.yaml:6:20");
    serving.hears("the configuration was refused");
    assert_eq!(serving.statuses("203.0.113.9", 1), [429], "the old policies stay");
    assert_eq!(serving.ask("/readyz", None).status(), 200);
    // The gauge falls just after the line is written, so it is checked several times.
    let fallen = (0..1000).any(|_| {
        let metrics = serving.ask("/metrics", None).body_mut().read_to_string().unwrap();
        metrics.lines().any(|line| line == "tidegate_config_last_reload_successful 0")
    });
    assert!(fallen);

    desk.write("new.yaml", FIVE.replace("5/day", "6/day"));
    std::fs::rename(desk.path("new.yaml"), &file).unwrap();
    serving.hears("reloaded");
    assert_eq!(serving.statuses("203.0.113.9", 2), [200, 429]);
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn explaining_asks_the_server_what_it_has_counted() {
    let desk = Desk::new();
    desk.write("p.yaml", FIVE);
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let elsewhere = Desk::new();
    let explain = ["explain", "--server", &serving.url, "--attr", "client.ip=203.0.113.9"];
    assert!(elsewhere.run(&explain).code(0).out.starts_with("ALLOWED"));
    assert_eq!(serving.statuses("203.0.113.9", 6), [200, 200, 200, 200, 200, 429]);
    let told = elsewhere.run(&explain).code(1);
    assert!(told.out.starts_with("DENIED by per-ip") && told.out.contains("203.0.113.9"), "{told:?}");
    let json = elsewhere.run(&[&explain[..], &["-o", "json"]].concat()).code(1).json();
    assert_eq!(json["policy"], "per-ip");
    holds(&schema(&elsewhere, "explain"), &json, "explain, asked of a server");
    let refused = serving.check("203.0.113.9").body_mut().read_to_string().unwrap();
    let refused: Value = serde_json::from_str(&refused).unwrap();
    let refused = refused["decision_id"].as_str().unwrap().to_owned();
    let told = elsewhere.run(&["explain", "--server", &serving.url, "--id", &refused]).code(1);
    assert!(told.out.starts_with("DENIED by per-ip at "), "{told:?}");
    assert!(told.out.contains("needed 1, had 0 of 5; key client.ip=203.0.113.9"), "{told:?}");
    assert!(told.out.contains("\nnow: would be DENIED by per-ip, retry after "), "{told:?}");
    let json =
        elsewhere.run(&["explain", "--server", &serving.url, "--id", &refused, "-o", "json"]).code(1).json();
    holds(&schema(&elsewhere, "explain"), &json, "explain --id, asked of a server");
    let mut other = refused.clone();
    other.replace_range(10.., "0000000000000000");
    let gone = elsewhere.run(&["explain", "--server", &serving.url, "--id", &other]).code(1);
    assert!(gone.out.is_empty() && gone.err.contains("is not remembered here (kept: "), "{gone:?}");
    let cost = elsewhere.run(&["explain", "--id", &other, "--cost", "3"]).code(2);
    assert!(cost.err.contains("--cost"), "{cost:?}");
    let unknown = elsewhere.run(&["explain", "--server", &serving.url, "--id", "nonsense"]).code(1);
    assert!(unknown.err.contains("answered 4"), "{unknown:?}");
    // The id must be encoded in the query: otherwise a blank makes the URL invalid, and text after `&` is another
    // parameter.
    let odd = elsewhere.run(&["explain", "--server", &serving.url, "--id", "a b&c=%41+é"]).code(1);
    assert!(odd.err.contains("`a b&c=%41+é` is not a decision id"), "{odd:?}");
    assert_eq!(serving.stop(), Some(0));
}

/// A named server must win over a `tidegate.yaml` in the folder: the file would allow what the server denies with
/// 429.
#[test]
fn a_server_that_is_named_is_asked_although_a_file_is_there() {
    let desk = Desk::new();
    desk.write("tidegate.yaml", FIVE);
    let serving = Serving::start(&desk, &[]);
    assert_eq!(serving.statuses("203.0.113.9", 6)[5], 429);
    let attr = ["--attr", "client.ip=203.0.113.9"];
    let told = desk.run(&[&["explain", "--server", &serving.url], &attr[..]].concat()).code(1);
    assert!(told.out.starts_with("DENIED by per-ip"), "{told:?}");
    assert!(
        told.out.ends_with(&format!("  asked: the server at {}, how it would be decided now\n", serving.url)),
        "{told:?}"
    );
    let told = desk.run(&[&["explain", "-o", "json", "--server", &serving.url], &attr[..]].concat()).code(1);
    assert_eq!(told.json()["asked"]["server"], *serving.url);
    // A variable also names a server, but a typed file wins over it: typed options win over variables.
    let with = |name: &str, value: &str, words: &[&str]| {
        let words = [&["explain"], words, &attr[..]].concat();
        let output = command(&words, &desk.path("")).env(name, value).output().unwrap();
        output.status.code()
    };
    assert_eq!(with("TIDEGATE_SERVER", &serving.url, &[]), Some(1));
    assert_eq!(with("TIDEGATE_SERVER", &serving.url, &["-c", "tidegate.yaml"]), Some(0));
    assert_eq!(with("TIDEGATE_CONFIG", "tidegate.yaml", &["--server", &serving.url]), Some(1));
    assert_eq!(
        desk.run(&[&["explain"], &attr[..]].concat()).code(0).code,
        0,
        "the file, without any of them"
    );
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn a_check_reads_the_secrets_too() {
    let desk = Desk::new();
    desk.write("p.yaml", format!("{FIVE}tickets: {{ key_file: keys }}\n"));
    let gone = desk.run(&["serve", "--check", "-c", "p.yaml"]).code(1);
    assert!(gone.err.contains("keys") && gone.out.is_empty(), "{gone:?}");
    desk.write("keys", "short\n");
    let short = desk.run(&["serve", "--check", "-c", "p.yaml"]).code(2);
    assert!(short.err.contains("keys") && short.out.is_empty(), "{short:?}");
    desk.write("keys", format!("{}\n", "0123456789abcdef".repeat(4)));
    desk.run(&["serve", "--check", "-c", "p.yaml"]).code(0);
    desk.write("token", "abc\n");
    desk.run(&["serve", "--check", "-c", "p.yaml", "--token-file", "token"]).code(2);
}

#[test]
fn a_token_is_asked_for_and_explain_sends_it() {
    let desk = Desk::new();
    desk.write("p.yaml", FIVE);
    desk.write("token", "a-token-nobody-guesses\n");
    let serving = Serving::start(&desk, &["-c", "p.yaml", "--token-file", "token"]);
    assert_eq!(serving.statuses("203.0.113.9", 1), [401]);
    let explain = ["explain", "--server", &serving.url, "--attr", "client.ip=203.0.113.9"];
    let elsewhere = Desk::new();
    assert!(elsewhere.run(&explain).code(1).err.contains("401"));
    let output =
        command(&explain, &elsewhere.path("")).env("TIDEGATE_TOKEN", "a-token-nobody-guesses").output();
    assert!(output.unwrap().status.success());
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn what_cannot_be_served_is_refused_before_it_starts() {
    let desk = Desk::new();
    desk.write("good.yaml", FIVE);
    desk.write("bad.yaml", FIVE.replace("5/day", "5/dya"));
    desk.run(&["serve", "--check", "-c", "good.yaml"]).code(0);
    for arguments in [&["serve", "--check", "-c", "bad.yaml"][..], &["serve", "-c", "bad.yaml"]] {
        let refused = desk.run(arguments).code(2);
        assert!(format!("{}{}", refused.out, refused.err).contains("bad.yaml:6:20"), "{refused:?}");
    }
    desk.run(&["serve", "-c", "gone.yaml"]).code(2);
    desk.run(&["serve", "--check"]).code(2);
    // A port in use is not a mistake of the caller.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let refused = desk.run(&["serve", "-c", "good.yaml", "--http", &addr]).code(1);
    assert!(refused.err.contains(&addr), "{refused:?}");
}

const BREAKERS: &str = "version: 1
policies:
  - name: the payments
    limit: { algorithm: breaker, consecutive: 1 }
  - name: upstreams
    by: [upstream]
    limit: { algorithm: breaker, consecutive: 1 }
";

#[test]
fn breakers_are_listed_forced_and_left_to_themselves_golden() {
    let desk = Desk::new();
    desk.write("p.yaml", BREAKERS);
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let breaker = |words: &[&str]| desk.run(&[&["breaker"], words, &["--server", &serving.url]].concat());
    assert_eq!(
        breaker(&["list"]).code(0).out,
        "POLICY         KEY     LIMIT                                  MODE      STATE    SINCE   UNTIL   WHY\n\
         the payments   (all)   breaker consecutive 1 in 10s open 5s   enforce   closed   -       -       -\n"
    );
    assert_eq!(breaker(&["list", "upstreams"]).code(0).out, "no breaker has opened\n");
    let forced =
        breaker(&["force-open", "the payments", "--for", "5min", "--reason", "an upgrade", "-o", "json"]);
    let forced = forced.code(0).json();
    holds(&schema(&desk, "breaker"), &forced, "breaker force-open");
    let one = &forced["breakers"][0];
    assert_eq!((&one["state"], &one["reason"]), (&json!("forced-open"), &json!("an upgrade")));
    assert_eq!(serving.check("203.0.113.9").status(), 503);
    let key = ["--key", "upstream=a b&c"];
    let forced = breaker(&[&["force-closed", "upstreams"], &key[..]].concat()).code(0);
    assert!(forced.out.contains("upstream=a b&c") && forced.out.contains("forced-closed"), "{forced:?}");
    let listed = breaker(&["list", "upstreams", "--reveal"]).code(0);
    assert!(listed.out.contains("upstream=a b&c"), "{listed:?}");
    breaker(&["metrics-only", "the payments"]).code(0);
    assert_eq!(serving.check("203.0.113.9").status(), 200);
    let disabled = breaker(&["disable", "the payments", "--reason", "a trial", "-o", "json"]).code(0).json();
    let one = &disabled["breakers"][0];
    assert_eq!((&one["state"], &one["reason"]), (&json!("disabled"), &json!("a trial")));
    let auto = breaker(&["auto", "the payments", "-o", "json"]).code(0).json();
    assert_eq!(auto["breakers"][0]["state"], "closed");
    let wrong = breaker(&["force-open", "the paymnets"]).code(1);
    assert!(wrong.err.contains("did you mean \"the payments\"?"), "{wrong:?}");
    let wrong = breaker(&["force-open", "upstreams"]).code(1);
    assert!(wrong.err.ends_with("is made of `upstream`; write --key upstream=...\n"), "{wrong:?}");
    let wrong = breaker(&["force-open", "the payments", "--for", "5"]).code(2);
    assert!(wrong.err.contains("--for"), "{wrong:?}");
    let wrong = breaker(&["force-open", "the payments", "--for", "31d"]).code(1);
    assert!(wrong.err.contains("`31d` is not a time to force a state for"), "{wrong:?}");
    assert_eq!(serving.stop(), Some(0));
}

/// Returns the message of a line of the log that the program itself prints, such as the greeting; other lines as they
/// are.
fn message(line: String) -> String {
    let parsed: Option<Value> = serde_json::from_str(&line).ok();
    let own = parsed.filter(|line| line["target"] == "tidegate");
    own.and_then(|line| Some(line["fields"]["message"].as_str()?.to_owned())).unwrap_or(line)
}

/// A misspelt variable set nothing, and the server was open.
#[test]
fn a_misspelt_variable_is_told_the_nearest() {
    let desk = Desk::new();
    desk.write("p.yaml", "version: 1\npolicies: [{ name: p, limit: { rate: 1/s } }]\n");
    let told = command(&["serve", "p.yaml", "--check"], &desk.path(""))
        .env("TIDEGATE_TOKN", "a-token-nobody-guesses")
        .env("TIDEGATE_SERVICE_HOST", "10.0.0.1")
        .output()
        .unwrap();
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(
        told.contains("TIDEGATE_TOKN is not known and sets nothing; did you mean TIDEGATE_TOKEN?")
            && !told.contains("nobody-guesses")
            && !told.contains("SERVICE_HOST"),
        "{told}"
    );
}
