//! Describes in one line how policies differ from those before.

use tidegate::policy::{Canary, Limit, Mode, Over, Policy, PolicySet};
use tidegate::visible;

/// The most bytes of a description.
const LONGEST: usize = 500;

/// Returns which policies came (`+name`), went (`-name`), or changed (`name: what was -> what is`).
pub(super) fn between(before: &PolicySet, after: &PolicySet) -> String {
    let changed = after.policies().iter().filter_map(|policy| match before.find(&policy.name) {
        None => Some(format!("+{}", visible::name(&policy.name))),
        Some((_, old)) => {
            let changes = changes(old, policy);
            let name = || visible::name(&policy.name);
            (!changes.is_empty()).then(|| format!("{}: {}", name(), changes.join(", ")))
        }
    });
    let gone = before.policies().iter().filter(|policy| after.find(&policy.name).is_none());
    let gone = gone.map(|policy| format!("-{}", visible::name(&policy.name)));
    let parts: Vec<String> = changed.chain(gone).map(cut).collect();
    if parts.is_empty() {
        return "no policy changed".to_owned();
    }
    joined(&parts)
}

/// The most bytes about one policy.
const LONGEST_PART: usize = 240;

fn cut(mut part: String) -> String {
    if part.len() > LONGEST_PART {
        part.truncate(part.floor_char_boundary(LONGEST_PART));
        part.push('…');
    }
    part
}

/// Joins the parts that fit, and counts the others.
fn joined(parts: &[String]) -> String {
    let mut text = String::new();
    for (at, part) in parts.iter().enumerate() {
        let others = parts.len() - at;
        let more = format!("{}{others} more", if at == 0 { "" } else { "; " });
        let separator = if at == 0 { "" } else { "; " };
        // The words for the others must fit after every part but the last.
        let room = if others == 1 { 0 } else { more.len() + 2 };
        if text.len() + separator.len() + part.len() + room > LONGEST {
            return text + &more;
        }
        text += separator;
        text += part;
    }
    text
}

fn changes(old: &Policy, new: &Policy) -> Vec<String> {
    let mut told = Vec::new();
    if old.limits != new.limits {
        told.push(format!("limit {} -> {}", limits(&old.limits), limits(&new.limits)));
    }
    if old.shadow_limit != new.shadow_limit {
        let of = |policy: &Policy| policy.shadow_limit.as_ref().map_or_else(|| "none".to_owned(), limit);
        told.push(format!("shadow limit {} -> {}", of(old), of(new)));
    }
    if old.canary != new.canary {
        let of = |policy: &Policy| policy.canary.as_ref().map_or_else(|| "none".to_owned(), canary);
        let (was, is) = (of(old), of(new));
        told.push(if was == is { "canary changed".to_owned() } else { format!("canary {was} -> {is}") });
    }
    if old.mode != new.mode {
        told.push(format!("mode {} -> {}", mode(old.mode), mode(new.mode)));
    }
    if old.by != new.by {
        told.push(format!("by {} -> {}", by(old), by(new)));
    }
    if old.over != new.over {
        told.push(format!("over {} -> {}", over(old.over), over(new.over)));
    }
    let others = [
        ("match", (&old.matching, old.direction) != (&new.matching, new.direction)),
        ("when", old.when != new.when),
        ("access", old.access != new.access),
        ("answer", (&old.deny, &old.shed) != (&new.deny, &new.shed)),
        ("share", old.share != new.share),
        ("charge", (old.charge, old.absent) != (new.charge, new.absent)),
        ("deadline", old.deadline != new.deadline),
        ("near_limit", old.near_limit != new.near_limit),
        ("on_store_error", old.on_store_error != new.on_store_error),
    ];
    told.extend(
        others.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| format!("{name} changed")),
    );
    told
}

fn limits(limits: &[Limit]) -> String {
    if limits.is_empty() {
        return "none".to_owned();
    }
    limits.iter().map(limit).collect::<Vec<_>>().join(" and ")
}

fn canary(canary: &Canary) -> String {
    visible::name(&canary.to_string()).into_owned()
}

/// Returns the short form of a limit, with the number of its other terms.
fn limit(limit: &Limit) -> String {
    let label = visible::name(&limit.terms.label);
    let tiers = limit.tiers.as_ref().map_or(0, |tiers| tiers.values.len());
    let overrides: usize = limit.overrides.iter().map(|choice| choice.values.len()).sum();
    match tiers + overrides {
        0 => label.into_owned(),
        others => format!("{label} and {others} others"),
    }
}

fn by(policy: &Policy) -> String {
    if policy.by.is_empty() { "nothing".to_owned() } else { visible::name(&policy.by.join("+")).into_owned() }
}

const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "off",
        Mode::Shadow => "shadow",
        Mode::Enforce => "enforce",
    }
}

const fn over(over: Over) -> &'static str {
    match over {
        Over::Deny => "deny",
        Over::Block { .. } => "block",
        Over::Mark => "mark",
        Over::Demote { .. } => "demote",
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Quota;

    use super::*;

    fn policy(name: &str, per_second: u64, burst: u64) -> Policy {
        let quota = Quota::per_second(per_second).burst(burst).gcra().unwrap();
        Policy::new(name, Limit::new(quota, format!("gcra {per_second}/s burst {burst}")))
    }

    fn set(policies: Vec<Policy>) -> PolicySet {
        PolicySet::new(policies).unwrap()
    }

    #[test]
    fn what_came_went_and_changed_is_one_line() {
        let before = set(vec![policy("per-ip", 10, 20), policy("tmp", 1, 1), policy("same", 1, 1)]);
        let mut shadow = policy("same", 1, 1);
        assert_eq!(between(&before, &before), "no policy changed");
        shadow.mode = Mode::Shadow;
        let after = set(vec![policy("per-ip", 6, 12), shadow, policy("login", 1, 1)]);
        assert_eq!(
            between(&before, &after),
            "per-ip: limit gcra 10/s burst 20 -> gcra 6/s burst 12; same: mode enforce -> shadow; +login; -tmp"
        );
    }

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let many = |count: usize| set((0..count).map(|n| policy(&format!("policy-{n:03}"), 1, 1)).collect());
        let told = between(&many(0), &many(300));
        assert!(told.len() <= LONGEST && told.starts_with("+policy-000; +policy-001;"), "{told}");
        let left = told.rsplit("; ").next().unwrap();
        let named = told.matches('+').count();
        assert_eq!(left, format!("{} more", 300 - named));
    }
}
