//! The keys of `store`: where counters are stored.

use crate::grammars::{KEYS_HELD, TOPOLOGY};
use crate::keys::{Kind, Table, key};

/// The words of `store.kind`. The first is the default; those of this process come before those of engines.
pub(crate) const KINDS: &[&str] = &["disk", "memory", "redis", "etcd", "zookeeper"];

/// How many of [`KINDS`] belong to this process alone.
pub(crate) const OWN: usize = 2;

/// The words of `store.region.kind`.
pub(crate) const AGREE_THROUGH: &[&str] = &["etcd", "zookeeper"];

/// The default prefix of the keys in that engine: another than that of an engine of one region, which other nodes
/// share.
pub(crate) const REGIONS_PREFIX: &str = "tg-regions";

const REGION: Table = Table {
    name: "store.region",
    keys: &[
        key(
            "name",
            Kind::Name,
            None,
            "The name of the region, the same on all its nodes and on no other node",
        ),
        key(
            "max",
            Kind::Whole(1, 1 << 15),
            None,
            "The largest number of regions; each region always keeps a 32nd of each limit, divided by this number",
        ),
        key(
            "kind",
            Kind::Word(AGREE_THROUGH, &[]),
            None,
            "The engine through which all regions agree on their parts of the limits",
        ),
        key(
            "url",
            Kind::OneOrMany(&Kind::Text),
            None,
            "The addresses of that engine, as http://10.0.0.7:2379",
        ),
        key("user", Kind::Text, None, "The user for that engine; with password_file"),
        key("password_file", Kind::Text, None, "The file with the password for that engine"),
        key(
            "ca_file",
            Kind::Text,
            None,
            "https://: the file with the authorities for checking its certificate; default: those of the system",
        ),
        key(
            "cert_file",
            Kind::Text,
            None,
            "https://: the file with the certificate to send to it; with key_file",
        ),
        key(
            "key_file",
            Kind::Text,
            None,
            "The file with the private key of that certificate, in PEM without a passphrase",
        ),
        key(
            "prefix",
            Kind::Name,
            Some(REGIONS_PREFIX),
            "The prefix of the keys in that engine, the same on the nodes of all regions",
        ),
    ],
    required: &["name", "max", "kind", "url"],
};

pub(super) const STORE: Table = Table {
    name: "store",
    keys: &[
        key(
            "kind",
            Kind::Word(KINDS, &[]),
            Some("disk"),
            "Where counters are stored: in this process, beyond a restart (disk) or not (memory), or in an engine that nodes share",
        ),
        key(
            "keys",
            Kind::Read(&KEYS_HELD),
            Some("1000000"),
            "The most keys held, allocated at the start, as fingerprints of 24 bytes a key (of a million, two are alike at odds of 1 in 50 million), or as 1000000 in full, 48 bytes a key, for keys that must never be taken for each other; when the store is full, a new key evicts, of the policy with the most keys, the one nearest to full",
        ),
        key(
            "path",
            Kind::Text,
            None,
            "disk: the folder of the counters, of one process; --store-path and TIDEGATE_STORE_PATH win; default: named after the address, in the first absolute of STATE_DIRECTORY, XDG_STATE_HOME/tidegate, ~/.local/state/tidegate",
        ),
        key(
            "url",
            Kind::OneOrMany(&Kind::Text),
            None,
            "redis, etcd, zookeeper, required: the addresses of the engine, as redis://10.0.0.5:6379 (rediss:// with TLS), http://HOST:2379 (or https://), zookeeper://HOST:2181; of one scheme; without a login, since it is shown",
        ),
        key(
            "topology",
            Kind::Read(&TOPOLOGY),
            Some("single"),
            "redis: the kind of servers at these addresses: single, cluster, or sentinel with the name of the master, as sentinel mymaster",
        ),
        key("user", Kind::Text, None, "The user for the engine; with password_file"),
        key(
            "password_file",
            Kind::Text,
            None,
            "The file with the password for the engine in its first line, read for each connection; on redis also without user, and with the login of sentinels in its second line, as user:password or :password",
        ),
        key(
            "ca_file",
            Kind::Text,
            None,
            "rediss://, https://: the file with the authorities for checking the engine's certificate; default: those of the system",
        ),
        key(
            "cert_file",
            Kind::Text,
            None,
            "rediss://, https://: the file with the certificate to send to the engine, which a Redis with TLS wants unless tls-auth-clients is no; with key_file",
        ),
        key(
            "key_file",
            Kind::Text,
            None,
            "The file with the private key of that certificate, in PEM without a passphrase",
        ),
        key(
            "prefix",
            Kind::Name,
            Some("tg"),
            "The prefix of the keys in the engine, the same on all nodes that share limits",
        ),
        key(
            "nodes",
            Kind::Whole(1, 1 << 15),
            None,
            "redis, etcd, zookeeper, required: the largest number of nodes that share the engine; while it is gone, each node grants a limit divided by this number, on redis with share: split always, and in leases; with region, its own nodes",
        ),
        key(
            "deadline",
            Kind::Span,
            Some("250ms"),
            "How long to wait for the engine before on_store_error decides, 1ms to 60s",
        ),
        key(
            "after_loss",
            Kind::Word(&["empty", "half", "full"], &[]),
            Some("half"),
            "redis: how full limits start after the engine has lost its counters, by a failover, a flush or a restart: empty for limits that guard secrets or money, full where no request may be refused for it; places and breakers start anew",
        ),
        key(
            "policies",
            Kind::Word(&["file", "cluster"], &[]),
            Some("file"),
            "etcd, zookeeper: which policies are used: those of this file, or those that were put for all nodes (tidegate policies put) once there are any",
        ),
        key(
            "region",
            Kind::Table(&REGION),
            None,
            "redis: the region of this engine, if several regions, each with its own engine, divide the limits; default: one region",
        ),
        key(
            "from",
            Kind::Text,
            None,
            "The policy file of a former store, whose counters are taken over, each at its first use",
        ),
    ],
    required: &[],
};
