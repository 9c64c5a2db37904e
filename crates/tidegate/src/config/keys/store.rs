//! The keys of `store`: where counters are stored.

use crate::config::kind::{Kind, Table, key};

/// The words of `store.kind`. The first is the default; those of this process come before those of engines.
pub(in crate::config) const KINDS: &[&str] = &["disk", "memory", "redis", "etcd", "zookeeper"];

/// How many of [`KINDS`] belong to this process alone.
pub(in crate::config) const OWN: usize = 2;

/// The words of `store.region.kind`.
pub(in crate::config) const AGREE_THROUGH: &[&str] = &["etcd", "zookeeper"];

/// The default prefix of the keys in that engine. It differs from the prefix of an engine of one region, which other
/// nodes share.
pub(in crate::config) const REGIONS_PREFIX: &str = "tg-regions";

const REGION: Table = Table {
    name: "store.region",
    keys: &[
        key("name", Kind::Name, None, "Its name, the same on all its nodes and on no others"),
        key(
            "most",
            Kind::Whole(1, 1 << 15),
            None,
            "How many regions there are at most; a 32nd of each limit, divided by it, is always each region's own",
        ),
        key(
            "kind",
            Kind::Word(AGREE_THROUGH, &[]),
            None,
            "Through which engine the nodes of all regions agree which region has how much",
        ),
        key("url", Kind::OneOrMany(&Kind::Text), None, "That engine's addresses, as http://10.0.0.7:2379"),
        key("user", Kind::Text, None, "The user as whom it is asked; with password_file"),
        key("password_file", Kind::Text, None, "The file with the password for it"),
        key(
            "ca_file",
            Kind::Text,
            None,
            "https://: the file with the certificates by which it is known; those of the system unless given",
        ),
        key(
            "cert_file",
            Kind::Text,
            None,
            "https://: the file with the certificate that it is shown; with key_file",
        ),
        key("key_file", Kind::Text, None, "The file with the private key of that certificate"),
        key(
            "prefix",
            Kind::Name,
            Some(REGIONS_PREFIX),
            "What its keys begin with; the nodes of all regions have the same one",
        ),
    ],
    required: &["name", "most", "kind", "url"],
};

pub(super) const STORE: Table = Table {
    name: "store",
    keys: &[
        key("kind", Kind::Word(KINDS, &[]), Some("disk"), "Where counters live"),
        key(
            "keys",
            Kind::Whole(1, 1 << 32),
            Some("1000000"),
            "How many keys this process holds at most; the nearest to full is given up for a new one",
        ),
        key(
            "key_form",
            Kind::Word(&["fingerprint", "full"], &[]),
            Some("fingerprint"),
            "What is kept of a key: a fingerprint, in 24 bytes a key; or the key, in 48",
        ),
        key(
            "path",
            Kind::Text,
            None,
            "disk: the folder of the counters; the system's folder for state, and in it one of the port, unless given",
        ),
        key("flush", Kind::Span, Some("200ms"), "disk: how often what has changed is written, 10ms to 10s"),
        key(
            "url",
            Kind::OneOrMany(&Kind::Text),
            None,
            "redis, etcd, zookeeper: the engine's addresses, as redis://10.0.0.5:6379",
        ),
        key(
            "topology",
            Kind::Word(&["single", "cluster", "sentinel"], &[]),
            Some("single"),
            "redis: what stands at the addresses",
        ),
        key("master", Kind::Name, None, "redis with topology: sentinel: the name of the set of servers"),
        key("user", Kind::Text, None, "The user as whom the engine is asked; with password_file"),
        key("password_file", Kind::Text, None, "The file with the password for the engine"),
        key(
            "ca_file",
            Kind::Text,
            None,
            "rediss://, https://: the file with the certificates by which the engine is known; those of the system unless given",
        ),
        key(
            "cert_file",
            Kind::Text,
            None,
            "rediss://, https://: the file with the certificate that the engine is shown; with key_file",
        ),
        key("key_file", Kind::Text, None, "The file with the private key of that certificate"),
        key(
            "prefix",
            Kind::Name,
            Some("tg"),
            "What the engine's keys begin with; nodes that share limits have the same one",
        ),
        key(
            "nodes",
            Kind::Whole(1, 1 << 16),
            None,
            "redis, etcd, zookeeper: the most nodes that share the engine; each grants one part in so many of a limit while the engine is gone, and on redis of one with share: split",
        ),
        key(
            "deadline",
            Kind::Span,
            Some("250ms"),
            "How long the engine has to answer before on_store_error decides, 1ms to 60s",
        ),
        key(
            "after_loss",
            Kind::Word(&["empty", "half", "full"], &[]),
            Some("half"),
            "redis: how full limits start when the engine has lost what was spent: after a failover, a flush, a restart",
        ),
        key(
            "policies",
            Kind::Word(&["file", "cluster"], &[]),
            Some("file"),
            "etcd, zookeeper: whose policies hold: this file's, or those that were put for all nodes (tidegate policies put) once there are some",
        ),
        key(
            "region",
            Kind::Table(&REGION),
            None,
            "redis: the region whose engine this is, where several regions with an engine each divide the limits; one region unless given",
        ),
    ],
    required: &[],
};
