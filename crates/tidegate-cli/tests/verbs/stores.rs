//! Server processes with stores that outlive them: a file on disk, and Redis.

use std::process::{Child, Command, Stdio};

use crate::verbs::Desk;
use crate::verbs::serve::{Serving, until};

/// A daily limit that several processes share.
pub(crate) fn policies(store: &str, policy: &str) -> String {
    format!(
        "version: 1
client_ip: {{ trusted_proxies: [] }}
store: {store}
policies:
  - name: per-ip
    by: [client.ip]
    limit: {{ algorithm: fixed-window, rate: 6/day }}
    {policy}
"
    )
}

#[test]
fn a_days_count_outlives_a_kill_and_a_second_process_is_refused_by_name() {
    let desk = Desk::new();
    desk.write("p.yaml", policies("{ kind: disk, path: counters }", "durable: strict"));
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.statuses("203.0.113.9", 4), [200; 4]);
    let second = desk.run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0", "--drain", "0s"]).code(1);
    assert!(
        second.err.contains("counters") && second.err.contains("is in use by another process"),
        "{second:?}"
    );
    let last = second.err.lines().last().unwrap_or_default();
    assert_eq!(last.matches("is in use by another process").count(), 1, "said once: {last}");
    serving.kill();
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.statuses("203.0.113.9", 3), [200, 200, 429], "two of six are left");
    assert_eq!(serving.stop(), Some(0));
}

/// A key that exceeded its limit is blocked where the counters are: after a restart too, and until a person ends it.
#[test]
fn a_block_after_a_limit_outlives_the_process() {
    let desk = Desk::new();
    desk.write(
        "p.yaml",
        policies("{ kind: disk, path: counters }", "over: block 1h").replace("6/day", "2/min"),
    );
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.statuses("203.0.113.9", 3), [200, 200, 429]);
    assert_eq!(serving.stop(), Some(0));
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let key = "/v1/keys/per-ip?client.ip=203.0.113.9";
    assert!(serving.text(key).contains("over its limit"), "{}", serving.text(key));
    assert_eq!(
        (serving.statuses("203.0.113.9", 1), serving.statuses("203.0.113.8", 1)),
        (vec![429], vec![200])
    );
    let ended =
        desk.run(&["key", "unblock", "per-ip", "--key", "client.ip=203.0.113.9", "--server", serving.url()]);
    assert!(ended.code(0).out.contains("is no longer blocked"));
    assert!(serving.text(key).contains("\"block\":null"), "{}", serving.text(key));
    assert_eq!(serving.stop(), Some(0));
}

/// Nodes over one engine know each other's blocks, also where each node decides out of a lease.
#[cfg(feature = "redis")]
#[test]
fn a_block_after_a_limit_holds_on_every_node() {
    let desk = Desk::new();
    let Some(redis) = Redis::start(&desk, "127.0.0.27") else { return };
    until("it listens", || std::net::TcpStream::connect((redis.host, redis.port)).is_ok());
    for (at, share) in ["central", "leased"].into_iter().enumerate() {
        let store = redis.store().replace("nodes: 2", &format!("nodes: 2, prefix: b{at}"));
        let policy = format!("share: {share}\n    over: block 1h");
        desk.write("p.yaml", policies(&store, &policy));
        let told = desk.run(&["config", "check", "p.yaml", "-o", "json"]).code(0).json();
        assert_eq!(told["costs"][0]["round_trips"], 2, "one of them is the look for a block: {told}");
        let (one, other) =
            (Serving::start(&desk, &["-c", "p.yaml"]), Serving::start(&desk, &["-c", "p.yaml"]));
        one.statuses("192.0.2.1", 2);
        let before = redis.scripts_run();
        assert_eq!(one.statuses("203.0.113.8", 2), [200; 2], "{share}");
        assert_eq!(redis.scripts_run() - before, 4, "{share}");
        assert_eq!(one.statuses("203.0.113.9", 7), [200, 200, 200, 200, 200, 200, 429], "{share}");
        // The limit alone would refuse too; a reset of the counters leaves the block, which is of the key.
        let key = "/v1/keys/per-ip?client.ip=203.0.113.9";
        assert!(other.text(key).contains("over its limit"), "{share}: {}", other.text(key));
        assert_eq!(
            (other.statuses("203.0.113.9", 1), other.statuses("203.0.113.8", 1)),
            (vec![429], vec![200])
        );
        assert!(other.text("/metrics").contains("tidegate_blocked_total{policy=\"per-ip\"} 1"), "{share}");
        let reset = ["key", "reset", "per-ip", "--key", "client.ip=203.0.113.9", "--server", other.url()];
        assert!(desk.run(&reset).code(0).out.contains("203.0.113.9"));
        assert_eq!(other.statuses("203.0.113.9", 1), [200], "{share}");
        until("the first node knows", || one.statuses("203.0.113.9", 1) == [200]);
        assert_eq!((one.stop(), other.stop()), (Some(0), Some(0)));
    }
}

/// The previous process may still answer its last requests, so the next one waits for as long as that may drain.
#[test]
fn a_folder_is_waited_for_while_the_process_before_ends() {
    let desk = Desk::new();
    desk.write("p.yaml", policies("{ kind: disk, path: counters }", "on_store_error: local"));
    let before = Serving::start(&desk, &["-c", "p.yaml"]);
    let after = Serving::spawn(&desk, &["-c", "p.yaml", "--drain", "60s"]);
    after.hears("is in use by another process");
    assert_eq!(before.stop(), Some(0));
    let after = after.greeted();
    assert_eq!(after.statuses("203.0.113.9", 1), [200]);
    assert_eq!(after.stop(), Some(0));
}

/// A copy is made while the server runs, twice; a server starts from it after the file is lost.
#[test]
fn counters_are_copied_and_restored() {
    let desk = Desk::new();
    desk.write("p.yaml", policies("{ kind: disk, path: counters }", "durable: interval"));
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let back_up = || {
        let mut answer = serving.ask("/v1/backup", Some(&serde_json::json!({})));
        assert_eq!(answer.status(), 200);
        let told = answer.body_mut().read_to_string().unwrap();
        serde_json::from_str::<serde_json::Value>(&told).unwrap()["file"].as_str().unwrap().to_owned()
    };
    assert_eq!(serving.statuses("203.0.113.9", 2), [200; 2]);
    assert_eq!(back_up(), "counters/backup/tidegate.redb");
    assert_eq!(serving.statuses("203.0.113.9", 2), [200; 2]);
    back_up();
    assert_eq!(serving.statuses("203.0.113.9", 1), [200]);
    serving.kill();
    std::fs::rename(desk.path("counters/backup/tidegate.redb"), desk.path("counters/tidegate.redb")).unwrap();
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.statuses("203.0.113.9", 3), [200, 200, 429], "four of six were spent at the copy");
    assert_eq!(serving.stop(), Some(0));
    desk.write("p.yaml", policies("{ kind: memory }", "durable: interval"));
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let mut answer = serving.ask("/v1/backup", Some(&serde_json::json!({})));
    assert_eq!(answer.status(), 409);
    let told = answer.body_mut().read_to_string().unwrap();
    assert!(told.contains("`store.kind: memory` keeps no counters on this disk"), "{told}");
}

#[test]
fn counters_of_a_former_store_are_taken_over_and_a_wrong_one_is_refused_by_name() {
    let desk = Desk::new();
    desk.write("former.yaml", policies("{ kind: disk, path: former }", "durable: interval"));
    desk.write(
        "p.yaml",
        policies("{ kind: disk, path: counters, keys: 500, from: former.yaml }", "durable: strict"),
    );
    let former = Serving::start(&desk, &["-c", "former.yaml"]);
    assert_eq!(former.statuses("203.0.113.9", 4), [200; 4]);
    let early = desk.run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0", "--drain", "0s"]).code(1);
    assert!(early.err.contains("store.from: former.yaml: store.kind: disk: the store's file"), "{early:?}");
    assert_eq!(former.stop(), Some(0));
    for taken in [[200, 200, 429], [429, 429, 429]] {
        let serving = Serving::start(&desk, &["-c", "p.yaml"]);
        assert_eq!(serving.statuses("203.0.113.9", 3), taken, "four of six were spent before");
        assert_eq!(serving.stop(), Some(0));
    }
    for (name, store, said) in [
        ("none.yaml", None, "the file cannot be read"),
        ("memory.yaml", Some("{ kind: memory }"), "its counters were in the memory of a process"),
        ("chain.yaml", Some("{ kind: disk, path: x, from: former.yaml }"), "it has store.from itself"),
        ("wrong.yaml", Some("{ kind: dusk, path: x }"), "dusk"),
    ] {
        if let Some(store) = store {
            desk.write(name, policies(store, "durable: interval"));
        }
        desk.write(
            "p.yaml",
            policies(&format!("{{ kind: disk, path: counters, from: {name} }}"), "durable: strict"),
        );
        let refused = desk.run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0"]).code(2);
        assert!(
            refused.err.contains(&format!("store.from: {name}: ")) && refused.err.contains(said),
            "{refused:?}"
        );
    }
}

/// Regression: the last counters were lost with exit code 0, as if the server had ended well.
#[cfg(target_os = "linux")]
#[test]
fn counters_that_a_full_disk_does_not_take_are_told_of_at_the_end() {
    let desk = Desk::new();
    desk.write("p.yaml", policies("{ kind: disk, path: counters }", "on_store_error: local"));
    let serving = Serving::on_disk_that_fills(&desk, &["-c", "p.yaml"]);
    assert_eq!(serving.statuses("203.0.113.9", 7), [200, 200, 200, 200, 200, 200, 429]);
    serving.fill_disk();
    assert_eq!(serving.statuses("203.0.113.8", 1), [200], "checks go on");
    serving.hears("counters cannot be written; they go on in memory");
    assert_eq!(serving.stop_saying("the last counters were not written"), Some(1));
}

/// If there is no disk for the counters, the user must be told, not only the log.
#[test]
fn counters_that_are_not_kept_are_told_of() {
    let desk = Desk::new();
    let serving = Serving::start(&desk, &[]);
    let ready = serving.text("/readyz?verbose");
    assert!(
        ready.contains("[!] store memory has written nothing for") && ready.ends_with("ready\n"),
        "{ready}"
    );
    assert!(serving.text("/metrics").contains("tidegate_store_up{store=\"memory\"} 0\n"));
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn a_folder_for_a_store_that_has_none_is_refused() {
    let desk = Desk::new();
    desk.write("p.yaml", policies("{ kind: memory }", "on_store_error: local"));
    for check in [&["--check"][..], &[]] {
        let words = [&["serve", "-c", "p.yaml", "--store-path", "counters"], check].concat();
        let refused = desk.run(&words).code(2);
        assert!(refused.err.contains("--store-path does not apply to `store.kind: memory`"), "{refused:?}");
    }
}

/// A store that is not built in must already fail the check, not only the start.
#[cfg(not(feature = "redis"))]
#[test]
fn a_check_knows_which_engines_are_built_in() {
    let desk = Desk::new();
    desk.write("p.yaml", policies("{ kind: redis, url: 'redis://127.0.0.1:1', nodes: 2 }", "share: central"));
    let checked = desk.run(&["config", "check", "p.yaml"]).code(0);
    let warning =
        "p.yaml:3:10  warn   store.kind: redis: this program was built without the client of Redis; build it";
    assert!(checked.out.contains(warning), "{checked:?}");
    assert!(checked.out.contains("1 problem (0 errors, 1 warning)"), "{checked:?}");
    let refused = desk.run(&["serve", "--check", "-c", "p.yaml"]).code(2);
    assert!(refused.err.contains("p.yaml:3: store.kind: redis: this program was built"), "{refused:?}");
    let command =
        refused.err.split("cargo install --path crates/tidegate-cli --features ").nth(1).unwrap_or_default();
    let features = command.split('`').next().unwrap_or_default();
    assert!(features.split(',').any(|name| name == "redis"), "{refused:?}");
}

/// A Redis on a loopback address of its own, so that no other program takes its port while it is away. Killed when
/// dropped.
pub(crate) struct Redis {
    child: Child,
    pub(crate) host: &'static str,
    pub(crate) port: u16,
    folder: std::path::PathBuf,
}

impl Redis {
    /// Starts a Redis; prints a message and returns `None` without `redis-server`, unless
    /// `TIDEGATE_REQUIRE_SERVERS=1`.
    pub(crate) fn start(desk: &Desk, host: &'static str) -> Option<Self> {
        let there = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !there {
            let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
            assert!(!required, "redis-server is not installed and TIDEGATE_REQUIRE_SERVERS=1");
            eprintln!("skipped: redis-server is not installed");
            return None;
        }
        let free = std::net::TcpListener::bind((host, 0)).unwrap();
        let (port, folder) = (free.local_addr().unwrap().port(), desk.path(""));
        drop(free);
        Some(Self { child: Self::spawn(host, port, &folder), host, port, folder })
    }

    fn spawn(host: &str, port: u16, folder: &std::path::Path) -> Child {
        let port = port.to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", host, "--save", "", "--appendonly", "no"]);
        command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn again(&mut self) {
        self.child = Self::spawn(self.host, self.port, &self.folder);
    }

    pub(crate) fn store(&self) -> String {
        format!("{{ kind: redis, url: 'redis://{}:{}', nodes: 2 }}", self.host, self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(feature = "redis")]
impl Redis {
    /// Returns how many scripts it has run so far: each is a round trip of the store.
    fn scripts_run(&self) -> u64 {
        use std::io::{BufRead as _, BufReader, Read as _, Write as _};
        let mut wire = BufReader::new(std::net::TcpStream::connect((self.host, self.port)).unwrap());
        wire.get_mut().write_all(b"INFO commandstats\r\n").unwrap();
        let mut length = String::new();
        wire.read_line(&mut length).unwrap();
        let mut text = vec![0; length.trim().trim_start_matches('$').parse().unwrap()];
        wire.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
    }
}

/// The round trips that `config check` reports for a policy must equal those on the wire.
#[cfg(feature = "redis")]
#[test]
fn round_trips_are_as_the_check_says() {
    let desk = Desk::new();
    let Some(redis) = Redis::start(&desk, "127.0.0.24") else { return };
    until("it listens", || std::net::TcpStream::connect((redis.host, redis.port)).is_ok());
    let limits = [
        ("limit: { rate: 5/day }", "script", 1),
        ("limit: { algorithm: fixed-window, rate: 6/day, calendar: UTC }", "script", 1),
        ("limit: [{ rate: 5/day }, { algorithm: fixed-window, rate: 6/h }]", "script", 1),
        ("limit: { algorithm: sliding-log, rate: 6/day }", "compare-and-set", 2),
        ("limit: { algorithm: token-bucket, rate: 6/day }", "compare-and-set", 2),
        ("limit: [{ rate: 5/day }, { algorithm: sliding-window, rate: 6/h }]", "compare-and-set", 2),
        ("limit: { algorithm: concurrency, max: 9, ttl: 1min }", "compare-and-set", 2),
    ];
    for (at, (limit, decided_in, trips)) in limits.into_iter().enumerate() {
        let store = redis.store().replace("nodes: 2", &format!("nodes: 2, prefix: p{at}"));
        let file = format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [] }}\nstore: {store}\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    share: central\n    {limit}\n"
        );
        desk.write("p.yaml", file);
        let told = desk.run(&["config", "check", "p.yaml", "-o", "json"]).code(0).json();
        let cost = &told["costs"][0];
        assert_eq!(
            (&cost["decided_in"], &cost["round_trips"]),
            (&decided_in.into(), &trips.into()),
            "{limit}"
        );
        let node = Serving::start(&desk, &["-c", "p.yaml"]);
        // The first request loads the script and creates the namespace.
        node.statuses("192.0.2.1", 2);
        let before = redis.scripts_run();
        assert_eq!(node.statuses("203.0.113.1", 4), [200; 4], "{limit}");
        assert_eq!(redis.scripts_run() - before, 4 * trips, "{limit}");
        assert_eq!(node.stop(), Some(0));
    }
}

/// A request for an idle key draws one unit for itself, so nothing is returned later.
#[cfg(feature = "redis")]
#[test]
fn a_draw_takes_as_many_round_trips_as_the_check_says() {
    let desk = Desk::new();
    let Some(redis) = Redis::start(&desk, "127.0.0.26") else { return };
    until("it listens", || std::net::TcpStream::connect((redis.host, redis.port)).is_ok());
    for (at, (limit, trips)) in
        [("limit: { rate: 1000/s }", 1), ("limit: { algorithm: token-bucket, rate: 1000/s }", 2)]
            .into_iter()
            .enumerate()
    {
        let store = redis.store().replace("nodes: 2", &format!("nodes: 2, prefix: l{at}"));
        desk.write(
            "p.yaml",
            format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\nstore: {store}\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    {limit}\n"),
        );
        let told = desk.run(&["config", "check", "p.yaml", "-o", "json"]).code(0).json();
        let cost = &told["costs"][0];
        assert_eq!((&cost["decided_in"], &cost["round_trips"]), (&"leases".into(), &trips.into()), "{limit}");
        let node = Serving::start(&desk, &["-c", "p.yaml"]);
        node.statuses("192.0.2.1", 2);
        let before = redis.scripts_run();
        for key in 1..=8 {
            assert_eq!(node.statuses(&format!("203.0.113.{key}"), 1), [200], "{limit}");
        }
        assert_eq!(redis.scripts_run() - before, 8 * trips, "{limit}");
        assert_eq!(node.stop(), Some(0));
    }
}

/// Covers leases, decisions in this process, and settled decisions.
#[cfg(feature = "redis")]
#[test]
fn a_check_tells_of_leases() {
    let desk = Desk::new();
    let file = "version: 1
store: { kind: redis, url: 'redis://127.0.0.1:1', nodes: 2 }
policies:
  - { name: all, limit: { rate: 1000/s } }
  - { name: few, limit: { rate: 5/day } }
  - { name: own, share: local, limit: { rate: 6/day } }
  - { name: work, share: central, limit: { algorithm: concurrency, max: 3, ttl: 1min } }
";
    desk.write("p.yaml", file);
    let told = desk.run(&["config", "check", "p.yaml"]).code(0).out;
    let lines: Vec<String> = told
        .lines()
        .skip_while(|line| !line.is_empty())
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        [
            "POLICY SHARE DECIDED IN ROUND TRIPS OF A REQUEST TO SETTLE IT",
            "all leased leases 1 for a lease of up to 64 units, else 0 -",
            "few leased script 1 -",
            "own local process 0 -",
            "work central compare-and-set 2; 1 for a refusal, at most 2 more for each conflicting write 2",
        ],
        "{told}"
    );
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|have| **have == status).count()
}

/// Asks both nodes in turn.
fn both(one: &Serving, other: &Serving, ip: &str, times: usize) -> Vec<u16> {
    (0..times).flat_map(|_| [one, other]).flat_map(|node| node.statuses(ip, 1)).collect()
}

#[cfg(feature = "redis")]
#[test]
fn two_processes_hold_one_limit_over_a_redis_that_is_killed_and_comes_back() {
    let desk = Desk::new();
    let Some(mut redis) = Redis::start(&desk, "127.0.0.21") else { return };
    desk.write("p.yaml", policies(&redis.store(), "share: central"));
    // The Redis may not listen yet; the nodes start all the same and keep connecting.
    let nodes = [Serving::start(&desk, &["-c", "p.yaml"]), Serving::start(&desk, &["-c", "p.yaml"])];
    let [one, other] = &nodes;
    let gone = |node: &Serving| node.text("/readyz?verbose").contains("[!] store redis has been gone");
    let back = |ip: &str| {
        for node in &nodes {
            // Only requests find out whether it is back.
            until("the store is back", || {
                node.check(ip);
                !gone(node)
            });
        }
    };
    back("192.0.2.1");
    assert_eq!(both(one, other, "203.0.113.1", 4), [200, 200, 200, 200, 200, 200, 429, 429]);

    redis.kill();
    // Each node grants half of the limit, and reports the documented states.
    let alone = both(one, other, "203.0.113.2", 5);
    assert_eq!((count(&alone, 200), count(&alone, 429)), (6, 4), "{alone:?}");
    for node in &nodes {
        assert!(gone(node), "{}", node.text("/readyz?verbose"));
        assert_eq!(node.ask("/readyz", None).status(), 200, "no other node would have it");
        assert!(node.text("/metrics").contains("tidegate_store_up{store=\"redis\"} 0\n"));
    }

    redis.again();
    back("192.0.2.2");
    // The Redis has lost its data: limits count as half full, as `after_loss` specifies.
    let half = both(one, other, "203.0.113.3", 4);
    assert_eq!((count(&half, 200), count(&half, 429)), (3, 5), "{half:?}");
    for node in nodes {
        assert!(node.text("/metrics").contains("tidegate_store_up{store=\"redis\"} 1\n"));
        assert_eq!(node.stop(), Some(0));
    }
}

/// A node must start while its engine is away; otherwise an outage of the engine becomes an outage of the nodes.
#[cfg(feature = "redis")]
#[test]
fn a_node_starts_while_its_engine_is_away_and_finds_it_later() {
    let desk = Desk::new();
    let Some(mut redis) = Redis::start(&desk, "127.0.0.22") else { return };
    redis.kill();
    desk.write("p.yaml", policies(&redis.store(), "share: central"));
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    let ready = node.text("/readyz?verbose");
    assert!(
        ready.contains("[!] store redis has been gone") && ready.contains("no Redis server answers"),
        "{ready}"
    );
    assert_eq!(node.statuses("203.0.113.1", 4), [200, 200, 200, 429], "half of six");
    redis.again();
    node.hears("the engine answers");
    until("the store is back", || {
        node.check("192.0.2.1");
        node.text("/readyz?verbose").contains("[+] store redis")
    });
    assert_eq!(count(&node.statuses("203.0.113.2", 7), 200), 6);
    assert_eq!(node.stop(), Some(0));
}

/// Regression: the password of the start was used for ever. The file is read for each connection, without a signal.
#[cfg(feature = "redis")]
#[test]
fn a_password_is_changed_while_a_node_runs() {
    let desk = Desk::new();
    let Some(redis) = Redis::start(&desk, "127.0.0.24") else { return };
    let store = redis.store().replace("nodes: 2", "nodes: 2, user: tide, password_file: password");
    desk.write("p.yaml", policies(&store, "share: central\n    on_store_error: deny"));
    let ask = |words: &str| {
        let wire = std::net::TcpStream::connect((redis.host, redis.port)).unwrap();
        std::io::Write::write_all(&mut &wire, format!("{words}\r\n").as_bytes()).unwrap();
        std::io::Read::read(&mut &wire, &mut [0; 64]).unwrap();
    };
    until("it listens", || std::net::TcpStream::connect((redis.host, redis.port)).is_ok());
    ask("ACL SETUSER tide on >first ~* +@all");
    desk.write("password", "first\n");
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    let status = || node.check("203.0.113.1").status();
    assert_eq!(status(), 200);
    ask("ACL DELUSER tide");
    ask("ACL SETUSER tide on >second ~* +@all");
    until("the first password is refused", || {
        status() == 503 && node.text("/readyz?verbose").contains("check user and password")
    });
    desk.write("password", "second\n");
    until("it logs in with the second", || status() == 200);
    assert_eq!(node.stop(), Some(0));
}

/// The same on etcd, which is asked again with the file's password when it refuses the last.
#[cfg(feature = "etcd")]
#[test]
fn a_password_of_etcd_is_changed_while_a_node_runs() {
    let desk = Desk::new();
    let Some(etcd) = tidegate_testkit::EtcdServer::start(&[]) else { return };
    for words in [
        &["user", "add", "root:master"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "tide:first"],
        &["role", "add", "tidegate"],
        &["role", "grant-permission", "tidegate", "--prefix=true", "readwrite", "tg/"],
        &["user", "grant-role", "tide", "tidegate"],
        &["auth", "enable"],
    ] {
        etcd.ctl(words);
    }
    let store =
        format!("{{ kind: etcd, url: '{}', nodes: 2, user: tide, password_file: password }}", etcd.url());
    desk.write("p.yaml", policies(&store, "share: central\n    on_store_error: deny"));
    desk.write("password", "first\n");
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    let status = || node.check("203.0.113.1").status();
    assert_eq!(status(), 200);
    for words in [
        &["user", "delete", "tide"][..],
        &["user", "add", "tide:second"],
        &["user", "grant-role", "tide", "tidegate"],
    ] {
        etcd.ctl(&[&["--user", "root:master"], words].concat());
    }
    until("the first password is refused", || status() == 503);
    desk.write("password", "second\n");
    until("it logs in with the second", || status() == 200);
    assert_eq!(node.stop(), Some(0));
}

/// An error that waiting does not fix ends the start. It is not a mistake on the command line: exit code 1.
#[cfg(feature = "redis")]
#[test]
fn an_engine_that_refuses_the_password_ends_the_start() {
    let desk = Desk::new();
    let Some(redis) = Redis::start(&desk, "127.0.0.23") else { return };
    desk.write("password", "wrong\n");
    let store = redis.store().replace("nodes: 2", "nodes: 2, user: nobody, password_file: password");
    desk.write("p.yaml", policies(&store, "share: central"));
    until("it listens", || std::net::TcpStream::connect((redis.host, redis.port)).is_ok());
    let refused = desk.run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0"]).code(1);
    assert!(
        refused.err.contains("refuses the credentials") && !refused.err.contains("wrong\n"),
        "{refused:?}"
    );
}
