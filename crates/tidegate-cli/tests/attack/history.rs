//! A server that is killed at any moment, and one whose disk is full: a minute of the past is lost at most, no file is
//! damaged, and counters are what they were.

#![allow(clippy::disallowed_methods, reason = "what a crash may lose is a stretch of real time")]

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::attack::raw::JSON;
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving, end_of};
use crate::attack::waiting::{PATIENCE, within};

const POLICIES: &str = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
store: { kind: disk, path: data, keys: 10000 }
policies:
  - name: per-user
    by: [user.id]
    limit: { rate: 1000000/day }
  - name: strict
    by: [form.code]
    limit: { algorithm: fixed-window, rate: 6/day }
    durable: strict
";

/// What a crash may lose: a minute, the write that it cuts, and the second that has not ended.
const LOST: Duration = Duration::from_secs(63);

/// Seconds since 1970, of a time before the first decision of a test that begins now.
fn begin() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() - 120
}

/// Returns how many decisions of a policy the history has since a time.
fn counted(serving: &Serving, policy: &str, since: u64) -> u64 {
    let path = format!("/v1/history?policy={policy}&series=allowed,denied&step=1m&from={since}");
    let answer = serving.get(&path).json();
    let of = |series: &str| -> u64 {
        let points = answer["series"][series].as_array().unwrap_or_else(|| panic!("{answer}"));
        points.iter().map(|point| point[1].as_u64().unwrap()).sum()
    };
    of("allowed") + of("denied")
}

/// Requires that no file was put aside.
#[track_caller]
fn is_undamaged(desk: &Desk) {
    for file in std::fs::read_dir(desk.path("data")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("damaged"), "{name}");
    }
}

/// Spends four of the six units of a code: they are on disk before they are answered.
#[track_caller]
fn spend_four(serving: &Serving, code: &str) {
    let statuses: Vec<u16> = (0..4).map(|_| serving.check("form.code", code).status).collect();
    assert_eq!(statuses, [200; 4], "{code}");
}

/// Requires that two are left.
#[track_caller]
fn two_are_left(serving: &Serving, code: &str) {
    let statuses: Vec<u16> = (0..3).map(|_| serving.check("form.code", code).status).collect();
    assert_eq!(statuses, [200, 200, 429], "{code}");
}

/// What somebody asked until the server was gone.
#[derive(Debug, Default)]
struct Asked {
    sent: u64,
    answered: Vec<Instant>,
}

/// Asks until the server is gone.
fn ask_until_gone(addr: SocketAddr) -> Asked {
    let mut asked = Asked::default();
    loop {
        let body = json!({ "attributes": { "user.id": format!("user-{}", asked.sent % 100) } }).to_string();
        asked.sent += 1;
        if !is_answered(addr, &body).unwrap_or(false) {
            return asked;
        }
        asked.answered.push(Instant::now());
        std::thread::park_timeout(Duration::from_millis(4));
    }
}

fn is_answered(addr: SocketAddr, body: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    write!(stream, "{head}{}: {}\r\ncontent-length: {}\r\n\r\n{body}", JSON.0, JSON.1, body.len())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

/// Draws how long a server lives: a moment; in the long form also until it writes its history, and longer than that.
fn life(crash: usize, seed: &mut Seed) -> Duration {
    let millis = match crash % 4 {
        2 if rounds(0, 1) == 1 => 59_500 + seed.below(900),
        3 if rounds(0, 1) == 1 => 61_000 + seed.below(30_000),
        _ => 50 + seed.below(1_500),
    };
    Duration::from_millis(millis as u64)
}

#[test]
fn a_crash_loses_a_minute_of_the_past_at_most_and_damages_no_file() {
    let mut seed = Seed::printed("crashes of the history");
    let (desk, since) = (Desk::with(POLICIES), begin());
    let mut serving = desk.serve(&[]);
    let mut before = 0;
    for crash in 0..rounds(3, 50) {
        let code = format!("code-{crash}");
        spend_four(&serving, &code);
        let addr = serving.addr;
        let asks = std::thread::spawn(move || ask_until_gone(addr));
        let (begun, life) = (Instant::now(), life(crash, &mut seed));
        while let Some(left) = life.checked_sub(begun.elapsed()) {
            std::thread::park_timeout(left);
        }
        let killed = Instant::now();
        serving.child.kill().unwrap();
        serving.child.wait().unwrap();
        let asked = asks.join().unwrap();

        serving = desk.serve(&[]);
        is_undamaged(&desk);
        let after = counted(&serving, "per-user", since);
        assert!(after >= before, "crash {crash}: {after} are left of {before} that had been written");
        let old = asked.answered.iter().filter(|at| killed.saturating_duration_since(**at) > LOST);
        let (kept, old) = (after - before, old.count() as u64);
        assert!(kept >= old, "crash {crash}, after {life:?}: {kept} are kept of {old} old ones");
        assert!(kept <= asked.sent, "crash {crash}: {kept} are kept of {}", asked.sent);
        two_are_left(&serving, &code);
        before = after;
    }
    serving.signal("TERM");
    assert!(end_of(&mut serving.child).success());
    let serving = desk.serve(&[]);
    assert_eq!(counted(&serving, "per-user", since), before);
}

/// A file system of 64 MiB, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`: none can be mounted here, which is told.
    fn at(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).unwrap();
        let options = Some("size=64m,mode=700");
        match mount(Some("small"), &path, Some("tmpfs"), MsFlags::empty(), options) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                eprintln!("SKIPPED: no small file system can be mounted here: {error}");
                None
            }
        }
    }

    /// Fills it to the last byte. Returns the file that does.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = File::create(&path).unwrap();
        for size in [64 << 10, 4 << 10, 1] {
            let some = vec![b'x'; size];
            while file.write_all(&some).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Many policies with long names, of which each write of the history needs pages.
fn many_policies() -> String {
    let policy = |number: usize| {
        let head = format!("  - name: p{number:0>60}\n    match: {{ path: /{number}/** }}\n");
        head + "    by: [user.id]\n    limit: { rate: 1000000/day }\n"
    };
    POLICIES.to_owned() + &(1000..1100).map(policy).collect::<String>()
}

/// Asks once under each of the many policies, and so often under `per-user`.
#[track_caller]
fn ask_all(serving: &Serving) {
    for number in 1000..1100 {
        let path = format!("/{number}/x");
        let body = json!({ "attributes": { "user.id": "u", "request.path": path } }).to_string();
        assert_eq!(serving.ask("POST", "/v1/check", &[JSON], &body).status, 200);
    }
}

/// Waits until a write of the history succeeds, or fails. There is one a minute.
#[track_caller]
fn until_written(serving: &Serving, succeeds: bool) {
    within(Duration::from_secs(150), "the history is written, or is not", || {
        std::thread::park_timeout(Duration::from_millis(100));
        serving.get("/v1/overview").json()["history"]["up"] == succeeds
    });
    let told = format!("\ntidegate_sight_history_up {}\n", u8::from(succeeds));
    assert!(serving.get("/metrics").body.contains(&told), "no{told}");
}

#[test]
fn a_full_disk_stops_the_history_and_nothing_else() {
    if rounds(0, 1) == 0 {
        eprintln!("SKIPPED: the history is written once a minute; `cargo xtask attack` waits for it");
        return;
    }
    let (desk, since) = (Desk::with(&many_policies()), begin());
    let Some(disk) = SmallDisk::at(desk.path("data")) else { return };
    let mut serving = desk.serve(&[]);
    spend_four(&serving, "code");
    ask_all(&serving);
    until_written(&serving, true);
    let filler = disk.fill();
    until_written(&serving, false);
    ask_all(&serving);
    assert_eq!(serving.get("/livez").status, 200);
    std::fs::remove_file(filler).unwrap();
    until_written(&serving, true);
    assert_eq!(counted(&serving, "per-user", since), 200, "it waited in memory");
    serving.signal("TERM");
    assert!(end_of(&mut serving.child).success());

    let serving = desk.serve(&[]);
    is_undamaged(&desk);
    assert_eq!(counted(&serving, "per-user", since), 200);
    two_are_left(&serving, "code");
}
