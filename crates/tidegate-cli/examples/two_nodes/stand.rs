//! What runs: an engine, two nodes, and nginx before a site of one page. All on loopback, stopped when the stand is dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use tidegate_testkit::{Process, folder, free_port, within};

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

    /// The Debian package that has it.
    #[allow(dead_code, reason = "only the test skips")]
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Etcd => "etcd-server",
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

/// The whole of it.
pub(crate) struct Stand {
    engine: Process,
    listens: SocketAddr,
    nodes: [SocketAddr; 2],
    site: SocketAddr,
    _programs: [Process; 3],
}

impl Stand {
    /// Starts everything, and returns when all of it listens.
    pub(crate) fn start(engine: Engine) -> Self {
        let (at, site) = (free(), free());
        let nodes = [free(), free()];
        let runs = start_engine(engine, at);
        let [a, b] = nodes.map(|node| start_node(engine, at, node));
        let nginx = start_nginx(site, nodes);
        Self { engine: runs, listens: at, nodes, site, _programs: [a, b, nginx] }
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
        self.engine.kill();
    }

    /// Starts it again where it was, and returns when it listens.
    pub(crate) fn revive_engine(&mut self) {
        self.engine.start_again();
        listens(self.listens, "the engine");
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

fn start_engine(engine: Engine, at: SocketAddr) -> Process {
    let folder = folder();
    let mut command = Command::new(engine.program());
    match engine {
        Engine::Redis => {
            command.args(["--bind", "127.0.0.1", "--save", "", "--port"]).arg(at.port().to_string());
            command.arg("--dir").arg(folder.path());
        }
        Engine::Etcd => {
            let (client, peer) = (format!("http://{at}"), format!("http://{}", free()));
            command.arg("--data-dir").arg(folder.path().join("data"));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--unsafe-no-fsync"]);
        }
    }
    let process = Process::start(command, folder);
    listens(at, engine.program());
    process
}

fn start_node(engine: Engine, at: SocketAddr, node: SocketAddr) -> Process {
    let (folder, (file, manuals)) = (folder(), engine.file());
    let path = folder.path().join("tidegate.yaml");
    std::fs::write(&path, file.replace(manuals, &at.to_string())).unwrap();
    let mut command = Command::new(tidegate());
    command.arg("serve").arg("-c").arg(&path).arg("--http").arg(node.to_string());
    let process = Process::start(command, folder);
    listens(node, "tidegate serve");
    process
}

/// The program beside which this one was built.
fn tidegate() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let built = here.ancestors().map(|folder| folder.join("tidegate"));
    let mut there = built.filter(|file| file.is_file());
    there.next().expect("build the program first: cargo build -p tidegate-cli --features redis,etcd")
}

fn start_nginx(site: SocketAddr, nodes: [SocketAddr; 2]) -> Process {
    let folder = folder();
    let pages = folder.path().join("site");
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
    let path = folder.path().join("nginx.conf");
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder.path()).arg("-c").arg(&path);
    let process = Process::start(command, folder);
    listens(site, "nginx");
    process
}

/// An address that nobody listens on.
fn free() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Waits until somebody listens there.
fn listens(at: SocketAddr, who: &str) {
    within(who, || TcpStream::connect(at).is_ok());
}
