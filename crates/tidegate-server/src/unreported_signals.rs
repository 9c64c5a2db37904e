//! Warns of numbers that policies depend on and this server never knows: a condition on an unknown number does not
//! hold, and a rate that follows one stays at its ceiling, so the policy would silently do nothing.

use tidegate::policy::{Policy, PolicySet, Source, Trigger};

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
    let of_triggers = policies.triggers().iter().filter_map(of_trigger);
    policies.policies().iter().flat_map(of_policy).chain(of_triggers).collect()
}

fn of_trigger(trigger: &Trigger) -> Option<String> {
    let (name, condition) = (trigger.switch(), trigger.off_when());
    let (source, instead) = (condition.source(), instead_of(condition.source())?);
    Some(format!(
        "switch \"{name}\": the server does not know {source}, so `off_when: {condition}` never turns it off there; {instead}"
    ))
}

fn of_policy(policy: &Policy) -> Vec<String> {
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
