//! The processes of a run: an engine, two nodes, and nginx with a site of one page. All are on loopback and are
//! stopped when the stand is dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use tidegate_testkit::{EtcdServer, Process, RedisServer, built, folder, free_port, program, within};

/// The kind of engine.
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

    /// Returns the nodes' policy file, and the engine's address in it.
    fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Redis => (include_str!("../../../examples/two-nodes/redis.yaml"), "127.0.0.1:6379"),
            Self::Etcd => (include_str!("../../../examples/two-nodes/etcd.yaml"), "127.0.0.1:2379"),
        }
    }
}

/// The running engine.
enum Runs {
    Redis(RedisServer),
    Etcd(EtcdServer),
}

impl Runs {
    /// Starts the engine; prints a message and returns `None` if it is not installed.
    fn start(engine: Engine) -> Option<Self> {
        match engine {
            Engine::Redis => RedisServer::start(&[]).map(Self::Redis),
            Engine::Etcd => EtcdServer::start(&["--unsafe-no-fsync"]).map(Self::Etcd),
        }
    }

    fn addr(&self) -> SocketAddr {
        match self {
            Self::Redis(redis) => redis.addr(),
            Self::Etcd(etcd) => etcd.addr(),
        }
    }
}

/// The engine, the nodes and the site.
pub(crate) struct Stand {
    engine: Runs,
    nodes: [SocketAddr; 2],
    site: SocketAddr,
    _programs: [Process; 3],
}

impl Stand {
    /// Starts everything. Returns when all processes listen; prints a message and returns `None` if the engine or
    /// nginx is not installed.
    pub(crate) fn start(engine: Engine) -> Option<Self> {
        let nginx = program("nginx", "nginx")?;
        let runs = Runs::start(engine)?;
        let nodes = [free(), free()];
        let [a, b] = nodes.map(|node| start_node(engine, runs.addr(), node));
        let site = free();
        let nginx = start_nginx(Command::new(nginx), site, nodes);
        Some(Self { engine: runs, nodes, site, _programs: [a, b, nginx] })
    }

    /// Returns the URL of the page that is requested.
    pub(crate) fn page(&self) -> String {
        format!("http://{}/index.html", self.site)
    }

    /// Returns the addresses of the nodes.
    pub(crate) const fn nodes(&self) -> [SocketAddr; 2] {
        self.nodes
    }

    /// Kills the engine, as in a crash.
    pub(crate) fn kill_engine(&mut self) {
        match &mut self.engine {
            Runs::Redis(redis) => redis.kill(),
            Runs::Etcd(etcd) => etcd.kill(),
        }
    }

    /// Starts the engine again at the same address. Returns when it listens.
    pub(crate) fn revive_engine(&mut self) {
        match &mut self.engine {
            Runs::Redis(redis) => redis.start_again(),
            Runs::Etcd(etcd) => etcd.start_again(),
        }
    }

    /// Says whether every node reports that its store is available.
    pub(crate) fn store_is_there(&self) -> bool {
        self.nodes.iter().all(|node| {
            let answer = ureq::get(&format!("http://{node}/readyz?verbose")).call();
            let text = answer.and_then(|mut answer| answer.body_mut().read_to_string());
            text.is_ok_and(|text| text.contains("] store ") && !text.contains(" is gone "))
        })
    }
}

fn start_node(engine: Engine, at: SocketAddr, node: SocketAddr) -> Process {
    let (folder, (file, manuals)) = (folder(), engine.file());
    let path = folder.path().join("tidegate.yaml");
    std::fs::write(&path, file.replace(manuals, &at.to_string())).unwrap();
    let mut command = Command::new(built("tidegate"));
    command.arg("serve").arg("-c").arg(&path).arg("--http").arg(node.to_string());
    let process = Process::start(command, folder);
    listens(node, "tidegate serve");
    process
}

fn start_nginx(mut command: Command, site: SocketAddr, nodes: [SocketAddr; 2]) -> Process {
    let folder = folder();
    let pages = folder.path().join("site");
    std::fs::create_dir_all(&pages).unwrap();
    std::fs::write(pages.join("index.html"), "served\n").unwrap();
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders: String = folders.iter().map(|kind| format!("{kind}_temp_path {kind}; ")).collect();
    let file = include_str!("../../../examples/two-nodes/nginx.conf")
        .replace("127.0.0.1:8081", &nodes[0].to_string())
        .replace("127.0.0.1:8082", &nodes[1].to_string())
        .replace("127.0.0.1:8080", &site.to_string())
        .replace("http {", &format!("http {{ {folders}"))
        .replace("daemon off;", "daemon off; master_process off;");
    let path = folder.path().join("nginx.conf");
    std::fs::write(&path, file).unwrap();
    command.arg("-p").arg(folder.path()).arg("-c").arg(&path);
    let process = Process::start(command, folder);
    listens(site, "nginx");
    process
}

/// Returns a free address.
fn free() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Waits until a process listens at an address.
fn listens(at: SocketAddr, who: &str) {
    within(who, || TcpStream::connect(at).is_ok());
}
