//! What an operator sees of nodes that share a Redis: who holds what, what an outage may cost, and which nodes there are.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use tidegate_testkit::{EtcdServer, RedisServer, ZooKeeperServer, free_port};

use crate::verbs::Desk;
use crate::verbs::serve::{Serving, until};
use crate::verbs::stores::{Redis, policies};

/// Sends a command, and returns the beginning of the answer.
fn ask(redis: &Redis, words: &str) -> String {
    let mut wire = TcpStream::connect((redis.host, redis.port)).unwrap();
    wire.write_all(format!("{words}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 64];
    let length = wire.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

fn redis(desk: &Desk, host: &'static str) -> Option<Redis> {
    let redis = Redis::start(desk, host)?;
    until("it listens", || TcpStream::connect((redis.host, redis.port)).is_ok());
    Some(redis)
}

/// Returns the value of a series.
fn value(node: &Serving, series: &str) -> Option<f64> {
    let text = node.text("/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

#[test]
fn an_operator_reads_who_holds_what_and_what_an_outage_may_cost() {
    let desk = Desk::new();
    let Some(redis) = redis(&desk, "127.0.0.28") else { return };
    let file = format!(
        "version: 1
client_ip: {{ trusted_proxies: [] }}
store: {}
policies:
  - {{ name: all, limit: {{ rate: 1000/s }} }}
  - {{ name: few, limit: {{ rate: 8/day }} }}
  - {{ name: own, share: local, limit: {{ rate: 1000/s }} }}
  - {{ name: part, share: split, limit: {{ rate: 1000/s }} }}
  - {{ name: shut, share: central, on_store_error: deny, limit: {{ rate: 1000/s }} }}
  - {{ name: open, share: central, on_store_error: allow, limit: {{ rate: 1000/s }} }}
  - {{ name: seen, mode: shadow, limit: {{ rate: 1000/s }} }}
",
        redis.store()
    );
    desk.write("p.yaml", file);
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    let excess = |policy, share| {
        let series =
            format!("tidegate_policy_possible_excess_units{{policy=\"{policy}\",share=\"{share}\"}}");
        value(&node, &series)
    };
    assert_eq!(excess("all", "leased"), Some(1125.0), "half of the burst and of 1.25 s");
    assert_eq!(excess("few", "central"), Some(4.0), "too few units for a lease");
    assert_eq!((excess("own", "local"), excess("part", "split")), (Some(0.0), Some(0.0)));
    assert_eq!((excess("shut", "central"), excess("open", "central")), (Some(0.0), Some(f64::INFINITY)));
    assert_eq!(excess("seen", "leased"), None, "it refuses nobody");
    until("it answers", || node.text("/readyz?verbose").contains("[+] store redis, answers in "));
    let ready = node.text("/readyz?verbose");
    assert!(
        ready.contains("[+] share: the engine decides each request of few, which cannot be leased"),
        "{ready}"
    );

    let out = |policy| value(&node, &format!("tidegate_lease_outstanding_units{{policy=\"{policy}\"}}"));
    assert_eq!((out("all"), out("few")), (Some(0.0), None));
    until("it holds units", || {
        node.check("203.0.113.1");
        out("all") > Some(0.0) && out("all") <= Some(25.0)
    });

    // The state of all keys is lost: what is asked for next is found missing.
    assert_eq!(value(&node, "tidegate_store_losses_total"), Some(0.0));
    assert!(ask(&redis, "FLUSHALL").starts_with("+OK"));
    until("it notices the loss", || {
        node.check("203.0.113.1");
        value(&node, "tidegate_store_losses_total") > Some(0.0)
    });
    let ready = node.text("/readyz?verbose");
    assert!(
        ready.contains("[!] store redis, ") && ready.contains("; lost the state of keys, noticed "),
        "{ready}"
    );
    assert_eq!(node.stop(), Some(0));
}

/// With the rights that the manual lists. A node that died and is started again is not one too many.
#[test]
fn more_nodes_than_the_file_says_and_other_policies_are_told() {
    let desk = Desk::new();
    let Some(redis) = redis(&desk, "127.0.0.29") else { return };
    let rights = "+@read +@write +@hash +@scripting +time +info +ping +cluster|slots";
    let user = format!("ACL SETUSER tide on >secret resetkeys ~tg:1:{{tg:* -@all {rights}");
    assert!(ask(&redis, &user).starts_with("+OK"));
    desk.write("password", "secret\n");
    let store = redis.store().replace("nodes: 2", "nodes: 2, user: tide, password_file: password");
    let file = policies(&store, "share: central");
    desk.write("p.yaml", &file);
    desk.write("other.yaml", file.replace("6/day", "7/day"));
    let start = |file| Serving::start(&desk, &["-c", file]);
    let (one, two) = (start("p.yaml"), start("p.yaml"));
    let members = |node: &Serving| value(node, "tidegate_cluster_members");
    let told = |node: &Serving| {
        ["tidegate_cluster_too_many_members", "tidegate_cluster_other_policies"]
            .map(|name| value(node, name).unwrap())
    };
    until("the nodes know each other", || members(&one) == Some(2.0) && members(&two) == Some(2.0));
    assert!(one.text("/readyz?verbose").contains("[+] nodes: 2 of 2 in store.nodes\n"));
    two.kill();
    let two = start("p.yaml");
    until("the dead one is still remembered", || members(&one) == Some(3.0));
    until("it is forgotten", || {
        assert_eq!(told(&one), [0.0, 0.0]);
        members(&one) == Some(2.0)
    });

    let three = start("other.yaml");
    until("each node is told", || {
        (told(&one), told(&two), told(&three)) == ([1.0, 1.0], [1.0, 1.0], [1.0, 2.0])
    });
    one.hears("more nodes share the engine than store.nodes says");
    one.hears("nodes that share the engine have other policies than this one");
    let ready = one.text("/readyz?verbose");
    let line =
        "[!] nodes: 3 of 2 in store.nodes, more than it says; other policies than this one have: 127.0.0.1:";
    assert!(ready.contains(line), "{ready}");
    assert_eq!(three.stop(), Some(0));
    until("it has left", || members(&one) == Some(2.0) && told(&one) == [0.0, 0.0]);
    one.hears("no more nodes share the engine than store.nodes says");
    assert_eq!((one.stop(), two.stop()), (Some(0), Some(0)));
}

/// Node `one` spends a key; both say what is left of it, reset it and block it.
fn keys_of_two_nodes(store: &str) {
    let desk = Desk::new();
    let policy = |share| {
        format!(
            "  - {{ name: {share}, share: {share}, by: [client.ip], match: {{ path: /{share} }}, limit: {{ rate: 1000/day }} }}\n"
        )
    };
    let all: String = ["leased", "central", "split"].map(policy).concat();
    desk.write(
        "p.yaml",
        format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\nstore: {store}\npolicies:\n{all}"),
    );
    let (one, two) = (Serving::start(&desk, &["-c", "p.yaml"]), Serving::start(&desk, &["-c", "p.yaml"]));
    let (spent, new) = ("203.0.113.9", "203.0.113.1");
    for (share, nodes) in [("leased", "all"), ("central", "all"), ("split", "this")] {
        let check = |node: &Serving, cost: u64| {
            let attributes = json!({ "client.ip": spent, "request.path": format!("/{share}") });
            let body = json!({ "attributes": attributes, "cost": cost });
            node.ask("/v1/check", Some(&body)).status().as_u16()
        };
        let path = |ip| format!("/v1/keys/{share}?client.ip={ip}");
        let standing = |node: &Serving, ip| {
            let shown: Value = serde_json::from_str(&node.text(&path(ip))).unwrap();
            shown["standing"][0].clone()
        };
        let verb = |node: &Serving, words: &[&str], ip: &str| {
            let key = format!("client.ip={ip}");
            let words =
                [&["key", words[0], share, "--key", &key, "--server", node.url()], &words[1..]].concat();
            desk.run(&words)
        };

        let fresh = standing(&two, new);
        let most = fresh["most"].as_u64().unwrap();
        match share {
            "leased" => {
                assert_eq!(fresh["held_at_most"], 50, "5 % of the burst: {fresh}");
                assert_eq!((most, &fresh["remaining"]), (1000, &json!(950)), "{fresh}");
                let got = verb(&two, &["get"], new).code(0).out;
                assert!(got.contains("950 of 1,000, nodes hold up to 50 "), "{got}");
            }
            "central" => assert_eq!((most, &fresh["remaining"]), (1000, &json!(1000)), "{fresh}"),
            _ => {
                assert!(most < 1000 && fresh["remaining"] == most, "a part of the limit: {fresh}");
                let got = verb(&two, &["get"], new).code(0).out;
                assert!(got.contains(&format!("{most} of {most} on this node ")), "{got}");
            }
        }
        assert_eq!(fresh["nodes"], nodes, "{fresh}");
        let untouched = verb(&two, &["reset"], new).code(1).out;
        assert!(untouched.contains("nothing was changed"), "{share}: {untouched}");

        for cost in [100, 10, 1] {
            while check(&one, cost) == 200 {}
        }
        let there = standing(&one, spent);
        assert!(there["remaining"] == 0 && there["reset_after_ms"].as_u64() > Some(0), "{there}");
        let here = standing(&two, spent);
        let seen = if nodes == "all" { json!(0) } else { here["most"].clone() };
        assert_eq!((&here["remaining"], &here["nodes"]), (&seen, &json!(nodes)), "{share}: {here}");
        assert_eq!(check(&two, 1), if nodes == "all" { 429 } else { 200 }, "{share}");

        let reset = verb(&one, &["reset", "-o", "json"], spent).code(0).json();
        assert_eq!(reset["nodes"], nodes, "{reset}");
        assert_eq!(check(&one, 1), 200, "{share}");
        until("the other node knows", || check(&two, 1) == 200);

        let blocked = verb(&one, &["block", "--for", "1h"], spent).code(0);
        assert!(
            blocked.err.contains("of this node alone: other nodes do not have this block"),
            "{blocked:?}"
        );
        assert_eq!((check(&one, 1), check(&two, 1)), (403, 200), "{share}");
        let elsewhere = verb(&two, &["unblock"], spent).code(1);
        assert!(elsewhere.err.contains("other nodes have blocks of their own"), "{elsewhere:?}");
        assert_eq!(check(&one, 1), 403);
        verb(&one, &["unblock"], spent).code(0);
        assert_eq!(check(&one, 1), 200);
    }
    assert_eq!((one.stop(), two.stop()), (Some(0), Some(0)));
}

#[test]
fn a_key_is_shown_reset_and_blocked_over_redis() {
    let Some(redis) = RedisServer::start(&[]) else { return };
    keys_of_two_nodes(&format!("{{ kind: redis, url: 'redis://{}', nodes: 2 }}", redis.addr()));
    // While the engine is gone, what a node grants by itself is no standing of the key.
    let desk = Desk::new();
    let gone = free_port();
    let store = format!("{{ kind: redis, url: 'redis://127.0.0.1:{gone}', nodes: 2 }}");
    desk.write("p.yaml", policies(&store, "share: central"));
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(node.statuses("203.0.113.9", 2), [200; 2]);
    let shown: Value = serde_json::from_str(&node.text("/v1/keys/per-ip?client.ip=203.0.113.9")).unwrap();
    assert_eq!(shown["standing"], Value::Null, "{shown}");
    assert_eq!(node.stop(), Some(0));
}

#[cfg(feature = "etcd")]
#[test]
fn a_key_is_shown_reset_and_blocked_over_etcd() {
    let Some(etcd) = EtcdServer::start(&[]) else { return };
    keys_of_two_nodes(&format!("{{ kind: etcd, url: '{}', nodes: 2 }}", etcd.url()));
}

#[cfg(feature = "zookeeper")]
#[test]
fn a_key_is_shown_reset_and_blocked_over_zookeeper() {
    let Some(zookeeper) = ZooKeeperServer::start() else { return };
    keys_of_two_nodes(&format!("{{ kind: zookeeper, url: 'zookeeper://{}', nodes: 2 }}", zookeeper.addr()));
}
