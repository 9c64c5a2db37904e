//! A process of a test, with a folder of its own. It ends with the test.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A process that a test has started. Dropping this kills it and deletes its folder.
#[derive(Debug)]
pub struct Process {
    command: Command,
    child: Option<Child>,
    folder: TempDir,
}

impl Process {
    /// Starts a process. Its output goes to the file `log` in its folder.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut command: Command, folder: TempDir) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(folder.path().join("log"));
        let log = log.expect("the folder is the test's own");
        let errors = log.try_clone().expect("the file is open");
        command.stdout(log).stderr(errors);
        let mut process = Self { command, child: None, folder };
        process.start_again();
        process
    }

    /// Starts it again with the same command, in the same folder.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_again(&mut self) {
        self.kill();
        let started = self.command.spawn();
        self.child = Some(started.unwrap_or_else(|error| panic!("{:?}: {error}", self.command)));
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it as a service manager does (`SIGTERM`), and returns once it has ended.
    ///
    /// # Panics
    /// If it is not running, or does not end.
    pub fn stop(&mut self) {
        self.signal("-TERM");
        let child = self.child.as_mut().expect("it is running");
        within("it ends", || child.try_wait().is_ok_and(|ended| ended.is_some()));
        self.child = None;
    }

    /// Sends it a signal, in the form that `kill` accepts: `-STOP` and `-CONT` pause and resume it. After `-STOP` it
    /// returns once all threads stand still: on a busy machine one may run for a moment longer, and answer.
    ///
    /// # Panics
    /// If it is not running.
    pub fn signal(&self, signal: &str) {
        let child = self.child.as_ref().expect("it is running");
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal} {}", child.id());
        if signal == "-STOP" {
            within("all its threads are stopped", || is_stopped(child.id()));
        }
    }

    /// Returns its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// The most bytes that are read of what the system tells of a thread.
const STAT: u64 = 4096;

/// Says whether all threads of a process are stopped by a signal; also if there is no `/proc` to tell.
fn is_stopped(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return true };
    threads.flatten().all(|thread| {
        let mut stat = String::new();
        if let Ok(file) = File::open(thread.path().join("stat")) {
            // A thread that is gone in between says nothing.
            let _ = file.take(STAT).read_to_string(&mut stat);
        }
        // The state follows the name, which is in parentheses and may itself contain some.
        stat.rsplit_once(") ").is_none_or(|(_, fields)| fields.starts_with('T'))
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the path of a Python package's program, in the environment that `cargo xtask test` makes; `None` to skip the
/// test, with a message.
///
/// # Panics
/// If it is missing and `TIDEGATE_REQUIRE_SERVERS=1`.
#[must_use]
pub fn python_program(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let path = cache.unwrap_or_default().join("tidegate/python/bin").join(name);
    if path.exists() {
        return Some(path);
    }
    skipped(&path.display().to_string(), "cargo xtask test installs it");
    None
}

/// Returns the path of a program; `None` to skip the test, with a message.
///
/// # Panics
/// If it is not installed and `TIDEGATE_REQUIRE_SERVERS=1`.
#[must_use]
pub fn program(name: &str, package: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/local/bin", "/usr/sbin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    if found.is_none() {
        missing(name, package);
    }
    found
}

/// Returns the path of a program of this workspace that was built beside the running test or example.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a process knows its program");
    let mut beside = here.ancestors().map(|folder| folder.join(name)).filter(|file| file.is_file());
    beside
        .next()
        .unwrap_or_else(|| panic!("{name} is not built beside {}: cargo build first", here.display()))
}

/// Prints that a test is skipped because a program is not installed.
///
/// # Panics
/// If `TIDEGATE_REQUIRE_SERVERS=1`.
pub fn missing(name: &str, package: &str) {
    skipped(name, &format!("apt-get install {package}"));
}

/// Same as [`missing`], with the command that would install it.
fn skipped(name: &str, remedy: &str) {
    let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
    assert!(!required, "{name} is not installed and TIDEGATE_REQUIRE_SERVERS=1; {remedy}");
    eprintln!("SKIPPED: {name} is not installed; {remedy}");
}

/// Returns a folder that is deleted when it is dropped.
///
/// # Panics
/// If it cannot be created.
#[must_use]
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("there is a folder for temporary files")
}

// Waiting for real processes, and other helpers for tests with servers.

/// The time limit for anything that a real process does, long enough for a busy machine. A passing test never waits for
/// it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between checks.
const PAUSE: Duration = Duration::from_millis(10);

/// Checks a condition repeatedly until it holds.
///
/// # Panics
/// If it does not hold within [`PATIENCE`].
#[track_caller]
pub fn within(what: &str, mut holds: impl FnMut() -> bool) {
    #[expect(clippy::disallowed_methods, reason = "real processes take their own time; the wait is bounded")]
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::park_timeout(PAUSE);
    }
}

/// Returns a loopback port that is free, as is the one 10,000 above, which a Redis cluster uses for its bus.
///
/// Both lie below the range from which Linux takes the ports of outgoing connections (32,768 and above by default), so no connection of another test takes
/// the port before the server listens. Each call returns another port, and each process begins at another place.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 10_000;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let begin = process::id().wrapping_mul(7919);
    (0..COUNT)
        .map(|_| begin.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % COUNT + FIRST)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| is_free(*port) && is_free(*port + 10_000))
        .expect("a port is free")
}

/// Returns the loopback address of a [`free_port`].
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Returns a runtime with two threads.
///
/// # Panics
/// If the system cannot provide one.
#[must_use]
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("two threads")
}

// One request and its answer, over a connection of its own.

/// The time limit for connecting and for the answer.
const WAIT: Duration = Duration::from_secs(2);

/// Sends bytes, and returns the first piece of the answer.
pub(crate) fn tcp_answer(addr: SocketAddr, question: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&addr, WAIT).ok()?;
    stream.set_read_timeout(Some(WAIT)).ok()?;
    stream.write_all(question).ok()?;
    let mut piece = vec![0; 4096];
    let length = stream.read(&mut piece).ok()?;
    piece.truncate(length);
    Some(piece)
}
