//! A process of a test, with a folder of its own. It ends with the test.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use tempfile::TempDir;

use crate::waiting::within;

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
