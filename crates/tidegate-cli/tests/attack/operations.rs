//! What surrounds the program turns against it: its log, its files, its folder, what it prints.
//!
//! The log cannot be written, or nobody reads it; the policy file is a pipe, a device, too long, or on a file system that
//! does not answer; names were planted where files are written; texts of strangers hold escape sequences.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::PATIENCE;
use crate::raw::{Answer, ask};
use crate::rounds;
use crate::serving::Desk;

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 5/day }
";
/// What no terminal may get: clear the screen, retitle the window, C1's way to say both, and an override of direction.
const ESCAPES: &str = "\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}2J\u{9d}0;title\u{9c}\u{202e}gpj\u{7f}";

/// A server that says nothing of itself: its log goes wherever the attack says.
struct Mute {
    child: Child,
    addr: SocketAddr,
}

impl Mute {
    #[track_caller]
    fn start(desk: &Desk, stderr: impl Into<Stdio>) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let at = addr.to_string();
        let mut command = desk.command(&["serve", "--http", &at, "-c", "p.yaml", "--drain", "1s"]);
        let child = command.stdin(Stdio::null()).stderr(stderr).spawn().unwrap();
        let mut mute = Self { child, addr };
        mute.until("it listens", || TcpStream::connect(addr).is_ok());
        mute
    }

    fn get(&self, path: &str) -> Answer {
        ask(self.addr, "GET", path, &[], b"")
    }

    fn check(&self) -> Answer {
        ask(self.addr, "POST", "/v1/check", &[], b"{\"attributes\":{\"client.ip\":\"203.0.113.9\"}}")
    }

    fn dropped(&self) -> u64 {
        let metrics = self.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("tidegate_log_lines_dropped_total "));
        line.unwrap_or_else(|| panic!("no such metric in {metrics}")).parse().unwrap()
    }

    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Waits for something of this server while it lives.
    #[track_caller]
    fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        within(PATIENCE, what, || {
            assert_eq!(self.child.try_wait().unwrap(), None, "the server ended before {what}");
            holds()
        });
    }

    /// Requires that SIGTERM ends it, as it should.
    #[track_caller]
    fn stops(mut self) {
        self.signal("TERM");
        let mut status = None;
        within(PATIENCE, "it stops", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(0));
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Asks until something holds.
#[track_caller]
fn within(most: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    #[allow(clippy::disallowed_methods, reason = "real processes take their own time; the wait is bounded")]
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < most, "not within {most:?}: {what}");
        std::thread::yield_now();
    }
}

/// Runs the command to its end, which comes within [`PATIENCE`], and returns what it printed.
#[track_caller]
fn ended(command: Command) -> Output {
    assert_cmd::Command::from_std(command).timeout(PATIENCE).output().unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Has the server log something: a refused reload speaks once per mistake.
fn makes_it_log(desk: &Desk, server: &Mute) {
    let mistakes = "nonsense: 1\n".repeat(3);
    std::fs::write(desk.path("p.yaml"), format!("{FILE}{mistakes}")).unwrap();
    for _ in 0..rounds(100, 10_000) {
        assert_eq!(ask(server.addr, "POST", "/v1/reload", &[], b"").status, 422);
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let desk = Desk::with(FILE);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let server = Mute::start(&desk, full);
    makes_it_log(&desk, &server);
    assert_eq!(server.check().status, 200);
    assert!(server.dropped() > 0);
    server.stops();
}

#[test]
fn a_reader_of_the_log_who_goes_away_ends_nothing() {
    let desk = Desk::with(FILE);
    let (reader, writer) = std::io::pipe().unwrap();
    let server = Mute::start(&desk, writer);
    drop(reader);
    makes_it_log(&desk, &server);
    assert_eq!(server.check().status, 200);
    assert!(server.dropped() > 0);
    server.stops();
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up_and_says_later_what_is_missing() {
    let desk = Desk::with(FILE);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // As much as a pipe holds: the very first line finds no room.
    writer.write_all(&vec![b'\n'; 64 << 10]).unwrap();
    let mut server = Mute::start(&desk, writer);
    makes_it_log(&desk, &server);
    for _ in 0..rounds(100, 10_000) {
        assert!(matches!(server.check().status, 200 | 429));
    }
    assert!(server.dropped() > 0);
    let text = Arc::new(Mutex::new(Vec::new()));
    let read = {
        let text = Arc::clone(&text);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut piece) {
                text.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        })
    };
    let says = |words: &str| String::from_utf8_lossy(&text.lock().unwrap()).contains(words);
    server.until("it says that lines are missing", || says("log lines are missing"));
    std::fs::write(desk.path("p.yaml"), FILE).unwrap();
    assert_eq!(ask(server.addr, "POST", "/v1/reload", &[], b"").status, 200);
    server.stops();
    read.join().unwrap();
    assert!(says("tidegate serves 1 policy on http://"), "the greeting came late and whole");
    assert!(says("configuration reloaded"), "what is left is written at the end");
}

#[test]
fn a_log_that_nobody_ever_reads_does_not_keep_the_server_from_ending() {
    let desk = Desk::with(FILE);
    let (_reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'\n'; 64 << 10]).unwrap();
    Mute::start(&desk, writer).stops();
}

/// What may stand where a policy file should, and what is said of it.
fn plant(desk: &Desk, name: &str, what: usize) -> &'static str {
    let path = desk.path(name);
    match what {
        0 => {
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            "is a pipe"
        }
        1 => {
            symlink("/dev/zero", &path).unwrap();
            "is a device"
        }
        2 => {
            std::fs::create_dir(&path).unwrap();
            "is a folder"
        }
        3 => {
            File::create(&path).unwrap().set_len(100 << 30).unwrap();
            "is longer than 4 MiB"
        }
        4 => {
            symlink(&path, &path).unwrap();
            "cannot be read"
        }
        5 => {
            symlink("/proc/self/mem", &path).unwrap();
            "cannot be read"
        }
        6 => {
            std::os::unix::net::UnixListener::bind(&path).unwrap();
            "is a socket"
        }
        _ => {
            std::fs::write(&path, b"version: 1 # \xff\n").unwrap();
            "is no UTF-8 text"
        }
    }
}
const PLANTS: usize = 8;

#[test]
fn a_file_that_is_none_is_named_at_once_by_every_verb() {
    for what in 0..PLANTS {
        let desk = Desk::with(FILE);
        let said = plant(&desk, "hostile.yaml", what);
        for verb in [
            &["config", "check", "hostile.yaml"][..],
            &["config", "show", "-c", "hostile.yaml"],
            &["config", "fmt", "hostile.yaml"],
            &["serve", "--check", "-c", "hostile.yaml"],
            &["serve", "-c", "hostile.yaml", "--http", "127.0.0.1:0"],
            &["serve", "-c", "p.yaml", "--http", "127.0.0.1:0", "--token-file", "hostile.yaml"],
            &["explain", "-c", "hostile.yaml", "--attr", "client.ip=203.0.113.9"],
            &["simulate", "-c", "hostile.yaml", "--traffic", "burst 10"],
        ] {
            let output = ended(desk.command(verb));
            let text = words(&output);
            assert!(!output.status.success(), "{verb:?}: {text}");
            // A token file may be shorter than a policy file.
            let said = if verb.contains(&"--token-file") { said.trim_end_matches("4 MiB") } else { said };
            assert!(text.contains("hostile.yaml") && text.contains(said), "{verb:?}: {text}");
        }
    }
}

#[test]
fn a_line_of_a_trace_that_never_ends_is_an_error() {
    let desk = Desk::with(FILE);
    let output = ended(desk.command(&["simulate", "--rate", "5/s", "--trace", "/dev/zero"]));
    assert!(output.status.code() == Some(2) && words(&output).contains("longer than 64 KiB"), "{output:?}");
}

#[test]
fn a_file_that_becomes_none_is_refused_and_the_server_goes_on() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    for what in 0..PLANTS {
        let said = plant(&desk, "beside", what);
        std::fs::remove_file(desk.path("p.yaml"))
            .or_else(|_| std::fs::remove_dir(desk.path("p.yaml")))
            .unwrap();
        std::fs::rename(desk.path("beside"), desk.path("p.yaml")).unwrap();
        serving.signal("HUP");
        serving.hears(said);
        let refused = serving.ask("POST", "/v1/reload", &[], "");
        assert!(refused.status == 422 && refused.body.contains(said), "{refused:?}");
        serving.is_well();
    }
    let _ = std::fs::remove_file(desk.path("p.yaml"));
    std::fs::write(desk.path("p.yaml"), FILE).unwrap();
    assert_eq!(serving.ask("POST", "/v1/reload", &[], "").status, 200);
    serving.signal("TERM");
    assert_eq!(serving.ended_within(PATIENCE).and_then(|status| status.code()), Some(0));
}

/// A file system whose server never answers, mounted at a folder: whoever looks into it waits for good.
struct HungMount<'d> {
    at: &'d Path,
    /// The server's end. Closed, everybody who waits gets an error.
    _end: File,
}

impl<'d> HungMount<'d> {
    /// Mounts it; says so and returns `None` where that needs more rights than the attack has.
    fn at(at: &'d Path) -> Option<Self> {
        use nix::mount::{MsFlags, mount};
        use std::os::fd::AsRawFd as _;
        std::fs::create_dir(at).unwrap();
        let mounted = File::options().read(true).write(true).open("/dev/fuse").and_then(|end| {
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", end.as_raw_fd());
            mount(Some("hung"), at, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
            Ok(end)
        });
        match mounted {
            Ok(end) => Some(Self { at, _end: end }),
            Err(error) => {
                eprintln!("SKIPPED: no hung file system can be mounted here: {error}");
                None
            }
        }
    }
}

impl Drop for HungMount<'_> {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.at, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_file_system_that_does_not_answer_stops_neither_signals_nor_decisions() {
    let desk = Desk::with(FILE);
    let at = desk.path("mount");
    let Some(mount) = HungMount::at(&at) else { return };
    let hung: Vec<_> = [
        &["config", "check", "mount/p.yaml"][..],
        &["serve", "-c", "mount/p.yaml", "--http", "127.0.0.1:0"],
        &["serve", "-c", "p.yaml", "--http", "127.0.0.1:0", "--token-file", "mount/token"],
    ]
    .into_iter()
    .map(|verb| {
        let command = desk.command(verb);
        std::thread::spawn(move || ended(command))
    })
    .collect();
    for long in [false, true] {
        let mut serving = desk.serve(&["--drain", "1s"]);
        symlink("mount/p.yaml", desk.path("beside")).unwrap();
        std::fs::rename(desk.path("beside"), desk.path("p.yaml")).unwrap();
        serving.signal("HUP");
        for _ in 0..rounds(100, 10_000) {
            assert!(matches!(serving.check("client.ip", "203.0.113.9").status, 200 | 429));
        }
        if long {
            serving.hears("reading it takes longer than 10 s");
            let refused = serving.ask("POST", "/v1/reload", &[], "");
            assert!(refused.body.contains("an earlier try has been hanging"), "{refused:?}");
            serving.is_well();
        }
        serving.signal("TERM");
        assert_eq!(serving.ended_within(PATIENCE).and_then(|status| status.code()), Some(0));
        std::fs::remove_file(desk.path("p.yaml")).unwrap();
        std::fs::write(desk.path("p.yaml"), FILE).unwrap();
        if rounds(1, 2) == 1 {
            break;
        }
    }
    for output in hung {
        let output = output.join().unwrap();
        assert!(!output.status.success() && words(&output).contains("takes longer than 10 s"), "{output:?}");
    }
    drop(mount);
}

/// Requires that a terminal would only draw this.
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
    let desk = Desk::with(FILE);
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
    let bodies = [
        ("200 OK", format!("{{\"decision\":{json},\"lines\":[{json}],{json}:{json}}}")),
        ("403 Forbidden", format!("{{\"detail\":{json}}}")),
        ("500 Oops", format!("{{\"title\":{json}}}")),
        ("200 OK", ESCAPES.to_owned()),
    ];
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let desk = Desk::with(FILE);
    std::thread::scope(|scope| {
        for (status, body) in &bodies {
            for form in ["table", "json", "jsonl", "yaml"] {
                let listener = &listener;
                scope.spawn(move || {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut head = [0; 4096];
                    let _ = stream.read(&mut head);
                    let answer = format!(
                        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = stream.write_all(answer.as_bytes());
                    // Until the other end has read it and closes.
                    let _ = stream.read(&mut head);
                });
                let output = ended(desk.command(&["explain", "--id", "x", "--server", &url, "-o", form]));
                draws(&format!("{status} -o {form}"), &output);
            }
        }
    });
}

#[test]
fn what_is_set_and_cannot_be_read_is_an_error() {
    let desk = Desk::with(FILE);
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
    assert!(words(&output).contains("TIDEGATE_TOKEN is set to bytes that are no UTF-8 text"), "{output:?}");
    // A level misspelt was no level at all.
    let mut command = desk.command(&serve);
    command.env("TIDEGATE_LOG", "tidegate=lots");
    assert_eq!(ended(command).status.code(), Some(2));
}

#[test]
fn tidying_widens_nothing_and_follows_nothing_planted() {
    let desk = Desk::with("version: 1   \npolicies: []\n");
    let (file, victim) = (desk.path("p.yaml"), desk.path("victim"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("p.yaml", desk.path("link.yaml")).unwrap();
    std::fs::write(&victim, "kept").unwrap();
    // The name that was once written to, before it was renamed.
    symlink("victim", desk.path("p.tidegate-tmp")).unwrap();
    symlink("victim", desk.path("link.tidegate-tmp")).unwrap();
    let output = ended(desk.command(&["config", "fmt", "link.yaml"]));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "version: 1\npolicies: []\n");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(desk.path("link.yaml").is_symlink());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
    let written = ended(desk.command(&["init", "--force", "link.yaml"]));
    assert!(written.status.success(), "{written:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let device = ended(desk.command(&["init", "--force", "/dev/null"]));
    assert!(!device.status.success() && words(&device).contains("no regular file"), "{device:?}");
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let desk = Desk::with(FILE);
    let disk = desk.path("disk");
    std::fs::create_dir(&disk).unwrap();
    if let Err(error) = mount(Some("tiny"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=16k")) {
        eprintln!("SKIPPED: no small file system can be mounted here: {error}");
        return;
    }
    let old = format!("{FILE}# years of work   \n");
    std::fs::write(disk.join("p.yaml"), &old).unwrap();
    let filled = std::fs::write(disk.join("filler"), vec![b'x'; 64 << 10]);
    let ran: Vec<Output> = [&["init", "--force", "disk/p.yaml"][..], &["config", "fmt", "disk/p.yaml"]]
        .map(|verb| ended(desk.command(verb)))
        .into();
    let left = std::fs::read_to_string(disk.join("p.yaml"));
    let names = std::fs::read_dir(&disk).map(Iterator::count);
    umount2(&disk, MntFlags::MNT_DETACH).unwrap();
    assert!(filled.is_err(), "the disk is full");
    for output in ran {
        assert!(
            !output.status.success() && words(&output).contains("cannot replace disk/p.yaml"),
            "{output:?}"
        );
    }
    assert_eq!(left.unwrap(), old);
    assert_eq!(names.unwrap(), 2, "nothing is left beside it");
}

#[test]
fn a_reader_who_has_seen_enough_changes_no_verdict() {
    let desk = Desk::with("version: 2\n");
    std::fs::write(desk.path("good.yaml"), FILE).unwrap();
    for (verb, code) in [
        (&["config", "check", "p.yaml"][..], 2),
        (&["config", "check", "good.yaml"], 0),
        (&["completions", "bash"], 0),
        (&["simulate", "--traffic", "steady 1000/s 1m", "--rate", "5/s", "-o", "json"], 0),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = desk.command(verb).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let _ = child.stderr.take().map(|mut err: ChildStderr| err.read_to_string(&mut said));
        assert_eq!(child.wait().unwrap().code(), Some(code), "{verb:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("pipe"), "{verb:?}: {said}");
        // A disk that is full is no reader who has seen enough.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = desk.command(verb).stdout(full).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{verb:?}");
    }
}
