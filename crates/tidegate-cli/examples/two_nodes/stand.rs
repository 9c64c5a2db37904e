//! What runs: an engine, two nodes, and nginx before a site of one page. All on loopback, stopped when the stand is dropped.

#![allow(clippy::disallowed_methods, reason = "programs that were started are waited for")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program has to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where counters live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Redis,
    Etcd,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Etcd => "etcd",
        }
    }

    /// The program that is started.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Etcd => "etcd",
        }
    }

    /// What the nodes read, and the engine's address in it.
    fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Redis => (include_str!("../../../../examples/two-nodes/redis.yaml"), "127.0.0.1:6379"),
            Self::Etcd => (include_str!("../../../../examples/two-nodes/etcd.yaml"), "127.0.0.1:2379"),
        }
    }
}

/// A program that is stopped with its owner.
struct Program(Child);

impl Program {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn();
        Self(child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")))
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The whole of it.
pub(crate) struct Stand {
    engine: Engine,
    at: SocketAddr,
    runs: Option<Program>,
    nodes: [SocketAddr; 2],
    site: SocketAddr,
    _programs: [Program; 3],
    folder: tempfile::TempDir,
}

impl Stand {
    /// Starts everything, and returns when all of it listens.
    pub(crate) fn start(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = free();
        let runs = start_engine(engine, at, folder.path());
        let nodes = [free(), free()];
        let [a, b] = nodes.map(|node| start_node(engine, at, node, folder.path()));
        let site = free();
        let nginx = start_nginx(site, nodes, folder.path());
        Self { engine, at, runs: Some(runs), nodes, site, _programs: [a, b, nginx], folder }
    }

    /// The page that is asked for.
    pub(crate) fn page(&self) -> String {
        format!("http://{}/index.html", self.site)
    }

    /// The nodes' own addresses.
    pub(crate) const fn nodes(&self) -> [SocketAddr; 2] {
        self.nodes
    }

    /// Ends the engine as a crash does.
    pub(crate) fn kill_engine(&mut self) {
        if let Some(mut runs) = self.runs.take() {
            runs.kill();
        }
    }

    /// Starts it again where it was.
    pub(crate) fn revive_engine(&mut self) {
        self.runs = Some(start_engine(self.engine, self.at, self.folder.path()));
    }

    /// Whether every node says that its store is there.
    pub(crate) fn store_is_there(&self) -> bool {
        self.nodes.iter().all(|node| {
            let answer = ureq::get(&format!("http://{node}/readyz?verbose")).call();
            let text = answer.and_then(|mut answer| answer.body_mut().read_to_string());
            text.is_ok_and(|text| text.contains("[+] store"))
        })
    }
}

fn start_engine(engine: Engine, at: SocketAddr, folder: &Path) -> Program {
    let data = folder.join("engine");
    std::fs::create_dir_all(&data).unwrap();
    let mut command = Command::new(engine.program());
    match engine {
        Engine::Redis => {
            command.args(["--bind", "127.0.0.1", "--save", "", "--port"]).arg(at.port().to_string());
            command.arg("--dir").arg(&data);
        }
        Engine::Etcd => {
            let (client, peer) = (format!("http://{at}"), format!("http://{}", free()));
            command.arg("--data-dir").arg(&data);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--unsafe-no-fsync"]);
        }
    }
    let program = Program::start(&mut command, &folder.join("engine.log"));
    listens(at, engine.program());
    program
}

fn start_node(engine: Engine, at: SocketAddr, node: SocketAddr, folder: &Path) -> Program {
    let (file, manuals) = engine.file();
    let path = folder.join("tidegate.yaml");
    std::fs::write(&path, file.replace(manuals, &at.to_string())).unwrap();
    let mut command = Command::new(tidegate());
    command.arg("serve").arg("-c").arg(&path).arg("--http").arg(node.to_string());
    let program = Program::start(&mut command, &folder.join(format!("node-{}.log", node.port())));
    listens(
        node,
        &std::fs::read_to_string(folder.join(format!("node-{}.log", node.port()))).unwrap_or_default(),
    );
    program
}

/// The program beside which this one was built.
fn tidegate() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let built = here.ancestors().map(|folder| folder.join("tidegate"));
    let mut there = built.filter(|file| file.is_file());
    there.next().expect("build the program first: cargo build -p tidegate-cli --features redis,etcd")
}

fn start_nginx(site: SocketAddr, nodes: [SocketAddr; 2], folder: &Path) -> Program {
    let pages = folder.join("site");
    std::fs::create_dir_all(&pages).unwrap();
    std::fs::write(pages.join("index.html"), "served\n").unwrap();
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders: String = folders.iter().map(|kind| format!("{kind}_temp_path {kind}; ")).collect();
    let file = include_str!("../../../../examples/two-nodes/nginx.conf")
        .replace("127.0.0.1:8081", &nodes[0].to_string())
        .replace("127.0.0.1:8082", &nodes[1].to_string())
        .replace("127.0.0.1:8080", &site.to_string())
        .replace("http {", &format!("http {{ {folders}"))
        .replace("daemon off;", "daemon off; master_process off;");
    let path = folder.join("nginx.conf");
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder).arg("-c").arg(&path);
    let program = Program::start(&mut command, &folder.join("nginx.log"));
    listens(site, "nginx");
    program
}

/// An address that nobody listens on.
fn free() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Waits until somebody listens there.
fn listens(at: SocketAddr, who: &str) {
    let begun = Instant::now();
    while TcpStream::connect(at).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody listens on {at}: {who}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
