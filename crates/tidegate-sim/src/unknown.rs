//! The numbers that conditions, moving rates, laws and switches use, and that a simulation does not know.

use std::fmt;

use tidegate::Quota;
use tidegate::policy::{Limit, Mode, Policy, PolicySet, Source};
use tidegate_core::concurrency::Adaptive;

/// A number that a policy uses and that was not known; displayed as a sentence that says why, and what became of the
/// policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownNumber {
    /// The number.
    pub source: Source,
    /// The name of the policy.
    pub policy: String,
    why: String,
    effect: Effect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// The condition, as written, never held.
    NeverHeld(String),
    DidNotMove,
    /// The law took the processor as idle.
    Idle,
}

impl UnknownNumber {
    /// Returns the numbers of the policies that are not off for which `why` has a reason why they are not known.
    pub(crate) fn of(policies: &PolicySet, why: impl Fn(&Source) -> Option<String>) -> Vec<Self> {
        let mut found = Vec::new();
        for policy in policies.policies().iter().filter(|policy| policy.mode != Mode::Off) {
            for (source, effect) in uses(policy) {
                let Some(why) = why(&source) else { continue };
                found.push(Self { source, policy: policy.name.clone(), why, effect });
            }
        }
        found
    }

    /// Says whether the number comes from the durations of requests: it is known as soon as these are.
    #[must_use]
    pub const fn is_of_durations(&self) -> bool {
        matches!(self.source, Source::InFlight | Source::Latency)
    }
}

/// Returns the numbers that a policy uses, each with what happens without it.
fn uses(policy: &Policy) -> impl Iterator<Item = (Source, Effect)> {
    let held = policy.when.iter().map(|when| (when.source().clone(), Effect::NeverHeld(when.to_string())));
    let limits = || policy.limits.iter().chain(&policy.shadow_limit);
    let moved =
        limits().filter_map(|limit| Some((limit.follows.as_ref()?.source().clone(), Effect::DidNotMove)));
    let busy = limits().filter(|limit| asks_cpu(limit)).map(|_| (Source::Cpu, Effect::Idle));
    held.chain(moved).chain(busy)
}

/// The law depends on how busy the processor is.
fn asks_cpu(limit: &Limit) -> bool {
    match limit.terms.quota.as_deref() {
        Some(Quota::Adaptive(guard)) => matches!(guard.law(), Adaptive::Bbr(_)),
        _ => false,
    }
}

/// A degrade switch that was taken as on because what turns it off is not known; displayed as a sentence that says why, and
/// what became of the policies that read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedOn {
    /// The name of the switch.
    pub switch: String,
    /// Each reason once; empty if it has no trigger.
    why: Vec<String>,
    /// Whether it has other triggers, on numbers that were known.
    has_others: bool,
    policies: Vec<String>,
}

impl AssumedOn {
    /// Returns the switches of a policy set with a trigger whose number `why` has a reason for not being known, or
    /// without any trigger, which only a person or a program turns.
    pub(crate) fn of(set: &PolicySet, why: impl Fn(&Source) -> Option<String>) -> Vec<Self> {
        let assumed = set.switches().filter_map(|switch| {
            let mut unknown = Vec::new();
            let (mut triggers, mut known) = (0, 0);
            for trigger in set.triggers().iter().filter(|trigger| trigger.switch() == switch) {
                triggers += 1;
                match why(trigger.off_when().source()) {
                    Some(why) if !unknown.contains(&why) => unknown.push(why),
                    Some(_) => {}
                    None => known += 1,
                }
            }
            if triggers > 0 && known == triggers {
                return None;
            }
            let policies = set.policies().iter().filter(|policy| {
                policy.mode != Mode::Off && policy.when.iter().any(|when| is_of(when.source(), switch))
            });
            let policies = policies.map(|policy| policy.name.clone()).collect();
            Some(Self { switch: switch.to_owned(), why: unknown, has_others: known > 0, policies })
        });
        assumed.collect()
    }
}

fn is_of(source: &Source, switch: &str) -> bool {
    matches!(source, Source::Switch(name) if **name == *switch)
}

impl fmt::Display for AssumedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { switch, why, has_others, policies } = self;
        match (&why[..], has_others) {
            ([], _) => {
                write!(f, "switch {switch} was taken as on throughout: only a person or a program turns it")?;
            }
            (why, false) => {
                write!(f, "switch {switch} was taken as on throughout: {}", why.join(", and "))?;
            }
            (why, true) => {
                let why = why.join(", and ");
                write!(f, "switch {switch} was turned by a part of its triggers only: {why}")?;
            }
        }
        if !policies.is_empty() && !has_others {
            let (policy, was) = if policies.len() == 1 { ("policy", "was") } else { ("policies", "were") };
            write!(f, "; {policy} {} {was} never in force", policies.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for UnknownNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, why, effect, .. } = self;
        match effect {
            Effect::NeverHeld(condition) => {
                write!(f, "{why}: the condition `{condition}` of policy {policy} never held")
            }
            Effect::DidNotMove => write!(f, "{why}: the rate of policy {policy} did not follow it"),
            Effect::Idle => write!(f, "{why}: the law of policy {policy} took the processor as idle"),
        }
    }
}

/// Returns "; did you mean `word`?" for the nearest of `words`, or an empty text if none is near.
pub(crate) fn nearest(wrong: &str, words: &[&str]) -> String {
    let near = tidegate_core::spelling::nearest(wrong, words.iter().copied());
    near.map_or_else(String::new, |word| format!("; did you mean `{word}`?"))
}

/// Returns "; did you mean `word`? use ...", with all of `words`; only "; use ..." if none is near.
pub(crate) fn possible(wrong: &str, words: &[&str]) -> String {
    nearest_and_forms(wrong, words, &words.join(", "))
}

/// Returns the same with `forms` in place of the words.
pub(crate) fn nearest_and_forms(wrong: &str, words: &[&str], forms: &str) -> String {
    let near = nearest(wrong, words);
    let stop = if near.is_empty() { ";" } else { "" };
    format!("{near}{stop} use {forms}")
}
