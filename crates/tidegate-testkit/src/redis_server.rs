//! A real Redis server for tests.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::process::{Process, folder, program};
use crate::waiting::{free_port, within};

/// A Redis on a loopback port and on the Unix socket `socket` in its folder. Without other options it keeps nothing on
/// disk.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    port: u16,
}

impl RedisServer {
    /// Starts a server with command-line options; `None` to skip the test, because Redis is not installed.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(options: &[&str]) -> Option<Self> {
        let program = program("redis-server", "redis-server")?;
        let (folder, port) = (folder(), free_port());
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
        command.arg(folder.path()).arg("--unixsocket").arg(folder.path().join("socket")).args(options);
        let server = Self { process: Process::start(command, folder), port };
        server.until_up();
        Some(server)
    }

    fn until_up(&self) {
        within("Redis answers", || {
            // A server that wants a password is up as well.
            crate::tcp::answer(self.addr(), b"PING\r\n")
                .is_some_and(|answer| answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
        });
    }

    /// Starts it again after [`RedisServer::kill`].
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_again(&mut self) {
        self.process.start_again();
        self.until_up();
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a command over a connection of its own, and returns the first 4 kB of the raw answer. No word may contain
    /// spaces.
    ///
    /// # Panics
    /// If there is no answer.
    pub fn command(&self, words: &[&str]) -> String {
        let line = format!("{}\r\n", words.join(" "));
        let answer = crate::tcp::answer(self.addr(), line.as_bytes());
        String::from_utf8_lossy(&answer.unwrap_or_else(|| panic!("no answer to {words:?}"))).into_owned()
    }

    /// Sends it a signal; see [`Process::signal`].
    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Returns its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
    }

    /// Returns its address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }
}
