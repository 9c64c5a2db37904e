//! Checks the keys of `store` against each other.

use std::time::Duration;

use tidegate_core::spelling::nearest;

use crate::diagnostic::Findings;
use crate::foreign_words::same_word;
use crate::keys::{AGREE_THROUGH, KINDS, OWN};
use crate::node::Node;
use tidegate_gate::policy::span;
use tidegate_limits::visible::excerpt;

/// The keys of `store` that apply to some kinds only, with those kinds.
const ONLY: [(&str, &[&str]); 14] = [
    ("path", &["disk"]),
    ("url", &["redis", "etcd", "zookeeper"]),
    ("topology", &["redis"]),
    ("user", &["redis", "etcd", "zookeeper"]),
    ("password_file", &["redis", "etcd", "zookeeper"]),
    ("ca_file", &["redis", "etcd"]),
    ("cert_file", &["redis", "etcd"]),
    ("key_file", &["redis", "etcd"]),
    ("prefix", &["redis", "etcd", "zookeeper"]),
    ("nodes", &["redis", "etcd", "zookeeper"]),
    ("deadline", &["redis", "etcd", "zookeeper"]),
    ("after_loss", &["redis"]),
    ("policies", &["etcd", "zookeeper"]),
    ("region", &["redis"]),
];

/// Reports whether a key of `store` applies to a kind of store.
pub(crate) fn has(kind: &str, key: &str) -> bool {
    ONLY.iter().find(|(name, _)| *name == key).is_none_or(|(_, kinds)| kinds.contains(&kind))
}

/// Returns the kind of store of a file: `store.kind` or the default; for a word that is none, the one that is meant, so that
/// its error is the only one.
pub(crate) fn kind(file: &Node) -> &str {
    let said = file.get("store").and_then(|store| store.get("kind")).and_then(Node::text);
    let meant = |word: &str| {
        let known = KINDS.iter().copied().find(|known| *known == word);
        known.or_else(|| same_word(word)).or_else(|| nearest(word, KINDS.iter().copied()))
    };
    said.and_then(meant).filter(|word| KINDS.contains(word)).unwrap_or(KINDS[0])
}

/// Reports whether the store of a file belongs to this process alone.
pub(crate) fn is_own(file: &Node) -> bool {
    KINDS[..OWN].contains(&kind(file))
}

/// Checks the keys of `store` against each other.
pub(crate) fn check(file: &Node, findings: &mut Findings) {
    let Some(node) = file.get("store") else { return };
    let kind = kind(file);
    for (key, kinds) in ONLY {
        if let Some(said) = node.get(key)
            && !kinds.contains(&kind)
        {
            let of = kinds.join(", ");
            findings.error(
                said.spot,
                format_args!("store.{key} has no effect with `store.kind: {kind}`; it is for {of}"),
            );
        }
    }
    if KINDS[..OWN].contains(&kind) {
        return;
    }
    within(node, "deadline", Duration::from_millis(1), Duration::from_secs(60), findings);
    check_addresses(node, "store", kind, findings);
    secrets(node, "store", kind, findings);
    if let Some(region) = node.get("region").filter(|_| has(kind, "region")) {
        check_region(region, findings);
    }
    if node.get("nodes").is_none() {
        findings.error(
            node.spot,
            format_args!(
                "`store.kind: {kind}` needs store.nodes, the largest number of nodes that share the engine: while the engine is gone, \
                 each node grants a limit divided by it"
            ),
        );
    }
}

fn within(node: &Node, key: &str, least: Duration, most: Duration, findings: &mut Findings) {
    let Some(said) = node.get(key) else { return };
    if let Some(Ok(read)) = said.text().map(span)
        && !(least..=most).contains(&read)
    {
        findings.error(
            said.spot,
            format_args!("store.{key}: {read:?} is out of range; use {least:?} to {most:?}"),
        );
    }
}

// Checks `store.url` and `store.region.url`, the addresses of an engine, and the credentials for it.

/// Checks the addresses of a section (`store` or `store.region`), each by itself and all together.
fn check_addresses(node: &Node, section: &str, kind: &str, findings: &mut Findings) {
    let urls = node.each_of("url");
    if urls.is_empty() {
        let example = schemes(kind)[0];
        findings.error(
            node.spot,
            format_args!(
                "`{section}.kind: {kind}` needs {section}.url, as {example}127.0.0.1:{}",
                port(kind)
            ),
        );
    }
    let mut wrong = false;
    for url in urls {
        let Some(text) = url.text() else { continue };
        if let Some(reason) = wrong_address(section, kind, text) {
            findings.error(url.spot, format_args!("{section}.url: {reason}"));
            wrong = true;
        }
    }
    if wrong {
        return;
    }
    let [Some(first), others @ ..] = &*urls.iter().map(Node::text).collect::<Vec<_>>() else { return };
    let (scheme, database) = (scheme(first), database(first));
    // Scheme and database must be the same for all: a password that goes to one address by TLS must not go to another
    // in plain text.
    for (other, url) in others.iter().zip(&urls[1..]).filter_map(|(text, url)| Some(((*text)?, url))) {
        if self::scheme(other) != scheme {
            findings.error(
                url.spot,
                format_args!(
                    "{section}.url: some addresses begin with {scheme} and some with {}; write one for all",
                    self::scheme(other)
                ),
            );
        } else if self::database(other) != database {
            findings.error(
                url.spot,
                format_args!("{section}.url: the addresses name different databases; write one for all"),
            );
        }
    }
    if kind == "redis"
        && node.text_of("topology").is_none_or(|word| word == "single")
        && let [_, second, ..] = urls
    {
        findings.error(
            second.spot,
            "store.url: several addresses are for `store.topology: cluster` or `sentinel`; write one address, or set the topology",
        );
    }
    for (key, said) in TLS_FILES.iter().filter_map(|key| Some((key, node.get(key)?))) {
        if matches!(scheme, "redis://" | "http://") {
            findings.error(
                said.spot,
                format_args!("{section}.{key} has no effect on addresses that begin with {scheme}; write {}, or leave it out", schemes(kind)[1]),
            );
        }
    }
}

/// The keys that concern TLS.
const TLS_FILES: [&str; 3] = ["ca_file", "cert_file", "key_file"];

/// Checks that a user comes with a password file, a password file with a user, and a certificate with its key.
fn secrets(node: &Node, section: &str, kind: &str, findings: &mut Findings) {
    for (key, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if let (Some(said), None) = (node.get(key), node.get(other)) {
            findings.error(
                said.spot,
                format_args!(
                    "{section}.{key} has no effect without {section}.{other}; write both, or neither"
                ),
            );
        }
    }
    match (node.get("user"), node.get("password_file")) {
        (Some(said), None) => findings.error(
            said.spot,
            format_args!("{section}.user has no effect without {section}.password_file; write both, or neither"),
        ),
        // Redis has a default user.
        (None, Some(said)) if kind != "redis" => findings.error(
            said.spot,
            format_args!(
                "{section}.password_file has no effect with `{section}.kind: {kind}` without {section}.user; write both, or neither"
            ),
        ),
        _ => {}
    }
}

/// Returns the scheme of an address, with `://`.
fn scheme(url: &str) -> &str {
    url.find("://").map_or(url, |at| &url[..at + 3])
}

/// Returns the database of an address: the text after the first slash behind the host, or "".
fn database(url: &str) -> &str {
    url[scheme(url).len()..].split_once('/').map_or("", |(_, database)| database)
}

const fn schemes(kind: &str) -> &'static [&'static str] {
    match kind.as_bytes() {
        b"redis" => &["redis://", "rediss://"],
        b"etcd" => &["http://", "https://"],
        _ => &["zookeeper://"],
    }
}

const fn port(kind: &str) -> u16 {
    match kind.as_bytes() {
        b"redis" => 6379,
        b"etcd" => 2379,
        _ => 2181,
    }
}

/// Returns why an address is not one of an engine. Quotes the address only if it holds no password.
fn wrong_address(section: &str, kind: &str, text: &str) -> Option<String> {
    let schemes = schemes(kind);
    let Some(rest) = schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) else {
        // The text before an @ may be a password.
        let shown = text.rsplit('@').next().unwrap_or(text);
        return Some(format!(
            "\"{}\" does not begin with {}; write {}HOST:{}",
            excerpt(shown),
            schemes.join(" or "),
            schemes[0],
            port(kind)
        ));
    };
    if rest.contains('@') {
        return Some(format!(
            "addresses are shown in logs, so they must not contain a user or a password; write {section}.user and {section}.password_file"
        ));
    }
    let host = rest.split('/').next().unwrap_or(rest);
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    if name.is_empty() {
        return Some(format!("\"{}\" names no host; write {}HOST:{}", excerpt(text), schemes[0], port(kind)));
    }
    if let Some((_, port)) = host.rsplit_once(':')
        && !host.ends_with(']')
        && port.parse::<u16>().is_err()
    {
        return Some(format!("\"{}\" has no port from 1 to 65535 after its colon", excerpt(text)));
    }
    None
}

// Checks `store.region` as a whole: the region of the store's engine, and the engine through which all regions agree.

/// Checks the keys of the section against each other.
fn check_region(node: &Node, findings: &mut Findings) {
    // A missing or unknown kind was reported already.
    let Some(kind) = node.text_of("kind").filter(|word| AGREE_THROUGH.contains(word)) else {
        return;
    };
    for (key, said) in TLS_FILES.iter().filter_map(|key| Some((key, node.get(key)?))) {
        if kind == "zookeeper" {
            findings.error(
                said.spot,
                format_args!(
                    "store.region.{key} has no effect with `store.region.kind: zookeeper`; it is for etcd"
                ),
            );
        }
    }
    if node.get("url").is_some() {
        check_addresses(node, "store.region", kind, findings);
    }
    secrets(node, "store.region", kind, findings);
}
