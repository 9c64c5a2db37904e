//! The profiles answer as their peers do, bit for bit.
//!
//! Random traces go through the real peers when they are installed: Debian's `golang-go` with `golang-golang-x-time-dev`, and
//! `libguava-java` with a JDK. Small recordings of such runs lie beside the drivers, so that the comparison also
//! holds without them; `TIDEGATE_RECORD=1` writes them anew. Uber's pacer has no package; its tables, worked out by hand
//! from the documented rule, are in its own file.

#![allow(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]

#[path = "buckets_model/random.rs"]
mod random;

use core::fmt::Write as _;
use core::time::Duration;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use random::{Dice, steps};
use tidegate_core::rate::profile::{GuavaBursty, GuavaWarming, XTime};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Receipt, Replace, State, Tick, Verdict};

/// Ours, driven by the lines that the peers' drivers read.
#[derive(Default)]
struct Ours {
    quota: Option<Quota>,
    state: Option<State>,
    grants: Vec<Receipt>,
}

impl Ours {
    fn start(&mut self, quota: Quota) -> String {
        self.state = Some(quota.fresh(Tick::EPOCH));
        (self.quota, self.grants) = (Some(quota), Vec::new());
        "+0".to_owned()
    }

    /// Grants keep their receipt when they were asked for with a wait, as the peer's driver does.
    fn ask(&mut self, now: u64, cost: u64, max_wait: Duration) -> Option<Duration> {
        let ask = Ask::within(Tick::from_nanos(now), Cost::new(cost).unwrap(), max_wait);
        let (quota, state) = (self.quota.as_ref().unwrap(), self.state.as_mut().unwrap());
        match quota.decide(state, ask) {
            Verdict::Allowed { wait, next, receipt } => {
                *state = next;
                if !max_wait.is_zero() {
                    self.grants.push(receipt);
                }
                Some(wait)
            }
            Verdict::Denied { retry_after } => {
                is_least(quota, state, ask, retry_after);
                None
            }
        }
    }

    fn change(&mut self, now: u64, quota: Quota) -> String {
        let (old, state) = (self.quota.take().unwrap(), self.state.take().unwrap());
        self.state = Some(quota.carry(&old, &state, Tick::from_nanos(now), Replace::AsIs));
        self.quota = Some(quota);
        "+0".to_owned()
    }

    fn x_time(&mut self, line: &str) -> String {
        let words: Vec<_> = line.split(' ').collect();
        let word = |n: usize| words[n].parse::<u64>().unwrap();
        let limit = |n| XTime::new(f64::from_bits(word(n)), word(n + 1)).unwrap();
        let mut at = 0;
        if words[0] != "new" {
            at = word(1);
        }
        let answer = match words[0] {
            "new" => self.start(limit(1).into()),
            "ask" => {
                let max_wait = if words[3] == "0" { Duration::ZERO } else { Duration::MAX };
                let wait = self.ask(at, word(2), max_wait);
                wait.map_or_else(|| "-".to_owned(), |wait| format!("+{}", wait.as_nanos()))
            }
            "cancel" => {
                let receipt = self.grants[word(2) as usize];
                let (quota, state) = (self.quota.as_ref().unwrap(), self.state.as_mut().unwrap());
                *state = quota.cancel(state, Tick::from_nanos(at), &receipt);
                "+0".to_owned()
            }
            _ => self.change(at, limit(2).into()),
        };
        let (Some(Quota::XTime(limit)), Some(State::XTime(state))) = (&self.quota, &self.state) else {
            panic!("made by `new`")
        };
        format!("{answer} {}", limit.tokens_at(state, Tick::from_nanos(at)).to_bits())
    }

    fn guava(&mut self, line: &str) -> String {
        let words: Vec<_> = line.split(' ').collect();
        let word = |n: usize| words[n].parse::<u64>().unwrap();
        let float = |n| f64::from_bits(word(n));
        match words[0] {
            "bursty" => self.start(GuavaBursty::new(float(1)).unwrap().into()),
            "warming" => {
                let warm_up = Duration::from_micros(word(2));
                self.start(GuavaWarming::new(float(1), warm_up, float(3)).unwrap().into())
            }
            "ask" => {
                let wait = self.ask(word(1) * 1000 + 999, word(2), Duration::from_micros(word(3)));
                wait.map_or_else(|| "-".to_owned(), |wait| format!("+{}", wait.as_micros()))
            }
            _ => {
                let quota = match self.quota.clone().unwrap() {
                    Quota::GuavaWarming(old) => old.with_rate(float(2)).unwrap().into(),
                    _ => GuavaBursty::new(float(2)).unwrap().into(),
                };
                self.change(word(1) * 1000, quota)
            }
        }
    }
}

/// A promised wait is enough, and a nanosecond less is not, in floats too.
fn is_least(quota: &Quota, state: &State, ask: Ask, retry_after: Option<Duration>) {
    let Some(retry) = retry_after else { return };
    let allowed = |after| {
        let ask = Ask { now: ask.now.after(after), ..ask };
        matches!(quota.decide(state, ask), Verdict::Allowed { .. })
    };
    assert!(allowed(retry), "{ask:?} waits {retry:?}: {quota:?} {state:?}");
    assert!(!allowed(retry - Duration::from_nanos(1)), "{ask:?} waits {retry:?}: {quota:?} {state:?}");
}

/// Writes a trace of random requests with our answers to them.
fn x_time_trace(steps: u64) -> Vec<(String, String)> {
    let (mut dice, mut ours, mut trace) = (Dice::new(7), Ours::default(), Vec::new());
    for step in 0..steps {
        let limits = [0.01, 0.1, 1.0, 1.0 / 3.0, 10.0, 7.3, 1000.0, 999_983.0, 1e9];
        let limit: f64 = dice.pick(&limits);
        // Waits stay within 292 years: older releases overflow beyond.
        let burst = dice.one_to(1_000_000).min((limit * 1e7) as u64);
        let line = match (step % 100, &ours.quota) {
            (1.., Some(Quota::XTime(now))) => {
                let interval = (1e9 / now.limit()) as u64;
                let clock = clock(&mut dice, &trace, interval);
                match dice.up_to(15) {
                    0 => format!("set {clock} {} {burst}", limit.to_bits()),
                    1..=3 if !ours.grants.is_empty() => {
                        format!("cancel {clock} {}", dice.up_to(ours.grants.len() as u64 - 1))
                    }
                    _ => {
                        let most = dice.pick(&[1, 3, now.burst().saturating_add(1)]);
                        format!("ask {clock} {} {}", dice.one_to(most), dice.pick(&["0", "0", "-1"]))
                    }
                }
            }
            _ => format!("new {} {burst}", limit.to_bits()),
        };
        let answer = ours.x_time(&line);
        trace.push((line, answer));
    }
    trace
}

fn guava_trace(steps: u64) -> Vec<(String, String)> {
    let (mut dice, mut ours, mut trace) = (Dice::new(8), Ours::default(), Vec::new());
    for step in 0..steps {
        let rate: f64 = dice.pick(&[0.1, 1.0, 2.0, 3.0, 5.0, 7.7, 100.0, 997.0, 1e6, 3e6]);
        let line = if step % 100 > 0 {
            let clock = clock(&mut dice, &trace, (1e6 / rate) as u64);
            if dice.up_to(15) == 0 {
                format!("set {clock} {}", rate.to_bits())
            } else {
                let timeout = dice.pick(&[0, 0, 1000, 1_000_000, u64::MAX / 1_000_000]);
                let most = dice.pick(&[1, 4, 1000]);
                format!("ask {clock} {} {timeout}", dice.one_to(most))
            }
        } else if dice.up_to(1) == 0 {
            format!("bursty {}", rate.to_bits())
        } else {
            let warm_up = dice.pick(&[0, 1, 1000, 3_000_000, 3_333_333, 60_000_000]);
            let factor: f64 = dice.pick(&[1.0, 1.5, 3.0, 3.0, 10.0]);
            format!("warming {} {warm_up} {}", rate.to_bits(), factor.to_bits())
        };
        let answer = ours.guava(&line);
        trace.push((line, answer));
    }
    trace
}

/// A time some units after the last line's, or now and then before it.
fn clock(dice: &mut Dice, trace: &[(String, String)], interval: u64) -> u64 {
    let last = &trace.last().unwrap().0;
    let mut words = last.split(' ');
    let last = match words.next() {
        Some("ask" | "cancel" | "set") => words.next().unwrap().parse().unwrap(),
        _ => 1_000_000_000_000u64,
    };
    let span = match dice.up_to(9) {
        0..=2 => 0,
        3..=5 => dice.up_to(interval * 2),
        6 => interval,
        7 => dice.up_to(interval * 100),
        8 => dice.up_to(1_000_000_000_000),
        _ => return last.saturating_sub(dice.up_to(interval * 2)),
    };
    last + span
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

fn run(command: &mut Command) {
    let status = command.status().expect("it answered to --version");
    assert!(status.success(), "{command:?} failed");
}

fn is_there(command: &str) -> bool {
    // The one takes `version`, the other `-version`; any answer will do.
    Command::new(command).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Sends a trace through a peer and compares its answers with ours.
fn compare(trace: &[(String, String)], peer: &mut Command, recording: &str) {
    let mut child = peer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("just built");
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = String::new();
    for (line, _) in trace {
        writeln!(lines, "{line}").unwrap();
    }
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    let mut record = String::new();
    assert_eq!(answers.lines().count(), trace.len(), "{peer:?} stopped early");
    for (number, ((line, ours), theirs)) in trace.iter().zip(answers.lines()).enumerate() {
        assert_eq!(
            ours,
            theirs,
            "line {number}: {line}\nafter {:#?}",
            &trace[number.saturating_sub(9)..number]
        );
        if number < 600 {
            writeln!(record, "{line} = {theirs}").unwrap();
        }
    }
    if std::env::var_os("TIDEGATE_RECORD").is_some() {
        fs::write(folder().join(recording), record).unwrap();
    }
}

fn replay(recording: &str, mut ours: impl FnMut(&str) -> String) {
    let text = fs::read_to_string(folder().join(recording)).unwrap();
    assert!(text.lines().count() >= 600);
    for line in text.lines() {
        let (request, theirs) = line.split_once(" = ").unwrap();
        assert_eq!(ours(request), theirs, "{request}");
    }
}

#[test]
fn x_time_answers_as_recorded() {
    let mut ours = Ours::default();
    replay("x_time.trace", |line| ours.x_time(line));
}

#[test]
fn guava_answers_as_recorded() {
    let mut ours = Ours::default();
    replay("guava.trace", |line| ours.guava(line));
}

#[test]
fn x_time_answers_as_the_real_one() {
    let trace = x_time_trace(steps(50_000));
    if !is_there("go") || !Path::new("/usr/share/gocode/src/golang.org/x/time/rate").exists() {
        println!("skipped: x/time/rate is not installed (golang-go, golang-golang-x-time-dev)");
        return;
    }
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("x_time");
    let mut go = Command::new("go");
    go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode").arg("build").arg("-o").arg(&built);
    run(go.arg(folder().join("x_time.go")));
    compare(&trace, &mut Command::new(built), "x_time.trace");
}

#[test]
fn guava_answers_as_the_real_one() {
    let trace = guava_trace(steps(50_000));
    let jar = "/usr/share/java/guava.jar";
    if !is_there("javac") || !is_there("java") || !Path::new(jar).exists() {
        println!("skipped: Guava is not installed (libguava-java, default-jdk-headless)");
        return;
    }
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guava");
    fs::create_dir_all(&built).unwrap();
    run(Command::new("javac").args(["-cp", jar, "-d"]).arg(&built).arg(folder().join("Guava.java")));
    let class_path = format!("{jar}:{}", built.display());
    let mut java = Command::new("java");
    java.args(["-cp", &class_path, "com.google.common.util.concurrent.Guava"]);
    compare(&trace, &mut java, "guava.trace");
}
