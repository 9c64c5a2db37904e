//! A node is taken out of a running fleet behind a real HAProxy, over real engines: no request fails, and nothing that the
//! node held is lost.

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
#[cfg(feature = "etcd")]
use tidegate_testkit::EtcdServer;
#[cfg(feature = "redis")]
use tidegate_testkit::RedisServer;
#[cfg(feature = "zookeeper")]
use tidegate_testkit::ZooKeeperServer;
use tidegate_testkit::{Process, folder, free_port, program};

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};
use crate::verbs::serve::{Serving, until};

/// The clients of the load, each with a request at a time.
const CLIENTS: usize = 4;

/// A HAProxy that asks each node ten times a second whether it is ready.
struct HaProxy {
    _process: Process,
    url: String,
}

impl HaProxy {
    fn start(nodes: [&Serving; 2]) -> Option<Self> {
        let haproxy = program("haproxy", "haproxy")?;
        let (folder, addr) = (folder(), SocketAddr::from(([127, 0, 0, 1], free_port())));
        let file = folder.path().join("haproxy.cfg");
        let servers: String = nodes
            .iter()
            .enumerate()
            .map(|(at, node)| {
                let address = node.url().trim_start_matches("http://");
                format!("    server node{at} {address} check inter 100ms fall 2 rise 1\n")
            })
            .collect();
        let text = format!(
            "defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen tidegate
    bind {addr}
    balance roundrobin
    option httpchk GET /readyz
{servers}"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = std::process::Command::new(haproxy);
        command.arg("-db").arg("-f").arg(&file);
        let proxy = Self { _process: Process::start(command, folder), url: format!("http://{addr}") };
        until("HAProxy listens", || TcpStream::connect(addr).is_ok());
        Some(proxy)
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(30))).build().into()
}

/// Asks once; whether the answer is as without a drain.
fn is_answered(agent: &ureq::Agent, addr: &str, policy: &str) -> Result<(), String> {
    let attributes = json!({ "client.ip": "203.0.113.9", "request.path": format!("/{policy}") });
    let body = json!({ "attributes": attributes }).to_string();
    match agent.post(format!("{addr}/v1/check")).header("content-type", "application/json").send(body) {
        Ok(answer) if answer.status() == 200 => Ok(()),
        Ok(answer) => Err(format!("{policy}: {}", answer.status())),
        Err(error) => Err(format!("{policy}: {error}")),
    }
}

fn value(node: &Serving, series: &str) -> f64 {
    let text = node.text("/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series}: {text}")).parse().unwrap()
}

/// Drains and stops one of two nodes under load. `agrees`: whether nodes agree on their parts.
fn taken_out(store: &str, agrees: bool) {
    let desk = Desk::new();
    let policy = |share: &str| {
        format!(
            "  - {{ name: {share}, share: {share}, match: {{ path: /{share} }}, limit: {{ rate: 20000/s }} }}\n"
        )
    };
    let all: String = ["leased", "central", "split"].map(policy).concat();
    desk.write(
        "p.yaml",
        format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\nstore: {store}\npolicies:\n{all}"),
    );
    let start = || Serving::start(&desk, &["-c", "p.yaml"]);
    let (one, two) = (start(), start());
    let Some(proxy) = HaProxy::start([&one, &two]) else { return };
    let (over, answered, failed) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let load = |policies: &[&str]| {
        let agent = agent();
        for policy in policies.iter().cycle() {
            if over.load(Ordering::Relaxed) {
                break;
            }
            match is_answered(&agent, &proxy.url, policy) {
                Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                Err(why) => failed.lock().unwrap().push(why),
            }
        }
    };
    let told = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| load(&["leased", "leased", "leased", "central", "split"]));
        }
        until("it holds units", || value(&one, "tidegate_lease_outstanding_units{policy=\"leased\"}") > 0.0);
        let told = desk.run(&["drain", "--server", one.url(), "-o", "json"]);
        let ready = one.ask("/readyz", None).status().as_u16();
        let is_said = one.text("/readyz?verbose").contains("drained by an operator");
        let burned = value(&one, "tidegate_lease_burned_units_total");
        let before = answered.load(Ordering::Relaxed);
        let stopped = one.stop();
        until("the other node goes on", || answered.load(Ordering::Relaxed) > before + 200);
        over.store(true, Ordering::Relaxed);
        assert_eq!((ready, is_said, burned, stopped), (503, true, 0.0, Some(0)), "{told:?}");
        told.code(0)
    });
    assert_eq!(*failed.lock().unwrap(), Vec::<String>::new());
    let state = told.json();
    holds(&schema(&desk, "drain"), &state, "drain");
    let leases = &state["leases"];
    assert_eq!((&leases["held"], &leases["burned"]), (&json!(0), &json!(0)), "{state}");
    assert_eq!(state["part_handed_over"], if agrees { json!(true) } else { Value::Null }, "{state}");
    eprintln!("{store}: {} requests, 0 failed, drain {leases}", answered.load(Ordering::Relaxed));
    assert_eq!(two.stop(), Some(0));
}

#[cfg(feature = "redis")]
#[test]
fn a_node_is_taken_out_over_redis() {
    let Some(redis) = RedisServer::start(&[]) else { return };
    taken_out(&format!("{{ kind: redis, url: 'redis://{}', nodes: 2 }}", redis.addr()), false);
}

#[cfg(feature = "etcd")]
#[test]
fn a_node_is_taken_out_over_etcd() {
    let Some(etcd) = EtcdServer::start(&[]) else { return };
    taken_out(&format!("{{ kind: etcd, url: '{}', nodes: 2 }}", etcd.url()), true);
}

#[cfg(feature = "zookeeper")]
#[test]
fn a_node_is_taken_out_over_zookeeper() {
    let Some(zookeeper) = ZooKeeperServer::start() else { return };
    taken_out(&format!("{{ kind: zookeeper, url: 'zookeeper://{}', nodes: 2 }}", zookeeper.addr()), true);
}

/// A node whose callers do not look at its health is told of, and made ready again.
#[cfg(feature = "etcd")]
#[test]
fn a_drain_that_does_not_end_is_undone() {
    let Some(etcd) = EtcdServer::start(&[]) else { return };
    let desk = Desk::new();
    let store = format!("{{ kind: etcd, url: '{}', nodes: 2 }}", etcd.url());
    let file = "policies: [{ name: all, share: split, limit: { rate: 100000/s } }]\n";
    desk.write("p.yaml", format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\nstore: {store}\n{file}"));
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    let drain = |words: &[&str]| desk.run(&[&["drain", "--server", node.url()], words].concat());
    let part = || value(&node, "tidegate_node_part_ratio");
    until("it has the whole", || part() > 0.9);
    let (over, url) = (AtomicBool::new(false), node.url());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let agent = agent();
            while !over.load(Ordering::Relaxed) {
                assert_eq!(is_answered(&agent, url, "all"), Ok(()));
            }
        });
        let told = drain(&["--within", "2s"]);
        over.store(true, Ordering::Relaxed);
        let told = told.code(1).out;
        assert!(told.contains("the server may not be stopped yet: ") && told.contains("--undo"), "{told}");
    });
    assert!(part() > 0.9, "it keeps its part while requests come");
    let told = drain(&[]).code(0).out;
    assert!(
        told.contains("the server may be stopped: no request for ") && told.contains("have its part"),
        "{told}"
    );
    assert!(part() < 0.1);
    assert_eq!(desk.run(&["ready", "--server", node.url()]).code(1).out.lines().count(), 1);
    assert_eq!(drain(&["--undo"]).code(0).out, "the server is ready again\n");
    until("it joins again", || part() > 0.9);
    desk.run(&["ready", "--server", node.url()]).code(0);
    holds(&schema(&desk, "drain"), &drain(&["--undo", "-o", "json"]).code(0).json(), "drain --undo");
    assert_eq!(node.stop(), Some(0));
}
