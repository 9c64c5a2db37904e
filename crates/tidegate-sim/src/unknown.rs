//! The numbers that conditions, moving rates and laws use, and that a simulation does not know.

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

/// The effect of an unknown number on a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// The condition, as written, never held.
    NeverHeld(String),
    /// A rate did not follow the number.
    DidNotMove,
    /// A law took the processor as idle.
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

/// Says whether the law of a limit depends on how busy the processor is.
fn asks_cpu(limit: &Limit) -> bool {
    match limit.terms.quota.as_deref() {
        Some(Quota::Adaptive(guard)) => matches!(guard.law(), Adaptive::Bbr(_)),
        _ => false,
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
