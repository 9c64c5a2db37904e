//! The measured servers, each a process of its own on the server's core, listening on loopback.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

/// The core of the servers; the other one is for the callers.
const CORE: &str = "0";

/// Both cores, for the row that has a server on two.
const CORES: &str = "0,1";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tidegate(Policies),
    /// The same on both cores.
    TidegateOnTwo(Policies),
    /// The same, and [`LISTENERS`] watch it live.
    Watched(Policies),
    /// The same without sight: no events, history, record or lists of keys.
    Unseen(Policies),
    Tonic,
    Axum,
    Redis,
    /// Redis with the module that [`redis_cell`] names.
    RedisCell,
    Nginx,
}

/// How many read the stream of live numbers: as many as a server lets in.
const LISTENERS: usize = 16;

/// The policies of the Tidegate server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policies {
    /// A limit by user.
    One,
    /// Four limits by user.
    FourLimits,
    /// A limit for each of four descriptors.
    FourDescriptors,
    /// A limit by the client address that a proxy passes on.
    Address,
    /// One unit a day by user.
    OneUnit,
    /// One unit a day by the client address.
    OneUnitByAddress,
}

impl Policies {
    fn text(self) -> String {
        let by: &[(&str, &str)] = match self {
            Self::One | Self::OneUnit => &[("per-user", "user")],
            Self::FourLimits => &[("a", "user"), ("b", "user"), ("c", "user"), ("d", "user")],
            Self::FourDescriptors => &[("a", "user"), ("b", "path"), ("c", "tier"), ("d", "team")],
            Self::Address | Self::OneUnitByAddress => &[("per-address", "client.ip")],
        };
        let limit = match self {
            Self::OneUnit | Self::OneUnitByAddress => "{ rate: 1/day, burst: 1 }",
            _ => "{ rate: 1000000/s, burst: 1000000 }",
        };
        let mut text = String::from(
            "version: 1\nstore: { kind: memory }\nclient_ip: { trusted_proxies: [127.0.0.0/8] }\npolicies:\n",
        );
        for (name, attribute) in by {
            text += &format!("  - {{ name: {name}, by: [{attribute}], absent: skip, limit: {limit} }}\n");
        }
        text
    }
}

/// Returns the file of redis-cell, a Redis module, if `TIDEGATE_BENCH_REDIS_CELL` names one. Its crate has to be built
/// separately, because programs do not link it.
pub(crate) fn redis_cell() -> Option<OsString> {
    std::env::var_os("TIDEGATE_BENCH_REDIS_CELL")
}

/// A server that runs until this is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) http: u16,
    pub(crate) grpc: u16,
    pub(crate) resp: u16,
    _folder: TempDir,
}

impl Server {
    /// Starts a server, and waits until it listens.
    pub(crate) fn start(kind: Kind, tidegate: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (http, grpc, resp) = (free_port()?, free_port()?, free_port()?);
        let at = |port: u16| format!("127.0.0.1:{port}");
        let cores = if matches!(kind, Kind::TidegateOnTwo(_)) { CORES } else { CORE };
        let mut command = Command::new("taskset");
        command.args(["-c", cores]);
        let listens = match kind {
            Kind::Tidegate(policies)
            | Kind::TidegateOnTwo(policies)
            | Kind::Watched(policies)
            | Kind::Unseen(policies) => {
                let file = folder.path().join("policies.yaml");
                let mut text = policies.text();
                if matches!(kind, Kind::Unseen(_)) {
                    text += "server: { sight: off }\n";
                }
                fs::write(&file, text)?;
                command.arg(tidegate).arg("serve").arg("-c").arg(&file);
                command.args(["--http", &at(http), "--grpc", &at(grpc), "--resp", &at(resp)]);
                command.args(["--forward-auth", "nginx", "--no-watch"]);
                // The default, which logs denials.
                command.env_remove("TIDEGATE_LOG");
                [http, grpc, resp].to_vec()
            }
            Kind::Tonic => {
                command.arg(std::env::current_exe()?).args(["floor", "tonic", &grpc.to_string()]);
                [grpc].to_vec()
            }
            Kind::Axum => {
                command.arg(std::env::current_exe()?).args(["floor", "axum", &http.to_string()]);
                [http].to_vec()
            }
            Kind::Redis | Kind::RedisCell => {
                command.args(["redis-server", "--bind", "127.0.0.1", "--save", ""]);
                command.arg("--port").arg(resp.to_string()).arg("--dir").arg(folder.path());
                if kind == Kind::RedisCell {
                    let module = redis_cell().context("TIDEGATE_BENCH_REDIS_CELL names no module")?;
                    command.arg("--loadmodule").arg(module);
                }
                [resp].to_vec()
            }
            Kind::Nginx => {
                let file = folder.path().join("nginx.conf");
                fs::write(&file, nginx(http, folder.path()))?;
                command.args(["nginx", "-p"]).arg(folder.path()).arg("-c").arg(&file);
                [http].to_vec()
            }
        };
        let log = fs::File::create(folder.path().join("log"))?;
        command.stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("`taskset` is needed, of util-linux")?;
        let mut server = Self { child, http, grpc, resp, _folder: folder };
        let until = Instant::now() + Duration::from_secs(10);
        while !listens.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
            if Instant::now() > until || server.child.try_wait()?.is_some() {
                let said = fs::read_to_string(server._folder.path().join("log"))?;
                bail!("a server did not start: {command:?}: {said}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if matches!(kind, Kind::Watched(_)) {
            (0..LISTENERS).try_for_each(|_| server.listen())?;
        }
        Ok(server)
    }

    pub(crate) fn process(&self) -> u32 {
        // `taskset` replaces itself by the program it starts, so this is the server's process id.
        self.child.id()
    }

    /// Reads the stream of live numbers until the server ends.
    fn listen(&self) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http))?;
        write!(stream, "GET /v1/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        ensure!(head == *b"HTTP/1.1 200", "/v1/live: {}", String::from_utf8_lossy(&head));
        std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        Ok(())
    }

    /// Reads what a server of Tidegate has told about refusals so far; `transport` is a label of its metrics.
    pub(crate) fn told(&self, transport: &str) -> Result<Told> {
        let series = format!("tidegate_requests_total{{transport=\"{transport}\",outcome=\"denied\"}} ");
        let metrics = self.page("/metrics")?;
        let counted = metrics.lines().find_map(|line| line.strip_prefix(&series)?.trim().parse::<u64>().ok());
        let keys = self.page("/v1/keys/top?by=denied&limit=1")?;
        let of_keys = keys.split_once("\"counted\":").and_then(|(_, rest)| {
            let end = rest.find(|after: char| !after.is_ascii_digit())?;
            rest[..end].parse::<u64>().ok()
        });
        let log = fs::read_to_string(self._folder.path().join("log"))?;
        Ok(Told {
            counted: counted.with_context(|| format!("no series {series}"))?,
            logged: log.lines().filter(|line| line.contains("tidegate_server::denials")).count(),
            of_keys: of_keys.with_context(|| format!("no number of refusals: {keys}"))?,
        })
    }

    /// Asks the server for a page.
    fn page(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        ensure!(page.starts_with("HTTP/1.1 200"), "{path}: {page}");
        Ok(page)
    }
}

/// What a server has told about refusals.
pub(crate) struct Told {
    /// Refused requests of one door, as the metrics count them.
    pub(crate) counted: u64,
    /// Lines of the denial log.
    pub(crate) logged: usize,
    /// Refusals among which the top keys are found.
    pub(crate) of_keys: u64,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// One process that limits by address, configured for speed: it logs nothing.
fn nginx(port: u16, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000;
    client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    limit_req_zone $http_x_forwarded_for zone=addresses:10m rate=1000000r/s;
    server {{
        listen 127.0.0.1:{port};
        location / {{ limit_req zone=addresses burst=1000000 nodelay; empty_gif; }}
    }}
}}
"
    )
}
