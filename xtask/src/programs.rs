//! Builds the test programs, and runs them several at once.
//!
//! The compiler is Clippy's: it builds as the usual one does and applies the lints meanwhile, so that one pass over the
//! workspace serves both.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::step::{self, STEP, root};

/// Makes cargo compile the workspace's own crates with Clippy.
pub(crate) const LINTED: (&str, &str) = ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");

/// A test program.
#[derive(Debug)]
struct Program {
    /// The folder of its package, in which it runs.
    dir: PathBuf,
    path: PathBuf,
    /// The package and the program, for people.
    name: String,
}

/// What cargo says of one product or one diagnostic, in so far as it is used here.
#[derive(Debug, Deserialize)]
struct Said {
    reason: String,
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    message: Option<Diagnostic>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Debug, Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// The test programs of the workspace, built.
#[derive(Debug)]
pub(crate) struct Programs(Vec<Program>);

impl Programs {
    /// Builds the programs. Fails if the compiler or Clippy has anything to say.
    pub(crate) fn build() -> Result<Self> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--workspace", "--all-features", "--no-run", "--message-format", "json"]);
        cargo.env(LINTED.0, LINTED.1).current_dir(root()).stdout(Stdio::piped());
        let built = step::timed(cargo, "cargo test --workspace --all-features --no-run, with Clippy", STEP)?;
        let (mut programs, mut found) = (Vec::new(), 0);
        for line in String::from_utf8_lossy(&built.stdout).lines() {
            let said: Said = serde_json::from_str(line).with_context(|| format!("cargo said {line}"))?;
            match said {
                Said { message: Some(diagnostic), .. } if diagnostic.level != "failure-note" => {
                    eprint!("{}", diagnostic.rendered.unwrap_or_default());
                    found += 1;
                }
                Said {
                    reason,
                    executable: Some(path),
                    manifest_path: Some(manifest),
                    target: Some(target),
                    profile: Some(Profile { test: true }),
                    ..
                } if reason == "compiler-artifact" => {
                    let dir = manifest.parent().unwrap_or_else(|| Path::new("/")).to_owned();
                    let package = dir.file_name().unwrap_or_default().to_string_lossy();
                    programs.push(Program { name: format!("{package} {}", target.name), dir, path });
                }
                _ => {}
            }
        }
        ensure!(built.status.success() && found == 0, "{found} faults found by the compiler and Clippy");
        ensure!(!programs.is_empty(), "cargo built no test program");
        // Those of whole programs take longest, and begin first.
        programs.sort_by_key(|program| !program.name.ends_with(" all"));
        Ok(Self(programs))
    }

    /// Runs all programs, and prints what each said when it has ended. Fails after the last one if any has failed.
    pub(crate) fn run(self, environment: &[(&str, &str)]) -> Result<()> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (waiting, failed) = (Mutex::new(VecDeque::from(self.0)), Mutex::new(Vec::new()));
        let next = || waiting.lock().ok()?.pop_front();
        thread::scope(|scope| {
            // One a core, although most wait for servers, timers and disks half of their time.
            for _ in 0..cores {
                scope.spawn(|| {
                    while let Some(program) = next() {
                        if let Err(error) = program.run(environment)
                            && let Ok(mut failed) = failed.lock()
                        {
                            failed.push(format!("{error:#}"));
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap_or_default();
        if !failed.is_empty() {
            bail!("{}", failed.join("; "));
        }
        Ok(())
    }
}

impl Program {
    fn run(&self, environment: &[(&str, &str)]) -> Result<()> {
        let mut command = Command::new(&self.path);
        // As cargo runs it.
        command.current_dir(&self.dir).env("CARGO_MANIFEST_DIR", &self.dir);
        command.env("CARGO", std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        let ended = step::timed(command, &self.name, STEP)?;
        print!("{}", String::from_utf8_lossy(&ended.stdout));
        ensure!(ended.status.success(), "{} failed: {}", self.name, ended.status);
        Ok(())
    }
}
