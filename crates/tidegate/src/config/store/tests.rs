//! What `store` may say, and how mistakes in it are answered.

use super::super::{Config, Format};
use super::*;

fn parse(store: &str) -> Result<StoreSettings, String> {
    let text = format!(
        "version: 1\nstore: {store}\npolicies:\n  - {{name: all, by: [user.id], limit: {{rate: 1/s, burst: 1}}}}\n"
    );
    let read = Config::parse(&text, "f", Format::Yaml).map(|(config, _)| config.store);
    read.map_err(|mistakes| {
        mistakes.iter().map(|mistake| mistake.message.clone()).collect::<Vec<_>>().join("; ")
    })
}

#[test]
fn a_disk_has_a_folder_and_an_interval() {
    let read = parse("{kind: disk, path: /var/lib/tidegate, flush: 50ms}").unwrap();
    let disk = DiskSettings {
        path: Some("/var/lib/tidegate".into()),
        flush: Some(Duration::from_millis(50)),
        stated: true,
    };
    assert_eq!((read.word(), read.kind), ("disk", StoreKind::Disk(disk)));
    assert_eq!(
        parse("{kind: disk, flush: 1ms}").unwrap_err(),
        "store.flush: 1ms is out of range; use 10ms to 10s"
    );
}

#[test]
fn an_engine_has_addresses_without_secrets() {
    let read = parse("{kind: redis, url: [redis://a:1, redis://b:2], topology: cluster, nodes: 3}").unwrap();
    let StoreKind::Engine(engine) = read.kind else { panic!("{read:?}") };
    assert_eq!((engine.urls.len(), engine.nodes, &*engine.prefix), (2, 3, "tg"));
    let kind = EngineKind::Redis { topology: Topology::Cluster, after_loss: AfterLoss::Half };
    assert_eq!(engine.engine, kind);
    let secret = parse("{kind: redis, url: 'redis://me:hunter2@a:1'}").unwrap_err();
    assert!(secret.contains("store.password_file") && !secret.contains("hunter2"), "{secret}");
    let other = parse("{kind: etcd, url: 'redis://me:hunter2@a:1'}").unwrap_err();
    assert!(other.contains("http:// or https://") && !other.contains("hunter2"), "{other}");
}

#[test]
fn what_says_nothing_about_a_kind_is_refused_by_name() {
    for (store, said) in [
        ("{kind: memory, path: /tmp}", "store.path says nothing about `store.kind: memory`; it is for disk"),
        ("{kind: redis}", "`store.kind: redis` needs store.url, as redis://127.0.0.1:6379"),
        ("{kind: etcd, url: 'http://'}", "store.url: \"http://\" names no host; write http://HOST:2379"),
        (
            "{kind: zookeeper, url: 'zookeeper://a:x'}",
            "store.url: \"zookeeper://a:x\" has no port from 1 to 65535 after its colon",
        ),
        (
            "{kind: redis, url: 'redis://a', topology: sentinel}",
            "`store.topology: sentinel` needs store.master, the name that the sentinels have for the set of servers, as mymaster",
        ),
    ] {
        assert_eq!(parse(store).unwrap_err(), said);
    }
}
