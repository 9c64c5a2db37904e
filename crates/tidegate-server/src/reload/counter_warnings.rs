//! Warns of reloads that reset counters, or carry them over in a way that the file does not say.
//!
//! If only the numbers of an algorithm change, what was spent is carried over as `replace` says in the file. But
//! another algorithm has other counters, and another `by` has other keys. Without a warning, operators would learn of
//! that from their callers.

use std::mem::discriminant;

use tidegate::Replace;
use tidegate::policy::{Limit, Mode, Policy, PolicySet, Terms};

/// The most warnings of one reload: a screen or two. Further ones are only counted.
const MOST: usize = 100;

/// Returns a warning for each limit whose counters are not carried over unchanged.
pub(super) fn of(before: &PolicySet, after: &PolicySet) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut more = 0usize;
    let kept = after.policies().iter().filter_map(|new| Some((before.find(&new.name)?.1, new)));
    for warning in kept.flat_map(|(old, new)| of_policy(old, new)) {
        if found.len() < MOST { found.push(warning) } else { more += 1 }
    }
    if more > 0 {
        found.push(format!("{more} more warnings about counters are not shown"));
    }
    found
}

fn of_policy(old: &Policy, new: &Policy) -> Vec<String> {
    if old.mode == Mode::Off || new.mode == Mode::Off {
        return Vec::new();
    }
    let name = &new.name;
    if old.by != new.by {
        let words = |by: &[String]| if by.is_empty() { "all requests".to_owned() } else { by.join(", ") };
        let (old, new) = (words(&old.by), words(&new.by));
        return vec![format!(
            "policy \"{name}\": keyed by {old} before and by {new} now: the keys differ, so every counter starts again"
        )];
    }
    let limits = old.limits.iter().chain(&old.shadow_limit).zip(new.limits.iter().chain(&new.shadow_limit));
    let changed = limits.filter_map(|(old, new)| {
        let (before, after) = (limited(old)?, limited(new)?);
        let same = discriminant(&**before.quota.as_ref()?) == discriminant(&**after.quota.as_ref()?);
        if same {
            return None;
        }
        let guards = (is_guard(before), is_guard(after));
        let rule = match new.replace {
            _ if guards.0 => {
                "the places in use are forgotten: requests in flight end without returning one, and nothing counts as spent"
            }
            _ if guards.1 => {
                "units spent and owed are forgotten, and requests in flight have no place: up to `max` more may enter in addition"
            }
            Replace::AsIs => {
                "units spent and owed are charged to the new limit, parts of a unit as whole units, and return at its rate"
            }
            Replace::Proportional => {
                "the share that was spent, and units owed, are charged to the new limit, and return at its rate"
            }
            Replace::Reset => "what was spent is forgotten (`replace: reset`)",
        };
        Some(format!(
            "policy \"{name}\": another algorithm, {} before and {} now: {rule}",
            before.label, after.label
        ))
    });
    changed.collect()
}

fn is_guard(terms: &Terms) -> bool {
    terms.quota.as_ref().is_some_and(|quota| quota.is_guard())
}

/// Returns the first terms of a limit that have a quota; `None` if all are unlimited. All terms have the same
/// algorithm.
fn limited(limit: &Limit) -> Option<&Terms> {
    limit.all_terms().find(|terms| terms.quota.is_some())
}
