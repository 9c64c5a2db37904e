//! Warns of what a file says and probably does not mean: names, limits and networks that are right by themselves.
//! Nothing here refuses a file.
//!
//! Limits and conditions by themselves are judged where they are built.

mod costs;
mod duplicates;
mod near_names;
mod patterns;

use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv6Net};

use self::costs::UsageNames;
use self::duplicates::Alike;
use super::diagnostic::Findings;
use super::node::{Node, Value};
use super::policies::BuiltPolicy;
use super::server::Address;
use super::shape::{network, subject};
use tidegate_gate::policy::{AccessEntry, ClientIp, Limit, Mode};

/// Warns about a file, once, after everything that may refuse it; `built` are the policies that could be built.
pub(super) fn lint(file: &Node, built: &[BuiltPolicy<'_>], findings: &mut Findings) {
    let mut usage_names = UsageNames::default();
    let mut alike = Alike::default();
    for (nth, one) in built.iter().enumerate() {
        findings.subject = subject(one.node, one.at);
        costs::check(one, findings);
        check_unlimited(one, findings);
        usage_names.add(one, findings);
        alike.add(&built[..nth], one, &findings.subject);
    }
    alike.tell(findings);
    findings.subject.clear();
    patterns::check(file, findings);
    near_names::check(file, findings);
    check_networks(file, findings);
    costs::check_lives(file, findings);
}

/// Warns of a policy that limits nothing. For Envoy's calls such a policy says that their values are known.
fn check_unlimited(built: &BuiltPolicy<'_>, findings: &mut Findings) {
    let BuiltPolicy { policy, node, .. } = built;
    let is_unlimited = policy.limits.iter().flat_map(Limit::all_terms).all(|terms| terms.quota.is_none());
    let refuses = !policy.access.deny.is_empty() || policy.deadline.is_some();
    if is_unlimited
        && !refuses
        && policy.shadow_limit.is_none()
        && policy.mode != Mode::Off
        && !is_of_envoy(node)
        && let Some((key, _)) = node.entry("limit")
    {
        findings.warn(
            key.spot,
            "limits nothing, since its rate is unlimited, and exempts from nothing; write access.allow, or not under match, in the \
             policies that are to spare these requests",
        );
    }
}

/// Reports whether a policy matches Envoy's calls alone, which say the caller's address themselves.
fn is_of_envoy(policy: &Node) -> bool {
    let asked = policy.get("match").and_then(|matching| matching.get("attributes"));
    let mut asked = asked.map_or(&[][..], Node::entries).iter();
    asked.any(|(name, want)| name.text.starts_with("rls.") && want.value != Value::Bool(false))
}

/// Warns of networks and addresses that do something else than they say: proxies and allow-lists that are everybody,
/// keys that all callers behind a proxy share, overrides of single addresses whose counter is that of a network, and
/// two doors at one address.
fn check_networks(file: &Node, findings: &mut Findings) {
    let client_ip = file.get("client_ip");
    let proxies = client_ip.and_then(|section| section.get("trusted_proxies"));
    for node in proxies.map_or(&[][..], Node::each) {
        if let Some(network) = node.text().and_then(network).filter(is_everybody) {
            findings.warn(
                node.spot,
                format_args!(
                    "client_ip.trusted_proxies: whoever calls from {network} chooses its own address in the header, and so its own limit; \
                     name the network of your proxies alone, as 10.0.0.0/8"
                ),
            );
        }
    }
    if findings.served && proxies.is_none() {
        keyed(file, findings);
    }
    doors(file, findings);
    allowed(file, findings);
    let stated = client_ip.and_then(|section| section.get("ipv6_prefix")?.text()?.parse().ok());
    let length = stated.unwrap_or(ClientIp::default().ipv6_prefix);
    for (at, policy) in file.each_of("policies").iter().enumerate() {
        findings.subject = subject(policy, at);
        allowed(policy, findings);
        findings.subject.clear();
        let limits = policy.each_of("limit");
        let keys =
            limits.iter().flat_map(|limit| limit.each_of("overrides")).filter_map(|one| one.get("key"));
        for value in keys.filter_map(|key| key.get("client.ip")) {
            let Some(Ok(address)) = value.text().map(str::parse::<Ipv6Addr>) else { continue };
            let Ok(shared) = Ipv6Net::new(address, length).map(|network| network.trunc()) else { continue };
            if length < 128 && address.to_ipv4_mapped().is_none() {
                findings.subject = subject(policy, at);
                findings.warn(
                    value.spot,
                    format_args!(
                        "override.key: {address} shares its counter with all of {shared}, which has another rate; write \
                         access: {{ allow: [{shared}] }} to exempt that network, or client_ip: {{ ipv6_prefix: 128 }} for a counter of each address"
                    ),
                );
                findings.subject.clear();
            }
        }
    }
}

/// Warns of policies by the caller's address where no proxy is trusted: behind one, that is the address of the proxy.
fn keyed(file: &Node, findings: &mut Findings) {
    for (at, policy) in file.each_of("policies").iter().enumerate() {
        let Some((by, names)) = policy.entry("by") else { continue };
        if !is_of_envoy(policy) && names.each().iter().any(|name| name.text() == Some("client.ip")) {
            let policy = subject(policy, at);
            let policy = policy.trim_end_matches(": ");
            findings.warn(
                by.spot,
                format_args!("{policy} is keyed by client.ip but client_ip.trusted_proxies is empty: behind a proxy all callers share one key"),
            );
        }
    }
}

fn allowed(of: &Node, findings: &mut Findings) {
    let list = of.get("access").and_then(|access| access.get("allow"));
    for node in list.map_or(&[][..], Node::each) {
        if let Some(Ok(AccessEntry::Network(network))) = node.text().map(str::parse)
            && is_everybody(&network)
        {
            findings.warn(
                node.spot,
                format_args!(
                    "access.allow: whoever calls from {network} is exempt, so next to nobody is limited; \
                     name the network of your own callers alone, as 10.0.0.0/8"
                ),
            );
        }
    }
}

/// Warns of doors at the same address, of which only one can open.
fn doors(file: &Node, findings: &mut Findings) {
    let Some(server) = file.get("server") else { return };
    let mut open: Vec<(&str, Address)> = Vec::new();
    for door in ["http", "admin", "grpc", "resp"] {
        let Some(node) = server.get(door) else { continue };
        let Some(Ok(address)) = node.text().map(str::parse::<Address>) else { continue };
        if address.tcp().is_some_and(|addr| addr.port() == 0) {
            continue;
        }
        if let Some((other, _)) = open.iter().find(|(_, other)| *other == address) {
            let instead =
                if door == "admin" { "; leave admin out to answer operators there too" } else { "" };
            findings.warn(
                node.spot,
                format_args!("server.{door}: {address} is the address of {other} already{instead}"),
            );
        }
        open.push((door, address));
    }
}

/// Reports whether a network is more than anybody's own: shorter than /8, or /16 of IPv6, and not private.
fn is_everybody(network: &IpNet) -> bool {
    match network {
        IpNet::V4(network) => network.prefix_len() < 8,
        // fc00::/7 is private, and fe80::/10 this link.
        IpNet::V6(network) => {
            network.prefix_len() < 16 && !matches!(network.addr().segments()[0] & 0xff00, 0xfc00..=0xfe00)
        }
    }
}
