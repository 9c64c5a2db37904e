//! A real Redis.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::process::{Process, folder, program};
use crate::waiting::{free_port, within};

/// A Redis on a port of loopback and on the socket `socket` of its folder. It keeps nothing on disk, unless its options say otherwise.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    port: u16,
}

impl RedisServer {
    /// Starts one with options of its command line; `None` to skip the test, because Redis is not installed.
    ///
    /// # Panics
    /// When it does not come up.
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
            // One that wants a password is up as well.
            crate::tcp::answer(self.addr(), b"PING\r\n")
                .is_some_and(|answer| answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
        });
    }

    /// Starts it again after [`RedisServer::kill`].
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start_again(&mut self) {
        self.process.start_again();
        self.until_up();
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Returns what it answers to a command, over a connection of its own, as it comes over the wire; the first 4 kB. No word may have spaces.
    ///
    /// # Panics
    /// When nothing is answered.
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

    /// Returns where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }
}
