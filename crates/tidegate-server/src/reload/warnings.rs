//! What a server warns of when it takes policies: what a reload resets, and numbers that are never known.
//!
//! A reload may reset counters or breakers, or carry them over otherwise than `replace` says: another algorithm has
//! other counters, and another `by` other keys. Without a warning, operators would learn of that from their callers.

use std::mem::discriminant;

use tidegate::Quota;
use tidegate::limiter::Replace;
use tidegate::policy::{Limit, Mode, Policy, PolicySet, Source, Terms, Trigger};

/// The most warnings of one reload: a screen or two. Further ones are only counted.
const MOST: usize = 100;
/// With how many new policies one that is gone is compared: a file may have ten thousand of either.
const COMPARED: usize = 500;

/// Warns of each limit whose counters are not carried over unchanged. `forced` counts the breakers of a policy that a
/// person has forced.
pub(super) fn of_counters(
    before: &PolicySet,
    after: &PolicySet,
    forced: impl Fn(&str) -> usize,
) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut more = 0usize;
    let kept = after.policies().iter().filter_map(|new| Some((before.find(&new.name)?.1, new)));
    for warning in kept.flat_map(|(old, new)| of_policy(old, new, &forced)).chain(of_names(before, after)) {
        if found.len() < MOST { found.push(warning) } else { more += 1 }
    }
    if more > 0 {
        found.push(format!("{more} more warnings about counters are not shown"));
    }
    found
}

/// Warns of a policy that is gone while a new one counts the same: probably it was renamed.
fn of_names(before: &PolicySet, after: &PolicySet) -> Vec<String> {
    let counts = |policy: &&Policy| {
        policy.mode != Mode::Off && policy.limits.iter().any(|limit| limited(limit).is_some())
    };
    let gone = before.policies().iter().filter(counts).filter(|old| after.find(&old.name).is_none());
    let new = after.policies().iter().filter(counts).filter(|new| before.find(&new.name).is_none());
    let mut new: Vec<&Policy> = new.take(COMPARED).collect();
    let renamed = gone.take(COMPARED).filter_map(|old| {
        let counts_like = |new: &&Policy| {
            (&old.matching, old.direction, &old.by, &old.limits)
                == (&new.matching, new.direction, &new.by, &new.limits)
        };
        let at = new.iter().position(counts_like)?;
        let new = new.remove(at);
        Some(format!(
            "policy \"{}\": it has the limits, match and `by` of policy \"{old}\", which is gone: counters belong to a policy's name, so what was \
             counted under \"{old}\" is forgotten; keep the name \"{old}\" to go on with them",
            new.name,
            old = old.name
        ))
    });
    renamed.collect()
}

fn of_policy(old: &Policy, new: &Policy, forced: &impl Fn(&str) -> usize) -> Vec<String> {
    if old.mode == Mode::Off || new.mode == Mode::Off {
        return Vec::new();
    }
    let name = &new.name;
    if old.by != new.by {
        let words = |by: &[String]| if by.is_empty() { "all requests".to_owned() } else { by.join(", ") };
        let what = match old.limits.iter().chain(&old.shadow_limit).any(Limit::is_breaker) {
            true => format!("every counter starts again and every breaker closed{}", by_hand(forced(name))),
            false => "every counter starts again".to_owned(),
        };
        let (old, new) = (words(&old.by), words(&new.by));
        return vec![format!(
            "policy \"{name}\": keyed by {old} before and by {new} now: the keys differ, so {what}"
        )];
    }
    let limits = old.limits.iter().chain(&old.shadow_limit).zip(new.limits.iter().chain(&new.shadow_limit));
    let changed = limits.filter_map(|(old, new)| {
        let (before, after) = (limited(old)?, limited(new)?);
        let (was, is) = (before.quota.as_ref()?, after.quota.as_ref()?);
        let breakers = (matches!(**was, Quota::Breaker(_)), matches!(**is, Quota::Breaker(_)));
        if discriminant(&**was) == discriminant(&**is) {
            let starts_anew = breakers.1 && new.replace == Replace::Reset && was != is;
            return starts_anew.then(|| {
                let ended = by_hand(forced(name));
                format!(
                    "policy \"{name}\": another breaker, {}: every breaker starts closed (`replace: reset`){ended}",
                    differing(before, after)
                )
            });
        }
        let of_breakers;
        let rule = match new.replace {
            _ if breakers.0 => {
                let places = if is.is_guard() { ", and requests in flight have no place" } else { "" };
                of_breakers = format!(
                    "the states of its breakers are forgotten{}, and nothing counts as spent{places}",
                    by_hand(forced(name))
                );
                &of_breakers
            }
            _ if was.is_guard() => {
                "the places in use are forgotten: requests in flight end without returning one, and nothing counts as spent"
            }
            _ if breakers.1 => "units spent and owed are forgotten, and every breaker starts closed",
            _ if is.is_guard() => {
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

/// Describes two breakers by their labels, or, if these are equal, by the keys in which they differ.
fn differing(before: &Terms, after: &Terms) -> String {
    match (before.quota.as_deref(), after.quota.as_deref()) {
        (Some(Quota::Breaker(was)), Some(Quota::Breaker(is))) if before.label == after.label => {
            format!("{} before and now, with other {}", after.label, was.differs_in(is).join(", "))
        }
        _ => format!("{} before and {} now", before.label, after.label),
    }
}

fn by_hand(forced: usize) -> String {
    match forced {
        0 => String::new(),
        1 => "; the state into which one was forced by hand ends".to_owned(),
        many => format!("; the states into which {many} were forced by hand end"),
    }
}

/// Returns the first terms of a limit that have a quota; `None` if all are unlimited. All terms have the same
/// algorithm.
fn limited(limit: &Limit) -> Option<&Terms> {
    limit.all_terms().find(|terms| terms.quota.is_some())
}

/// Warns of policies whose blocks by hand no longer hold. `blocked` counts them by policy.
pub(super) fn of_blocks(before: &PolicySet, after: &PolicySet, blocked: &[(String, usize)]) -> Vec<String> {
    let ended = blocked.iter().filter_map(|(name, keys)| {
        let (_, old) = before.find(name)?;
        let why = match after.find(name) {
            None => "no policy has that name any more",
            Some((_, new)) if new.by != old.by => "it has other keys now (`by`)",
            Some((_, new)) if new.mode != Mode::Enforce && old.mode == Mode::Enforce => "it is not enforced any more",
            Some(_) => return None,
        };
        let blocks = if *keys == 1 { "1 block no longer holds".to_owned() } else { format!("{keys} blocks no longer hold") };
        Some(format!(
            "policy \"{name}\": {blocks}, since {why}; block the caller for all policies: tidegate key block NAME=VALUE"
        ))
    });
    ended.take(MOST).collect()
}

// Numbers that policies depend on and this server never knows: a condition on an unknown number does not hold, and a
// rate that follows one stays at its ceiling, so the policy would silently do nothing.

/// Returns a warning for each policy or switch and each number that it depends on and that a server never knows: the
/// machine's numbers, on systems that do not report them, which is all but Linux. There is no warning about signals
/// that nobody reports, `in-flight` and `latency` if nobody asks for tickets, and `policy NAME` if an engine keeps the
/// counters: that shows only while the server runs.
///
/// # Examples
/// ```
/// use tidegate::Quota;
/// use tidegate::policy::{Limit, Policy, PolicySet};
///
/// let careful = Policy::new("careful", Limit::new(Quota::per_second(1).gcra()?, "1/s"))
///     .when("cpu above 80%".parse()?);
/// let warnings = tidegate_server::unknown_numbers(&PolicySet::new(vec![careful])?);
/// assert_eq!(warnings.is_empty(), cfg!(target_os = "linux"), "{warnings:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn unknown_numbers(policies: &PolicySet) -> Vec<String> {
    let of_triggers = policies.triggers().iter().filter_map(unknown_in_trigger);
    policies.policies().iter().flat_map(unknown_in_policy).chain(of_triggers).collect()
}

fn unknown_in_trigger(trigger: &Trigger) -> Option<String> {
    let (name, condition) = (trigger.switch(), trigger.off_when());
    let (source, instead) = (condition.source(), instead_of(condition.source())?);
    Some(format!(
        "switch \"{name}\": the server does not know {source}, so `off_when: {condition}` never turns it off there; {instead}"
    ))
}

fn unknown_in_policy(policy: &Policy) -> Vec<String> {
    let name = &policy.name;
    let mut found: Vec<String> = Vec::new();
    for condition in &policy.when {
        if let Some(instead) = instead_of(condition.source()) {
            let source = condition.source();
            found.push(format!(
                "policy \"{name}\": the server does not know {source}, so `when: {condition}` never holds there; {instead}"
            ));
        }
    }
    for follows in policy.limits.iter().chain(&policy.shadow_limit).filter_map(|limit| limit.follows.as_ref())
    {
        if let Some(instead) = instead_of(follows.source()) {
            let source = follows.source();
            found.push(format!(
                "policy \"{name}\": the server does not know {source}, so the rate that follows it stays as it is; {instead}"
            ));
        }
    }
    found.dedup();
    found
}

/// Suggests what to use in place of a number that the server never knows; `None` for all others.
fn instead_of(source: &Source) -> Option<&'static str> {
    match source {
        Source::Cpu | Source::Memory | Source::Load if !cfg!(target_os = "linux") => {
            Some("this system does not tell it; report it as a signal")
        }
        _ => None,
    }
}
