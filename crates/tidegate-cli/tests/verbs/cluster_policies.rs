//! Policies that are put once and apply on every node: server processes with a real etcd, and with a real ZooKeeper.

use std::sync::Arc;

use tidegate::cluster::{Coordinator, policies};
use tidegate_server::open_coordinator;
use tidegate_testkit::{EtcdServer, ZooKeeperServer, free_port, runtime};

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};
use crate::verbs::serve::{Serving, until};

fn own(store: &str) -> String {
    format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\nstore: {store}\npolicies: []\n")
}

/// A daily limit that all nodes share.
fn shared(limit: &str) -> String {
    format!(
        "# Ours\nversion: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    share: central\n    limit: {{ {limit} }}\n"
    )
}

fn a_day(units: u32) -> String {
    shared(&format!("algorithm: fixed-window, rate: {units}/day"))
}

/// Asks both nodes in turn.
fn both(nodes: &[Serving; 2], ip: &str, times: usize) -> Vec<u16> {
    (0..times).flat_map(|_| nodes).flat_map(|node| node.statuses(ip, 1)).collect()
}

#[track_caller]
fn ready(nodes: &[Serving; 2], words: &str) {
    for node in nodes {
        until(words, || node.text("/readyz?verbose").contains(words));
    }
}

/// Does with a cluster what people do, and what programs of another version do.
fn comes_to_all(store: &str) {
    let desk = Desk::new();
    desk.write("p.yaml", own(store));
    let run = |words: &[&str]| desk.run(&[&["policies"], words, &["-c", "p.yaml"]].concat());
    let schema = schema(&desk, "policies");
    let json = |words: &[&str], code: i32| {
        let value = run(&[words, &["-o", "json"]].concat()).code(code).json();
        holds(&schema, &value, &format!("{words:?}"));
        value
    };
    assert!(run(&["show"]).code(1).err.contains("no policies were put"), "nothing to show");

    let nodes = [Serving::start(&desk, &["-c", "p.yaml"]), Serving::start(&desk, &["-c", "p.yaml"])];
    ready(&nodes, "[+] policies put for all nodes: those of the file are in force");
    assert_eq!(both(&nodes, "203.0.113.1", 2), [200; 4], "no policy holds");

    desk.write("shared.yaml", a_day(3));
    assert_eq!(json(&["put", "shared.yaml"], 0)["version"], 1);
    ready(&nodes, "[+] policies put for all nodes: version 1 is in force");
    assert_eq!(both(&nodes, "203.0.113.1", 2), [200, 200, 200, 429]);

    // Shared policies cannot be changed on a single node.
    let refused = nodes[0].put("/v1/policies/per-ip", "limit: { rate: 1/min }\n");
    assert_eq!((refused["status"].as_u64(), &refused["owner"]), (Some(409), &"cluster".into()), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("tidegate policies put"), "{refused}");

    // Invalid policies are refused before they are put.
    desk.write("wrong.yaml", shared("rate: 3/M"));
    let refused = run(&["put", "wrong.yaml"]).code(2);
    assert!(refused.err.contains("wrong.yaml:8:") && refused.err.contains("month"), "{refused:?}");
    let refused = run(&["put", "p.yaml"]).code(2);
    assert!(refused.err.contains("p.yaml:3:1") && refused.err.contains("each node's own"), "{refused:?}");
    assert_eq!(json(&["history"], 0)["versions"].as_array().unwrap().len(), 1);

    // Policies that only another version understands reach the nodes, and change nothing.
    let (own, runtime) = (desk.path("p.yaml"), runtime());
    let store = tidegate::config::Config::read(&own).unwrap().0.store;
    let cluster: Arc<dyn Coordinator> = runtime.block_on(open_coordinator(&store)).unwrap();
    let future = shared("algorithm: of-tomorrow, rate: 1/day").into_bytes();
    assert_eq!(runtime.block_on(policies::put(&*cluster, future, Some(1))), Ok(2));
    ready(
        &nodes,
        "[!] policies put for all nodes: version 1 is in force; version 2 is refused: policies@2:8:",
    );
    assert_eq!(both(&nodes, "203.0.113.2", 2), [200, 200, 200, 429]);
    for node in &nodes {
        let metrics = node.text("/metrics");
        assert!(metrics.contains("tidegate_cluster_policies_version 1\n"), "{metrics}");
        assert!(metrics.contains("tidegate_cluster_policies_refused 1\n"), "{metrics}");
        node.hears("policies@2:8:");
    }
    until("both tell the others", || run(&["nodes"]).out.matches("of-tomorrow").count() == 2);
    let told = json(&["nodes"], 1);
    assert_eq!((&told["in_force"], &told["nodes"][0]["follows"]), (&2.into(), &1.into()), "{told}");

    assert_eq!(json(&["rollback", "1"], 0)["version"], 3);
    ready(&nodes, "[+] policies put for all nodes: version 3 is in force");
    until("nobody refuses any", || run(&["nodes"]).code == 0);
    assert!(run(&["rollback", "7"]).code(1).err.contains("kept are 1, 2"), "version 7 was never put");

    desk.write("shared.yaml", a_day(1));
    let late = run(&["put", "shared.yaml", "--replacing", "1"]).code(1);
    assert!(late.err.contains("version 3 is in force, and not 1"), "{late:?}");
    run(&["put", "shared.yaml", "--replacing", "3"]).code(0);
    ready(&nodes, "version 4 is in force");
    assert_eq!(both(&nodes, "203.0.113.3", 2), [200, 429, 429, 429]);
    assert_eq!(run(&["show", "1"]).code(0).out, a_day(3));
    assert_eq!(json(&["show"], 0)["text"], a_day(1));

    // A starting node uses the shared policies from its first request, and a node whose own file is reloaded keeps
    // them.
    let [one, other] = nodes;
    assert_eq!(other.stop(), Some(0));
    let other = Serving::spawn(&desk, &["-c", "p.yaml"]);
    let (other, greeting) = other.greeting();
    assert!(greeting.contains("serves 1 policy"), "{greeting}");
    assert_eq!(other.statuses("203.0.113.3", 1), [429]);
    assert_eq!(one.ask("/v1/reload", Some(&serde_json::json!({}))).status(), 200);
    assert_eq!(one.statuses("203.0.113.3", 1), [429]);

    // A document written by hand has an unknown format.
    let at = runtime.block_on(cluster.read(policies::NAME)).unwrap().version;
    runtime.block_on(cluster.replace(policies::NAME, at, b"by hand".to_vec())).unwrap();
    let nodes = [one, other];
    ready(&nodes, "version 4 is in force; the last are refused: it was not put by this program");
    until("both tell the others", || run(&["nodes"]).out.matches("the last").count() == 2);
    json(&["nodes"], 1);
    assert!(run(&["show"]).code(1).err.contains("not written by Tidegate"), "by hand");
    for node in nodes {
        assert_eq!(node.stop(), Some(0));
    }
}

#[cfg(feature = "etcd")]
#[test]
fn policies_come_to_all_nodes_through_etcd() {
    let Some(etcd) = EtcdServer::start(&[]) else { return };
    comes_to_all(&format!("{{ kind: etcd, url: '{}', nodes: 3, policies: cluster }}", etcd.url()));
}

#[cfg(feature = "zookeeper")]
#[test]
fn policies_come_to_all_nodes_through_zookeeper() {
    let Some(zookeeper) = ZooKeeperServer::start() else { return };
    comes_to_all(&format!(
        "{{ kind: zookeeper, url: 'zookeeper://{}', nodes: 3, policies: cluster }}",
        zookeeper.addr()
    ));
}

/// A node that starts while the engine is away uses its own file until the engine provides the shared policies.
#[cfg(feature = "etcd")]
#[test]
fn a_node_begins_with_its_own_policies_while_the_engine_is_away() {
    let desk = Desk::new();
    let store =
        format!("{{ kind: etcd, url: 'http://127.0.0.1:{}', nodes: 2, policies: cluster }}", free_port());
    desk.write("p.yaml", a_day(2).replace("policies:", &format!("store: {store}\npolicies:")));
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    assert!(node.text("/readyz?verbose").contains("those of the file are in force"), "nothing was put");
    assert_eq!(node.statuses("203.0.113.1", 2), [200, 429], "half of two");
    let away = desk.run(&["policies", "nodes", "-c", "p.yaml"]).code(1);
    assert!(away.err.contains("no etcd answers"), "{away:?}");
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn nodes_that_go_by_their_files_have_nothing_put() {
    let desk = Desk::new();
    let own = |store: &str| desk.write("p.yaml", own(store));
    desk.write("shared.yaml", a_day(3));
    own("{ kind: memory }");
    for words in [&["put", "shared.yaml"][..], &["nodes"]] {
        let refused = desk.run(&[&["policies"], words, &["-c", "p.yaml"]].concat()).code(2);
        assert!(refused.err.contains("write store.policies: cluster"), "{refused:?}");
    }
    assert!(desk.run(&["policies", "nodes"]).code(2).err.contains("-c tidegate.yaml"));
    own("{ kind: redis, url: 'redis://127.0.0.1:1', nodes: 2, policies: cluster }");
    let refused = desk.run(&["config", "check", "p.yaml"]).code(2);
    assert!(refused.out.contains("it is for etcd, zookeeper"), "{refused:?}");
}
