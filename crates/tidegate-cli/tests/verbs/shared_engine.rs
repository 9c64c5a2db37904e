//! What an operator sees of nodes that share a Redis: who holds what, what an outage may cost, and which nodes there are.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

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
