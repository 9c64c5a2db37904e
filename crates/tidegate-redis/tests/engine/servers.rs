//! Real servers, started by a test on free ports of the loopback, each in a folder of its own, and stopped when they are dropped.
//!
//! Needs the Debian package `redis-server`. Where it is missing the tests say so and skip, unless `TIDEGATE_REQUIRE_SERVERS=1`: then they
//! fail.

#![allow(dead_code, reason = "each test uses a part")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tempfile::TempDir;
use tidegate_redis::{AfterLoss, RedisOptions, RedisStore};
use tokio::runtime::Runtime;

/// How long anything may take that a real process does.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Returns where the server's program lies; `None` to skip.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = ["/usr/bin", "/usr/local/bin", "/usr/sbin"].iter().map(|folder| Path::new(folder).join(name));
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{name} is not installed and TIDEGATE_REQUIRE_SERVERS=1; apt-get install redis-server"
        );
        eprintln!("skipped: {name} is not installed");
    }
    found
}

/// A running server.
pub(crate) struct Server {
    child: Option<Child>,
    pub(crate) folder: TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    pub(crate) port: u16,
    password: Option<String>,
}

impl Server {
    /// Starts a server with these options besides its port; `None` where there is no program.
    pub(crate) fn start(options: &[&str]) -> Option<Self> {
        Self::start_on(free_port(), options)
    }

    pub(crate) fn start_on(port: u16, options: &[&str]) -> Option<Self> {
        let program = program("redis-server")?;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let mut arguments = vec!["--port".to_owned(), port.to_string()];
        arguments.extend(["--bind", "127.0.0.1", "--save", "", "--dir"].map(str::to_owned));
        arguments.push(folder.path().display().to_string());
        arguments.extend(["--unixsocket".to_owned(), socket.display().to_string()]);
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        let password = options.iter().position(|option| *option == "--requirepass");
        let password = password.map(|at| options[at + 1].to_owned());
        let mut server = Self { child: None, folder, program, arguments, port, password };
        server.run();
        Some(server)
    }

    /// Starts the process, and waits until it answers.
    pub(crate) fn run(&mut self) {
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let child =
            Command::new(&self.program).args(&self.arguments).stdout(log).stderr(Stdio::null()).spawn();
        self.child = Some(child.unwrap());
        self.until("answers", |server| server.try_ask(&["PING"]).is_some());
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}/", self.port),
            None => format!("redis://127.0.0.1:{}/", self.port),
        }
    }

    /// Asks by a connection of its own.
    pub(crate) fn try_ask(&self, words: &[&str]) -> Option<Value> {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(2)).ok()?;
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        command.query(&mut connection).ok()
    }

    pub(crate) fn ask(&self, words: &[&str]) -> Value {
        self.try_ask(words).unwrap_or_else(|| panic!("no answer to {words:?}"))
    }

    pub(crate) fn text(&self, words: &[&str]) -> String {
        redis::from_redis_value(self.ask(words)).unwrap()
    }

    /// A field of INFO.
    pub(crate) fn info(&self, field: &str) -> String {
        let info = self.text(&["INFO", "everything"]);
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        until(&format!("the server on port {} {what}", self.port), || is(self));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Polls until something is so; fails after [`DEADLINE`].
pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    let turns = DEADLINE.as_millis() / 20;
    for _ in 0..turns {
        if is() {
            return;
        }
        pause();
    }
    panic!("not within {DEADLINE:?}: {what}");
}

#[allow(clippy::disallowed_methods, reason = "real processes are waited for")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Returns a port that nobody listens on, nor on the one 10,000 above, where the bus of a cluster is.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if port < 50_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A name that no other store of this process has.
pub(crate) fn namespace() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Options for a server, in a namespace of their own, where a missing cell is a full limit.
pub(crate) fn options(server: &Server) -> RedisOptions {
    RedisOptions::single(&server.url()).unwrap().namespace(&namespace()).after_loss(AfterLoss::Full)
}

pub(crate) fn connect(runtime: &Runtime, options: RedisOptions) -> RedisStore {
    runtime.block_on(RedisStore::connect(options)).unwrap()
}
