//! Tests of the section `store`: its valid forms, and the messages for its mistakes.

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
fn a_disk_has_a_folder() {
    let read = parse("{kind: disk, path: /var/lib/tidegate}").unwrap();
    let disk = DiskSettings { path: Some("/var/lib/tidegate".into()), stated: true };
    assert_eq!((read.word(), read.kind), ("disk", StoreKind::Disk(disk)));
    let told = parse("{kind: disk, flush: 1ms}").unwrap_err();
    assert!(told.contains("the store, which writes every 200ms"), "{told}");
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
        ("{kind: memory, path: /tmp}", "store.path has no effect with `store.kind: memory`; it is for disk"),
        ("{kind: redis, nodes: 2}", "`store.kind: redis` needs store.url, as redis://127.0.0.1:6379"),
        (
            "{kind: etcd, nodes: 2, url: 'http://'}",
            "store.url: \"http://\" names no host; write http://HOST:2379",
        ),
        (
            "{kind: zookeeper, nodes: 2, url: 'zookeeper://a:x'}",
            "store.url: \"zookeeper://a:x\" has no port from 1 to 65535 after its colon",
        ),
        (
            "{kind: redis, nodes: 2, url: 'redis://a', topology: sentinel}",
            "store.topology: \"sentinel\" is not single, cluster, or sentinel with the name that the sentinels have for the master, as sentinel mymaster",
        ),
    ] {
        assert_eq!(parse(store).unwrap_err(), said);
    }
}

/// Regression: the name of the master had 55 bytes at most.
#[test]
fn the_name_of_a_master_may_be_as_long_as_any() {
    let of = |bytes: usize| {
        parse(&format!(
            "{{kind: redis, nodes: 2, url: 'redis://a', topology: sentinel {}}}",
            "m".repeat(bytes)
        ))
    };
    of(128).unwrap();
    assert!(of(129).unwrap_err().ends_with("has 138 bytes; use at most 137"));
}

/// Without `nodes`, each node assumed that it was the only one: three nodes that split a limit let through three times as much.
#[test]
fn an_engine_is_told_how_many_nodes_share_it() {
    for (kind, url) in [("redis", "redis://a"), ("etcd", "http://a"), ("zookeeper", "zookeeper://a")] {
        let told = parse(&format!("{{kind: {kind}, url: '{url}'}}")).unwrap_err();
        assert!(told.starts_with(&format!("`store.kind: {kind}` needs store.nodes, ")), "{told}");
        let read = parse(&format!("{{kind: {kind}, url: '{url}', nodes: 3}}")).unwrap();
        assert!(matches!(read.kind, StoreKind::Engine(engine) if engine.nodes == 3));
    }
}

/// Formerly each of these was accepted and had no effect.
#[test]
fn words_that_would_be_lost_are_refused() {
    for (store, said) in [
        (
            "{kind: redis, nodes: 2, url: 'redis://a', user: me}",
            "store.user has no effect without store.password_file",
        ),
        (
            "{kind: etcd, nodes: 2, url: 'http://a', password_file: p}",
            "store.password_file has no effect with `store.kind: etcd`",
        ),
        (
            "{kind: redis, nodes: 2, url: 'redis://a', ca_file: c}",
            "store.ca_file has no effect on addresses that begin with redis://; write rediss://",
        ),
        (
            "{kind: etcd, nodes: 2, url: 'http://a', ca_file: c}",
            "store.ca_file has no effect on addresses that begin with http://; write https://",
        ),
        (
            "{kind: redis, nodes: 2, url: 'redis://a', cert_file: c, key_file: k}",
            "store.cert_file has no effect on addresses that begin with redis://; write rediss://",
        ),
        (
            "{kind: etcd, nodes: 2, url: 'https://a', cert_file: c}",
            "store.cert_file has no effect without store.key_file; write both, or neither",
        ),
        (
            "{kind: redis, nodes: 2, url: 'rediss://a', key_file: k}",
            "store.key_file has no effect without store.cert_file; write both, or neither",
        ),
        (
            "{kind: redis, nodes: 2, url: [redis://a, redis://b]}",
            "store.url: several addresses are for `store.topology: cluster` or `sentinel`",
        ),
        (
            "{kind: redis, nodes: 2, url: [rediss://a, redis://b], topology: sentinel m}",
            "store.url: some addresses begin with rediss:// and some with redis://; write one for all",
        ),
        (
            "{kind: redis, nodes: 2, url: [redis://a/1, redis://b/2], topology: sentinel m}",
            "store.url: the addresses name different databases; write one for all",
        ),
    ] {
        let told = parse(store).unwrap_err();
        assert!(told.starts_with(said), "{told}");
    }
    for good in [
        "{kind: redis, nodes: 2, url: 'redis://a', password_file: p}",
        "{kind: redis, nodes: 2, url: 'rediss://a', user: me, password_file: p, ca_file: c}",
        "{kind: etcd, nodes: 2, url: 'https://a', ca_file: c, cert_file: c, key_file: k}",
        "{kind: redis, nodes: 2, url: [rediss://a/1, rediss://b/1], topology: sentinel m}",
    ] {
        parse(good).unwrap();
    }
}

#[test]
fn a_region_names_itself_and_through_what_regions_agree() {
    let of = |region: &str| parse(&format!("{{kind: redis, url: 'redis://a', nodes: 2, region: {region}}}"));
    let read = of("{name: eu, max: 3, kind: etcd, url: ['http://e1:2379', 'http://e2:2379']}").unwrap();
    let StoreKind::Engine(engine) = read.kind else { panic!("{read:?}") };
    let region = engine.region.unwrap();
    assert_eq!((&*region.name, region.most, region.through.engine.word()), ("eu", 3, "etcd"));
    assert_eq!((region.through.urls.len(), &*region.through.prefix), (2, "tg-regions"));
    for (region, said) in [
        ("{name: eu, max: 3, kind: etcd}", "store.region has no url"),
        ("{name: eu, kind: etcd, url: 'http://e'}", "store.region has no max"),
        (
            "{name: eu, max: 3, kind: redis, url: 'redis://a'}",
            "store.region.kind: unknown word \"redis\"; possible are etcd, zookeeper",
        ),
        (
            "{name: eu, max: 3, kind: etcd, url: 'http://'}",
            "store.region.url: \"http://\" names no host; write http://HOST:2379",
        ),
        (
            "{name: eu, max: 3, kind: zookeeper, url: 'zookeeper://a', user: me}",
            "store.region.user has no effect without store.region.password_file; write both, or neither",
        ),
        (
            "{name: eu, max: 3, kind: zookeeper, url: 'zookeeper://a', ca_file: x.pem}",
            "store.region.ca_file has no effect with `store.region.kind: zookeeper`; it is for etcd",
        ),
        (
            "{name: eu, max: 3, kind: etcd, url: 'https://e', key_file: x.pem}",
            "store.region.key_file has no effect without store.region.cert_file; write both, or neither",
        ),
    ] {
        let told = of(region).unwrap_err();
        assert!(told.starts_with(said), "{region}: {told}");
    }
    let other = parse(
        "{kind: etcd, url: 'http://a', nodes: 2, region: {name: eu, max: 3, kind: etcd, url: 'http://e'}}",
    );
    assert_eq!(other.unwrap_err(), "store.region has no effect with `store.kind: etcd`; it is for redis");
}

/// Limits that the engine of a region decides must be divided, so those that cannot be divided are refused.
#[test]
fn a_region_has_limits_that_can_be_divided() {
    let of = |policy: &str| {
        let text = format!(
            "version: 1\nstore: {{kind: redis, url: 'redis://a', nodes: 2, region: {{name: eu, max: 3, kind: etcd, url: 'http://e'}}}}\n\
             policies:\n  - {{name: all, by: [user.id], {policy}}}\n"
        );
        match Config::parse(&text, "f", Format::Yaml) {
            Ok((_, warnings)) => {
                warnings.iter().map(|said| said.message.clone()).collect::<Vec<_>>().join("; ")
            }
            Err(mistakes) => mistakes.iter().map(|said| said.message.clone()).collect::<Vec<_>>().join("; "),
        }
    };
    for policy in [
        "limit: {rate: 100/s}",
        "share: central, limit: {rate: 100/s}",
        "share: local, limit: {algorithm: fixed-window, rate: 6/day, calendar: UTC}",
    ] {
        assert_eq!(of(policy), "", "{policy}");
    }
    for (policy, said) in [
        (
            "share: split, limit: {rate: 100/s}",
            "split divides a limit among nodes, and store.region among regions",
        ),
        (
            "limit: {algorithm: fixed-window, rate: 6/day, calendar: UTC}",
            "its windows are those of the calendar",
        ),
        ("limit: {rate: 50/s}", "less than one unit of"),
    ] {
        assert!(of(policy).contains(said), "{policy}: {}", of(policy));
    }
}
