//! Warns of costs from what requests probably lack, and of settling that does not fit the rest of the file: names of
//! usage that differ from other policies', and places that outlive their tickets.

use std::collections::HashSet;

use tidegate_core::spelling::{is_slip, nearest};

use super::near_names;
use crate::diagnostic::Findings;
use crate::keys::{ADAPTIVE, BREAKER, CONCURRENCY, PLACE_TTL, TICKET_TTL};
use crate::names;
use crate::node::{Node, Spot};
use crate::policies::BuiltPolicy;
#[cfg(feature = "cel")]
use crate::sample_costs;
#[cfg(feature = "cel")]
use tidegate_gate::policy::SettleBy;
use tidegate_gate::policy::{CostRule, LLM_USAGE};
use tidegate_gate::policy::{SettleRule, span};
use tidegate_limits::visible::excerpt;

#[cfg(feature = "cel")]
const ALWAYS: [&str; 4] = ["request.method", "request.path", "request.host", "client.ip"];

const MOST_TOLD: usize = 4;

pub(super) fn check(built: &BuiltPolicy<'_>, findings: &mut Findings) {
    let BuiltPolicy { policy, node, .. } = built;
    let Some(cost) = node.get("cost") else { return };
    let (charged, key) = match cost.get("estimate") {
        Some(estimate) => (estimate, "cost.estimate"),
        None => (cost, "cost"),
    };
    match &policy.cost {
        Some(CostRule::Attribute(name)) if names::attribute(name).is_ok() => {
            near_names::in_cost(charged.spot, key, name, findings);
        }
        #[cfg(feature = "cel")]
        Some(CostRule::Expression(expression)) => {
            for name in expression.names().filter(|name| names::attribute_of_expression(name).is_ok()) {
                near_names::in_cost(charged.spot, key, name, findings);
            }
            tell_comparisons(expression.source(), charged, key, findings);
        }
        _ => {}
    }
    #[cfg(feature = "cel")]
    if let Some(SettleRule { by: SettleBy::Expression(expression), .. }) = &policy.settle
        && let Some(settle) = cost.get("settle")
    {
        tell_comparisons(expression.source(), settle, "cost.settle", findings);
    }
    if let Some(rule) = policy.cost.as_ref().filter(|rule| rule.may_be_unknown())
        && node.entry("on_cost_error").is_none()
    {
        tell_unknown(rule, charged, findings);
    }
}

#[cfg(feature = "cel")]
fn tell_comparisons(expression: &str, node: &Node, key: &str, findings: &mut Findings) {
    for remark in comparisons::remarks(expression) {
        findings.warn(node.spot, format_args!("{key}: {remark}"));
    }
}

fn tell_unknown(rule: &CostRule, node: &Node, findings: &mut Findings) {
    if !findings.served || findings.is_full() {
        return;
    }
    let names = without(rule, findings);
    let shown = match names.as_slice() {
        [] => return,
        names if names.len() > MOST_TOLD => format!("{} and others", names[..MOST_TOLD].join(", ")),
        names => names.join(" or "),
    };
    let instead = match rule {
        CostRule::Attribute(_) => String::new(),
        _ => format!(", or ask has({}) in the expression", names[0]),
    };
    findings.warn(
        node.spot,
        format_args!(
            "cost: a request without {shown}, or with another value than the cost needs, is refused; write \
             on_cost_error: deny if that is meant, else on_cost_error: whole-limit{instead}"
        ),
    );
}

/// Returns the attributes without which, or without a number in which, a cost cannot be worked out.
fn without(rule: &CostRule, findings: &mut Findings) -> Vec<String> {
    match rule {
        CostRule::Attribute(name) => vec![name.clone()],
        #[cfg(feature = "cel")]
        CostRule::Expression(expression) => {
            let names = sample_costs::fails_without(expression, &mut findings.samples);
            names.into_iter().filter(|name| !ALWAYS.contains(name)).map(str::to_owned).collect()
        }
        _ => {
            let _ = findings;
            Vec::new()
        }
    }
}

#[derive(Default)]
pub(super) struct UsageNames {
    all: HashSet<String>,
    compared: Vec<(String, String)>,
}

/// The most names that a name is compared with: all pairs of a file full of names would take too long.
const COMPARED: usize = 100;

/// The shortest name that may be reported as a typing error: `gpu.s` and `gpu.ms` are both accepted.
const SHORTEST: usize = 8;

impl UsageNames {
    /// Adds the names that a policy settles by. Warns of names that are probably typing errors of others.
    pub(super) fn add(&mut self, built: &BuiltPolicy<'_>, findings: &mut Findings) {
        let BuiltPolicy { policy, node, .. } = built;
        let Some(rule) = &policy.settle else { return };
        let spot =
            node.get("cost").and_then(|cost| cost.get("settle")).map_or(node.spot, |settle| settle.spot);
        for name in rule.by.names() {
            if LLM_USAGE.contains(&name) || !self.all.insert(name.to_owned()) {
                continue;
            }
            if let Some(known) = slip_of(name, LLM_USAGE.into_iter()) {
                let name = excerpt(name);
                findings.warn(
                    spot,
                    format_args!("cost.settle: {name} differs by one letter from a value of language-model calls; did you mean {known}?"),
                );
            } else if let Some(known) = slip_of(name, self.compared.iter().map(|(name, _)| name.as_str()))
                && let Some((_, owner)) = self.compared.iter().find(|(name, _)| name == known)
            {
                let (name, known, owner) = (excerpt(name), excerpt(known), excerpt(owner));
                findings.warn(
                    spot,
                    format_args!("cost.settle: {name} differs by a letter from {known}, which policy \"{owner}\" settles by; is one of them meant?"),
                );
            }
            if self.compared.len() < COMPARED {
                self.compared.push((name.to_owned(), policy.name.clone()));
            }
        }
    }
}

/// Returns the known name of which `name` is probably a typing error: a letter missing or doubled, or two neighbours
/// swapped. A substituted letter, as in `cpu.seconds` and `gpu.seconds`, is accepted.
fn slip_of<'w>(name: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let found = nearest(name, known).filter(|_| name.len() >= SHORTEST)?;
    let is_meant = is_slip(name, found) && (name.len() != found.len() || sorted(name) == sorted(found));
    is_meant.then_some(found)
}

pub(super) fn check_lives(file: &Node, findings: &mut Findings) {
    let stated = file.get("tickets").and_then(|tickets| tickets.get("ttl"));
    let tickets = stated.and_then(Node::text).unwrap_or(TICKET_TTL);
    let Ok(life) = span(tickets) else { return };
    for policy in file.each_of("policies") {
        let limits = policy.each_of("limit");
        for limit in limits
            .iter()
            .filter(|limit| matches!(limit.text_of("algorithm"), Some(CONCURRENCY | BREAKER | ADAPTIVE)))
        {
            let held = limit.text_of("ttl").unwrap_or(PLACE_TTL);
            if span(held).is_ok_and(|held| held > life) {
                let spot = |node: Option<&Node>| node.map(|node| node.spot);
                let spot: Spot = spot(limit.get("ttl")).or(spot(stated)).unwrap_or(limit.spot);
                let name = excerpt(policy.text_of("name").unwrap_or_default()).to_string();
                findings.warn(
                    spot,
                    format_args!(
                        "policy \"{name}\": a place is held for up to {}, and tickets.ttl is {}: a ticket that has expired returns no place",
                        held.trim(),
                        tickets.trim()
                    ),
                );
            }
        }
    }
}

/// Warns of comparisons in expressions that never hold, or hold by the letters of a number.
#[cfg(feature = "cel")]
mod comparisons {
    use std::net::IpAddr;

    use ipnet::IpNet;

    use crate::names::METHODS;
    use tidegate_limits::visible::excerpt;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Word<'s> {
        Name(&'s str),
        Text(&'s str),
        Sign(&'s str),
    }

    const SIGNS: [&str; 10] = ["==", "!=", "<=", ">=", "&&", "||", "<", ">", "=", "["];

    /// Returns what is wrong with comparisons, each as a sentence, in linear time.
    pub(super) fn remarks(source: &str) -> Vec<String> {
        let words = words(source);
        let mut told = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let Word::Name(name) = word else { continue };
            let after = words.get(at + 1..).unwrap_or_default();
            // The values on the right, or the one on the left.
            let (sign, texts): (&str, Vec<&str>) = match after {
                [Word::Sign(sign), Word::Text(text), ..] => (sign, vec![text]),
                [Word::Name("in"), Word::Sign("["), list @ ..] => {
                    let text = |word: &Word<'_>| matches!(word, Word::Text(_));
                    let texts = list.iter().take_while(|word| text(word));
                    (
                        "in",
                        texts
                            .filter_map(|word| if let Word::Text(text) = word { Some(*text) } else { None })
                            .collect(),
                    )
                }
                _ => match at.checked_sub(2).map(|first| (words[first], words[first + 1])) {
                    Some((Word::Text(text), Word::Sign(sign))) => (sign, vec![text]),
                    _ => continue,
                },
            };
            told.extend(texts.into_iter().filter_map(|text| remark(name, sign, text)));
        }
        told
    }

    fn remark(name: &str, sign: &str, text: &str) -> Option<String> {
        let (shown, is_equal) = (excerpt(text), matches!(sign, "==" | "!=" | "in"));
        match name {
            "request.method" if is_equal => {
                let known =
                    METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(text) && *known != text)?;
                Some(format!(
                    "no request has the method \"{shown}\": methods are upper case; write \"{known}\""
                ))
            }
            "client.ip" if is_equal => {
                let network: IpNet = text.parse().ok()?;
                let begin = match network.addr() {
                    IpAddr::V4(address) => {
                        let bytes: Vec<_> = address.octets().iter().map(ToString::to_string).collect();
                        let whole = usize::from(network.prefix_len() / 8).clamp(1, 4);
                        format!("{}.", bytes[..whole].join("."))
                    }
                    IpAddr::V6(address) => address.to_string().trim_end_matches(':').to_owned() + ":",
                };
                Some(format!(
                    "no address is \"{shown}\", which is a network and compared as text; write client.ip.startsWith(\"{begin}\")"
                ))
            }
            name if matches!(sign, "<" | ">" | "<=" | ">=") && text.trim().parse::<f64>().is_ok() => {
                Some(format!(
                    "{name} is compared with the text \"{shown}\" letter by letter, so that 9 is above 100; write the number without quotes, {}",
                    excerpt(text.trim())
                ))
            }
            _ => None,
        }
    }

    /// Cuts an expression into names, texts and comparisons.
    fn words(source: &str) -> Vec<Word<'_>> {
        let mut found = Vec::new();
        let mut rest = source;
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '"' | '\'' => {
                    let inner = &rest[1..];
                    let end = inner.find(first).unwrap_or(inner.len());
                    found.push(Word::Text(&inner[..end]));
                    (end + 2).min(rest.len())
                }
                _ if first.is_ascii_alphabetic() || first == '_' => {
                    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
                    let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                    found.push(Word::Name(&rest[..end]));
                    end
                }
                _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                    Some(sign) => {
                        found.push(Word::Sign(sign));
                        sign.len()
                    }
                    None => {
                        // Anything else stands between, except what separates the values of a list.
                        if !first.is_whitespace() && first != ',' {
                            found.push(Word::Sign(""));
                        }
                        first.len_utf8()
                    }
                },
            };
            rest = &rest[length..];
        }
        found
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn comparisons_that_never_hold_are_told() {
            for (source, says) in [
                ("request.method == \"post\" ? 5 : 1", "write \"POST\""),
                ("'get' != request.method ? 5 : 1", "write \"GET\""),
                ("request.method in [\"GET\", \"put\"] ? 5 : 1", "write \"PUT\""),
                ("client.ip == \"10.0.0.0/8\" ? 1 : 9", "write client.ip.startsWith(\"10.\")"),
                ("client.ip == \"2001:db8::/32\" ? 1 : 9", "write client.ip.startsWith(\"2001:db8:\")"),
                ("user.score > \"100\" ? 1 : 9", "write the number without quotes, 100"),
            ] {
                let told = remarks(source);
                assert!(told.len() == 1 && told[0].contains(says), "{source}: {told:?}");
            }
            for fine in [
                "request.method == \"POST\" ? 5 : 1",
                "client.ip == \"10.0.0.1\" ? 5 : 1",
                "user.name > \"m\" ? 1 : 2",
                "user.score > 100 ? 1 : 2",
                "request.path == \"post\" ? 1 : 2",
                "\"é",
                "",
            ] {
                assert_eq!(remarks(fine), [""; 0], "{fine}");
            }
        }
    }
}
