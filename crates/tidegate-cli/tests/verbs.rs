//! The command as its users see it: the real binary, its output, its exit codes.

#[cfg(unix)]
mod addresses;
mod bench;
#[cfg(all(unix, any(feature = "etcd", feature = "zookeeper")))]
mod cluster_policies;
mod config;
#[cfg(all(unix, any(feature = "redis", feature = "etcd", feature = "zookeeper")))]
mod drain;
mod everywhere;
mod explain;
mod flags;
mod fuzz_targets;
mod golden;
mod init;
#[cfg(unix)]
mod keys;
mod keys_hit;
#[cfg(feature = "tls")]
#[allow(dead_code, reason = "the server's own tests use more of it")]
#[path = "../../tidegate-server/tests/tls/made.rs"]
mod made;
#[cfg(unix)]
mod operations;
#[cfg(all(unix, feature = "otel", feature = "tls"))]
mod otlp;
mod reading;
mod readme;
mod replay;
mod schemas;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
#[cfg(feature = "grpc")]
mod serve_imported;
#[cfg(all(unix, feature = "redis"))]
mod shared_engine;
#[cfg(unix)]
mod sight;
mod simulate;
mod simulate_matching;
#[cfg(unix)]
mod stdin_terminal;
#[cfg(unix)]
mod store_mistakes;
mod stores;
mod suggest;
mod switched_off;
#[cfg(unix)]
mod switches;
#[cfg(unix)]
mod terminal;
#[cfg(all(unix, feature = "tls"))]
mod tls;
#[cfg(unix)]
mod top_watch;
mod trace;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

/// How long a command may run, on a busy machine and in a debug build.
const LONGEST: Duration = Duration::from_secs(300);

/// The result of running the command.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Returns its standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Requires an exit code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// An empty folder to run the command in, without a policy file.
pub(crate) struct Desk(tempfile::TempDir);

impl Desk {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, "")
    }

    /// Runs the command with this text as its standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: impl Into<Vec<u8>>) -> Ran {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_tidegate"));
        // The developer's environment must not affect a test.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        let command = command.env_remove("COLUMNS").current_dir(self.0.path()).args(arguments);
        // A server that should have refused to start would run forever.
        let output = command.timeout(LONGEST).write_stdin(input).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        // A server writes JSON where nobody watches; the message is what people read.
        let message = |line: &str| match serde_json::from_str::<Value>(line) {
            Ok(read) if read["level"] == "ERROR" => read["fields"]["message"].as_str().unwrap().to_owned(),
            _ => line.to_owned(),
        };
        let err: Vec<_> = text(output.stderr).lines().map(message).collect();
        let code = output.status.code().unwrap_or_else(|| panic!("{arguments:?} did not end by itself"));
        let err = err.into_iter().map(|line| line + "\n").collect();
        Ran { code, out: text(output.stdout), err }
    }
}

/// Returns the path of a file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the path of a sample log, as an argument.
pub(crate) fn sample(name: &str) -> String {
    repository("examples").join(name).to_str().unwrap().to_owned()
}
