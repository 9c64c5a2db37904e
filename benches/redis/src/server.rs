//! A Redis server of the bench, with default settings except for its port.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

pub(crate) struct Server {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(folder.path()).stdout(Stdio::null());
        let child = command.spawn().context("`redis-server` is needed; apt-get install redis-server")?;
        let server = Self { child, port, _folder: folder };
        let until = Instant::now() + Duration::from_secs(10);
        while server.ask(&["PING"]).is_err() {
            if Instant::now() > until {
                bail!("the server does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn ask(&self, words: &[&str]) -> Result<redis::Value> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        Ok(command.query(&mut connection)?)
    }

    /// Returns a field of INFO.
    pub(crate) fn info(&self, field: &str) -> Result<String> {
        let text: String = redis::from_redis_value(self.ask(&["INFO", "everything"])?)?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line.with_context(|| format!("INFO has no {field}"))?.trim().to_owned())
    }

    /// Returns the processor time of the thread that executes commands, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let of = |field: &str| -> Result<f64> { Ok(self.info(field)?.parse()?) };
        Ok(of("used_cpu_user_main_thread")? + of("used_cpu_sys_main_thread")?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
