//! Two regions with a Redis and two servers each divide one limit through an etcd, as configured in their files.
//!
//! Needs redis-server and etcd. If one is missing, the test prints a message and is skipped; with
//! `TIDEGATE_REQUIRE_SERVERS=1` it fails.

#![cfg(feature = "engines")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of real programs, which take real time"
)]

use crate::engine_faults::load;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate::Tick;
use tidegate::limiter::Rate;
use tidegate_core::envelope::Envelope;
use tidegate_lab::fleet::Demand;
use tidegate_testkit::{EtcdServer, Process, RedisServer, built, folder, free_port, runtime, within};

use load::{Asked, Load};

/// The limit: units per second, and burst. It fills up within a second.
const RATE: u64 = 100;
const BURST: u64 = 100;

/// How long the load lasts before the etcd ends, and after it: less than the 8 s for which regions keep their parts.
const HALF: Duration = Duration::from_secs(3);

/// One `tidegate serve`.
struct Node {
    addr: SocketAddr,
    region: &'static str,
    _process: Process,
}

impl Node {
    fn start(region: &'static str, redis: &RedisServer, etcd: &EtcdServer) -> Self {
        let (folder, addr) = (folder(), SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let file = folder.path().join("tidegate.yaml");
        // A slow answer of a busy machine must not count as an engine that is gone.
        let text = format!(
            "version: 1
store:
  kind: redis
  url: redis://{}
  nodes: 2
  deadline: 5s
  region: {{ name: {region}, max: 2, kind: etcd, url: '{}' }}
policies:
  - name: everybody
    on_store_error: deny
    limit: {{ rate: {RATE}/s, burst: {BURST} }}
",
            redis.addr(),
            etcd.url()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(built("tidegate"));
        command.arg("serve").arg("-c").arg(&file).arg("--http").arg(addr.to_string());
        Self { addr, region, _process: Process::start(command, folder) }
    }

    fn text(&self, path: &str) -> String {
        let answer = ureq::get(&format!("http://{}{path}", self.addr)).call();
        answer.and_then(|mut answer| answer.body_mut().read_to_string()).unwrap_or_default()
    }

    /// Returns the part of the limit that its region has, as the node reports it.
    fn part(&self) -> Option<f64> {
        let text = self.text("/metrics");
        text.lines().find_map(|line| line.strip_prefix("tidegate_region_part_ratio "))?.parse().ok()
    }
}

fn rest(span: Duration) {
    let begun = Instant::now();
    while let Some(left) = span.checked_sub(begun.elapsed()) {
        std::thread::park_timeout(left);
    }
}

/// The observations of all requests.
struct Seen {
    /// By how many units any span exceeded the limit.
    excess: u64,
    /// The share of the limit used in all, and from a time on, in thousandths.
    used: u64,
    used_after: u64,
    /// The latency of the slowest answer.
    slowest: Duration,
}

fn judged(asked: &[Asked], after: Tick) -> Seen {
    let mut judge = Envelope::new(Rate::new(RATE, Duration::from_secs(1)).unwrap(), BURST).unwrap();
    let mut before = None;
    for (asked, allowed) in asked.iter().filter_map(|asked| Some((asked, asked.allowed?))) {
        if asked.at >= after {
            before.get_or_insert(judge.utilisation());
        }
        judge.ask(asked.at, 1, allowed);
    }
    let (all, before) = (judge.utilisation(), before.unwrap());
    let used_after = (all.admitted - before.admitted) * 1000 / (all.ideal - before.ideal).max(1);
    let slowest = asked.iter().map(|asked| asked.took).max().unwrap_or_default();
    Seen { excess: judge.excess(), used: all.per_mille(), used_after, slowest }
}

#[test]
fn two_regions_have_one_limit_and_go_on_without_the_etcd() {
    let Some(mut etcd) = EtcdServer::start(&["--unsafe-no-fsync"]) else { return };
    let Some(a) = RedisServer::start(&[]) else { return };
    let Some(b) = RedisServer::start(&[]) else { return };
    let nodes: Vec<Node> = [("a", &a), ("b", &b), ("a", &a), ("b", &b)]
        .map(|(region, redis)| Node::start(region, redis, &etcd))
        .into();
    within("each region has half of the limit", || {
        nodes.iter().all(|node| node.part().is_some_and(|part| (0.45..=0.55).contains(&part)))
    });
    for node in &nodes {
        let ready = node.text("/readyz?verbose");
        let said = format!("region {} has ", node.region);
        assert!(ready.contains("[+] regions: ") && ready.contains(&said), "{ready}");
    }
    // A part that a region has received counts only after the time that the limit takes to fill up.
    rest(Duration::from_millis(1_100));

    let load = Arc::new(Load {
        demand: Demand::Even(2.0),
        rate: RATE,
        nodes: nodes.iter().map(|node| node.addr).collect(),
        running: nodes.iter().map(|_| AtomicBool::new(true)).collect(),
        begun: Instant::now(),
        over: AtomicBool::new(false),
    });
    let runtime = runtime();
    let asking = runtime.spawn(Arc::clone(&load).run());
    rest(HALF);
    etcd.kill();
    let killed = Tick::from_nanos(u64::try_from(load.begun.elapsed().as_nanos()).unwrap());
    rest(HALF);
    load.over.store(true, Ordering::Relaxed);
    let asked = runtime.block_on(asking).unwrap();

    let undecided = asked.iter().filter(|asked| asked.allowed.is_none()).count();
    assert_eq!(undecided, 0, "of {} requests", asked.len());
    let seen = judged(&asked, killed);
    // An answer is judged when it is read, so the units that the limit returns while the answer is under way look
    // like excess.
    let most = 5 + (seen.slowest.as_secs_f64() * RATE as f64).ceil() as u64;
    println!("{} too many of {most}, {} and {} thousandths used", seen.excess, seen.used, seen.used_after);
    assert!(seen.excess <= most, "{} units more than the limit, {most} are the most", seen.excess);
    assert!(seen.used >= 850, "{} thousandths of the limit were used", seen.used);
    assert!(
        seen.used_after >= 850,
        "{} thousandths of the limit were used without the etcd",
        seen.used_after
    );
    assert!(nodes.iter().all(|node| node.part().is_some_and(|part| part >= 0.45)), "parts are kept for 8 s");
}
