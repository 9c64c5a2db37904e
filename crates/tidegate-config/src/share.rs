//! Reads and checks `share`: where a policy is decided if several nodes enforce it.
//!
//! The grammar accepts every word; which words can be honoured depends on the store. A store inside this process can
//! only decide `local`, and a file that says otherwise is refused: counters that are not shared, contrary to the
//! author's belief, would silently let through a multiple of the limit.
//!
//! `split` divides limits among nodes, and some limits cannot be divided. Those are refused here, since otherwise they
//! would refuse every request. The same holds for `store.region`, which divides all limits that the engine decides
//! among regions.

use std::time::Duration;

use tidegate_core::{Quota, Replace, Tick};

use super::diagnostic::Findings;
use super::keys::SHARES;
use super::node::Node;
use super::store;
use tidegate_cluster::Part;
use tidegate_cluster::shares::Division;
use tidegate_gate::policy::{Limit, Policy, Share, whole_number};
use tidegate_limits::store::Durable;

/// Reads the word of a policy, or else of `defaults`; `None`: neither sets one, and the store decides.
pub(super) fn share(node: &Node, defaults: Option<&Node>) -> Option<Share> {
    let word = node.get("share").or_else(|| defaults?.get("share"))?.text()?;
    Share::ALL.into_iter().find(|share| share.word() == word)
}

/// Refuses a word of a policy or of `defaults` that the configured store cannot honour.
///
/// `key` is the name of the key in messages: `share` or `defaults.share`.
pub(super) fn check(node: Option<&Node>, key: &str, file: &Node, findings: &mut Findings) {
    let kind = store::kind(file);
    let Some(said) = node.and_then(|node| node.get("share")) else { return };
    let Some(word) = said.text().filter(|word| SHARES.contains(word)) else { return };
    if word != Share::Local.word() && store::is_own(file) {
        findings.error(
            said.spot,
            format_args!(
                "{key}: {word} needs a store that several nodes have in common, and `store.kind: {kind}` is this process's own; \
                 write share: local, or leave it out"
            ),
        );
    }
    if word == Share::Split.word() && region(file).is_some() {
        findings.error(
            said.spot,
            format_args!(
                "{key}: split divides a limit among nodes, and store.region among regions; write share: leased or central, or leave out \
                 store.region"
            ),
        );
    }
}

/// Checks that the limits that a region's engine decides can be divided among regions.
pub(super) fn check_regional(policy: &Policy, node: &Node, file: &Node, findings: &mut Findings) {
    let Some(region) =
        region(file).filter(|_| matches!(policy.share, None | Some(Share::Leased | Share::Central)))
    else {
        return;
    };
    let most = region.text_of("max").and_then(|text| whole_number(text).ok()).unwrap_or(1);
    let own = Division::among(most).permanent_part();
    let spot = node.get("share").map_or(node.spot, |said| said.spot);
    for terms in policy.deciding_limits().flat_map(Limit::all_terms) {
        // Breakers and adaptive limits are not divided: each region has its own.
        let Some(quota) = terms.quota.as_ref().filter(|quota| !is_each_nodes(quota)) else { continue };
        let Some(fills) = quota.fills_within() else {
            let why = match &**quota {
                Quota::Concurrency(_) => "its places never lapse; give them a ttl",
                Quota::FixedWindow(_) => {
                    "its windows are those of the calendar; write share: local, or windows that roll"
                }
                _ => "no part of it is a limit of the same kind; write share: local",
            };
            findings
                .error(spot, format_args!("store.region cannot divide {} among regions: {why}", terms.label));
            return;
        };
        if quota.divided(own, Part::WHOLE).is_none() {
            let parts = Part::WHOLE.div_ceil(own.max(1));
            findings.warn(
                spot,
                format_args!(
                    "store.region leaves less than one unit of {} to a region that cannot agree with the others, and for {fills:?} to one whose \
                     nodes have just started: it then refuses every request; allow at least {parts} at once",
                    terms.label
                ),
            );
            return;
        }
    }
}

/// Returns the section `store.region`, if the kind of store has regions.
fn region(file: &Node) -> Option<&Node> {
    file.get("store")?.get("region").filter(|_| store::has(store::kind(file), "region"))
}

/// Checks that the limits of a policy with `share: split` can be divided.
///
/// Breakers and adaptive limits belong to each node: if `split` comes from `defaults`, such a policy is decided
/// locally.
pub(super) fn check_split(policy: &mut Policy, node: &Node, file: &Node, findings: &mut Findings) {
    if policy.share != Some(Share::Split) || store::is_own(file) {
        return;
    }
    let said = node.get("share");
    if said.is_none()
        && policy.limits.iter().all(|limit| limit.terms.quota.as_deref().is_some_and(is_each_nodes))
    {
        policy.share = Some(Share::Local);
        return;
    }
    let (key, spot) = match said {
        Some(said) => ("share", said.spot),
        None => ("defaults.share", node.spot),
    };
    for terms in policy.deciding_limits().flat_map(Limit::all_terms) {
        let Some(quota) = &terms.quota else { continue };
        if let Err(why) = divides(quota) {
            findings.error(spot, format_args!("{key}: split cannot divide {}: {why}", terms.label));
            return;
        }
    }
    let scarce = policy.deciding_limits().flat_map(Limit::all_terms).find_map(|terms| {
        let quota = terms.quota.as_ref()?;
        quota.divided(least_part(file), Part::WHOLE).is_none().then_some((terms, quota))
    });
    if let Some((terms, quota)) = scarce {
        let (nodes, parts) = (nodes(file), Part::WHOLE.div_ceil(least_part(file).max(1)));
        let when = if agrees(file) {
            let filled = quota.fills_within().unwrap_or(Duration::ZERO);
            format!("for the first {filled:?} and while the engine is gone")
        } else {
            "always".to_owned()
        };
        findings.warn(
            spot,
            format_args!(
                "{key}: split leaves each of {nodes} nodes less than one unit of {}, {when}, and then it refuses every request; \
                 allow at least {parts} at once, or write share: leased",
                terms.label
            ),
        );
    }
    if policy.deciding_limits().any(|limit| limit.replace == Replace::Reset) {
        findings.warn(
            spot,
            format_args!(
                "{key}: split keeps what was spent when a limit changes, and replace: reset has no effect; write replace: as-is"
            ),
        );
    }
}

/// Reports whether a limit depends on how calls end (a breaker or an adaptive limit), which each node observes for
/// itself.
fn is_each_nodes(quota: &Quota) -> bool {
    quota.is_guard() && !matches!(quota, Quota::Concurrency(_))
}

/// Returns `Ok` if a limit can be divided among nodes, otherwise the reason and what to write instead.
fn divides(quota: &Quota) -> Result<(), &'static str> {
    if quota.fills_within().is_some() {
        return Ok(());
    }
    Err(match quota {
        Quota::Concurrency(_) => "its places never lapse; give them a ttl, or write share: central",
        Quota::FixedWindow(_) => "its windows are those of the calendar; write share: leased",
        quota if is_each_nodes(quota) => "each node has its own; write share: local",
        _ => "no part of it is a limit of the same kind; write share: leased",
    })
}

/// Returns the number of nodes that share the engine, as the file states it.
fn nodes(file: &Node) -> u64 {
    let said = file.get("store").and_then(|store| store.get("nodes")).and_then(Node::text);
    said.and_then(|text| whole_number(text).ok()).unwrap_or(1)
}

/// Reports whether nodes agree on their parts, through an engine that tells which nodes are present.
fn agrees(file: &Node) -> bool {
    matches!(store::kind(file), "etcd" | "zookeeper")
}

/// Returns the smallest part of a limit that each node has, out of [`Part::WHOLE`].
fn least_part(file: &Node) -> u32 {
    let nodes = nodes(file);
    if agrees(file) { Division::among(nodes).permanent_part() } else { Part::even(nodes).at(Tick::EPOCH) }
}

// Reads and checks `durable`: when the changes that a request makes are on disk.
//
// A store in memory has no disk, and an engine has its own settings for durability. `strict` is refused for both,
// since its author would wrongly believe that no answer is given before the change is on disk.

const STRICT: &str = "strict";

/// The kind of store with a disk of its own.
const DISK: &str = "disk";

/// Reads the word of a policy, or else of `defaults`.
pub(super) fn durable(node: &Node, defaults: Option<&Node>) -> Durable {
    let word = node.get("durable").or_else(|| defaults?.get("durable")).and_then(Node::text);
    if word == Some(STRICT) { Durable::Strict } else { Durable::Interval }
}

/// Refuses a word of a policy or of `defaults` that the configured store cannot guarantee.
///
/// `key` is the name of the key in messages: `durable` or `defaults.durable`.
pub(super) fn check_durable(node: Option<&Node>, key: &str, file: &Node, findings: &mut Findings) {
    let kind = store::kind(file);
    let Some(said) = node.and_then(|node| node.get("durable")) else { return };
    if said.text() != Some(STRICT) {
        return;
    }
    let stated = file.get("store").is_some_and(|store| store.get("kind").is_some());
    if kind == DISK && !stated {
        // If the file does not set `store.kind`, counters are kept in memory when there is no folder for them.
        findings.error(
            said.spot,
            format_args!("{key}: {STRICT} needs a store that is on disk for certain; write store.kind: disk"),
        );
    }
    if kind != DISK {
        findings.error(
            said.spot,
            format_args!(
                "{key}: {STRICT} needs a store on disk, and `store.kind: {kind}` is none; \
                 write durable: interval, or leave it out"
            ),
        );
    }
}
