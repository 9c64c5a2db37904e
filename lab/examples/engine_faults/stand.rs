//! The processes of a run: an engine, and nodes that reach it through a proxy each. All are on loopback and are
//! stopped when the stand is dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use tidegate_lab::fleet::NodeSelection;
use tidegate_testkit::{Fault, FaultyProxy, Process, built, folder, free_port, within};

use super::act::{Act, Limit, Members, Row};
use super::engine::{Engine, Kind};
use super::regions::{REGIONS, region_of};

/// One `tidegate serve`.
struct Node {
    process: Process,
    addr: SocketAddr,
    file: PathBuf,
    running: bool,
}

/// The engine, its proxies and the nodes.
pub(crate) struct Stand {
    kind: Kind,
    engine: Engine,
    /// For each node, a proxy before each member of the engine.
    wires: Vec<Vec<FaultyProxy>>,
    nodes: Vec<Node>,
    limit: Limit,
    row: Row,
}

impl Stand {
    /// Starts everything. Returns when all processes listen and the engine is in use; prints a message and returns
    /// `None` if the engine is not installed.
    pub(crate) fn start(kind: Kind, row: &Row) -> Option<Self> {
        let engine = Engine::start(kind, row.lag, row.members)?;
        let before = |addr: &SocketAddr| FaultyProxy::before(*addr).expect("a port is free");
        let wires = (0..row.nodes).map(|node| engine.addrs(node).iter().map(before).collect()).collect();
        let mut stand = Self { kind, engine, wires, nodes: Vec::new(), limit: row.limit, row: row.clone() };
        for at in 0..row.nodes {
            let node = stand.fresh_node(at, at < row.running);
            stand.nodes.push(node);
        }
        stand.until_ready();
        Some(stand)
    }

    /// Returns the address of each node.
    pub(crate) fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.addr).collect()
    }

    /// Returns which nodes run and may be asked.
    pub(crate) fn running(&self) -> Vec<bool> {
        self.nodes.iter().map(|node| node.running).collect()
    }

    /// Adds to `counts`, for each of these nodes, the steps that it has decided without the engine since its start.
    pub(crate) fn count_without_engine(&self, which: NodeSelection, counts: &mut [u64]) {
        let steps = |node: &Node| -> Option<u64> {
            let text = text(node, "/metrics");
            let mut lines = text.lines().filter(|line| line.starts_with("tidegate_store_errors_total{"));
            lines.next()?.rsplit_once(' ')?.1.parse().ok()
        };
        for (at, (node, count)) in self.nodes.iter().zip(counts).enumerate() {
            if node.running && which.has(at) {
                *count += steps(node).unwrap_or_default();
            }
        }
    }

    /// Applies an act. Returns when it is done.
    pub(crate) fn act(&mut self, act: Act) {
        match act {
            Act::Wires(which, fault) => self.wires(which).for_each(|wire| wire.set(fault)),
            Act::Across(region, fault) => self.engine.regions().set(region, fault),
            Act::RunRedis(region, runs) => self.engine.regions().run_redis(region, runs),
            Act::Hold(hold) => self.engine.signal(if hold { "-STOP" } else { "-CONT" }),
            Act::Kill => self.engine.kill(),
            Act::Start => self.engine.start_again(),
            Act::KillMember(which) => self.engine.take_away(which, true),
            Act::HoldMember(which) => self.engine.take_away(which, false),
            Act::StartMembers => self.engine.bring_back(),
            Act::ReplaceMember(which) => self.engine.replace(which),
            Act::Flush => self.engine.flush(),
            Act::Command(words) => self.engine.command(words),
            Act::Promote(which) => {
                let master = self.engine.promote();
                for wire in self.wires(which) {
                    wire.lead_to(master);
                    wire.set(Fault::Reset);
                    wire.set(Fault::None);
                }
            }
            Act::KillNodes(which) => self.nodes(which).for_each(|node| {
                node.running = false;
                node.process.kill();
            }),
            Act::StopNodes(which) => self.nodes(which).for_each(|node| {
                node.running = false;
                node.process.signal("-TERM");
            }),
            Act::StartNodes(which) => self.nodes(which).filter(|node| !node.running).for_each(|node| {
                node.process.start_again();
                listens(node.addr);
                node.running = true;
            }),
            Act::HoldNodes(which, hold) => {
                self.nodes(which).for_each(|node| node.process.signal(if hold { "-STOP" } else { "-CONT" }));
            }
            Act::Halve => {
                self.limit = Limit { rate: self.limit.rate / 2, burst: self.limit.burst / 2 };
                for at in 0..self.nodes.len() {
                    self.write(at, &self.nodes[at].file);
                    let asked = ureq::post(&format!("http://{}/v1/reload", self.nodes[at].addr)).send_empty();
                    asked.expect("the file has no mistake");
                }
            }
        }
    }

    fn wires(&self, which: NodeSelection) -> impl Iterator<Item = &FaultyProxy> {
        self.wires.iter().enumerate().filter(move |(at, _)| which.has(*at)).flat_map(|(_, wires)| wires)
    }

    fn nodes(&mut self, which: NodeSelection) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut().enumerate().filter(move |(at, _)| which.has(*at)).map(|(_, node)| node)
    }

    fn fresh_node(&self, at: usize, running: bool) -> Node {
        let (folder, addr) = (folder(), SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let file = folder.path().join("tidegate.yaml");
        self.write(at, &file);
        let mut command = Command::new(built("tidegate"));
        command.arg("serve").arg("-c").arg(&file).arg("--http").arg(addr.to_string());
        let mut process = Process::start(command, folder);
        match running {
            true => listens(addr),
            false => process.kill(),
        }
        Node { process, addr, file, running }
    }

    /// Writes a node's policy file atomically: the node may be reading it.
    fn write(&self, at: usize, file: &PathBuf) {
        let Row { share, on_store_error, .. } = self.row;
        let (mut nodes, deadline) = (self.wires.len(), self.row.deadline.as_millis());
        let (mut kind, mut region) = (self.kind.word(), String::new());
        if let Engine::Regions(regions) = &self.engine {
            let name = region_of(at);
            let urls: Vec<String> =
                regions.members(name).iter().map(|addr| format!("\"{}\"", Kind::Etcd.url(*addr))).collect();
            let urls = urls.join(", ");
            region = format!(", region: {{ name: r{name}, max: {REGIONS}, kind: etcd, url: [{urls}] }}");
            (kind, nodes) = (Kind::Redis.word(), nodes / REGIONS);
        }
        let dead = (self.row.members == Members::OneAndDeadAddress)
            .then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let addrs = dead.into_iter().chain(self.wires[at].iter().map(FaultyProxy::addr));
        let urls: Vec<String> = addrs.map(|addr| format!("\"{}\"", self.kind.url(addr))).collect();
        let urls = urls.join(", ");
        let Limit { rate, burst } = self.limit;
        let text = format!(
            "version: 1\nstore: {{ kind: {kind}, url: [{urls}], nodes: {nodes}, deadline: {deadline}ms{region} }}\npolicies:\n  - name: everybody\n    \
             share: {share}\n    on_store_error: {on_store_error}\n    limit: {{ rate: {rate}/s, burst: {burst} }}\n"
        );
        let beside = file.with_extension("new");
        std::fs::write(&beside, text).expect("the folder is the node's own");
        std::fs::rename(beside, file).expect("the folder is the node's own");
    }

    /// Waits until every node reports that its store is available, and nodes that agree on their parts have divided
    /// the limit evenly.
    fn until_ready(&self) {
        let running = || self.nodes.iter().filter(|node| node.running);
        within("the nodes' store is there", || {
            running().all(|node| text(node, "/readyz?verbose").contains("[+] store"))
        });
        if self.kind == Kind::Regions {
            within("the nodes say of which region they are", || {
                self.nodes.iter().enumerate().all(|(at, node)| {
                    let says = format!("region r{} has ", region_of(at));
                    let text = text(node, "/readyz?verbose");
                    text.lines().any(|line| line.starts_with("[+] regions: ") && line.contains(&says))
                })
            });
        }
        if self.kind.coordinates() {
            let all = format!("tidegate_cluster_members {}\n", running().count());
            within("the nodes know of each other", || {
                running().any(|node| text(node, "/metrics").contains(&all))
            });
            let parts = if self.kind == Kind::Regions { REGIONS } else { running().count() };
            let even = 0.9 / parts as f64;
            within("the nodes have divided the limit", || {
                running().all(|node| part(node).is_some_and(|part| part >= even))
            });
        }
    }
}

/// Returns a page of a node; empty if it does not answer.
fn text(node: &Node, path: &str) -> String {
    let answer = ureq::get(&format!("http://{}{path}", node.addr)).call();
    answer.and_then(|mut answer| answer.body_mut().read_to_string()).unwrap_or_default()
}

/// Returns the share of the limit of a node or of its region, as the node reports it.
fn part(node: &Node) -> Option<f64> {
    let text = text(node, "/metrics");
    let names = ["tidegate_node_part_ratio ", "tidegate_region_part_ratio "];
    text.lines().find_map(|line| names.iter().find_map(|name| line.strip_prefix(name)))?.parse().ok()
}

/// Waits until a process listens at an address.
fn listens(at: SocketAddr) {
    within("tidegate serve", || TcpStream::connect(at).is_ok());
}
