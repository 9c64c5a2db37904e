//! The policies that answers are judged by.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tidegate::clock::ManualClock;
use tidegate::config::Config;
use tidegate::gate::Check;
use tidegate::policy::{Limit, Mode, Policy, PolicySet};
use tidegate::store::CapacityError;
use tidegate::{Gate, Tick};

use super::super::question::Question;
use crate::exit::{Mistake, no_room};

/// The wait accepted for charges in the accounts of denials: asks that the server allowed are charged there even if no
/// units are left.
const ANY_WAIT: Duration = Duration::from_secs(30 * 86_400);

/// The policies for judging, in two forms.
#[derive(Debug)]
pub(in super::super) struct Judged {
    /// As written.
    pub(super) strict: Arc<PolicySet>,
    /// With limits that accept every charge.
    pub(super) patient: Arc<PolicySet>,
    /// That all limits of the file accept.
    pub(super) max_wait: Duration,
    /// Different keys do not share limits: the keys of all policies contain the attribute of the bench's key.
    pub(super) is_keyed: bool,
    /// The judge cannot ask for several costs at once.
    pub(super) has_own_cost: bool,
}

impl Judged {
    /// The active policies of a file, or only the expected one.
    ///
    /// # Errors
    /// An unknown policy; one whose decisions depend on more than the asks and their times; policies that do not apply
    /// to these asks.
    pub(in super::super) fn of(config: &Config, question: &Question, file: &str) -> Result<Self> {
        let all = config.policies.policies();
        if let Some(wanted) = &question.policy
            && all.iter().all(|policy| policy.name != *wanted)
        {
            let names: Vec<&str> = all.iter().map(|policy| policy.name.as_str()).collect();
            let there =
                if names.is_empty() { "are none".to_owned() } else { format!("are {}", names.join(", ")) };
            return Err(Mistake(format!(
                "--expect: there is no policy \"{wanted}\" in {file}; there {there}"
            ))
            .into());
        }
        let is_wanted =
            |policy: &&Policy| question.policy.as_ref().is_none_or(|wanted| *wanted == policy.name);
        let mut policies: Vec<Policy> =
            all.iter().filter(is_wanted).filter(|policy| policy.mode == Mode::Enforce).cloned().collect();
        for policy in &mut policies {
            if let Some(why) = unjudged(policy) {
                return Err(Mistake(format!(
                    "{file}: policy \"{}\" depends on {why}, so its answers cannot be checked from outside; check another policy with \
                     --expect, or leave --config out",
                    policy.name
                ))
                .into());
            }
            // One gate in memory stands for any kind of store that the server uses.
            policy.share = None;
            policy.shadow_limit = None;
        }
        let has_own_cost = policies.iter().any(|policy| policy.cost.is_some());
        let is_keyed =
            policies.iter().all(|policy| question.by().iter().any(|name| policy.by.contains(name)));
        let limits = policies.iter().flat_map(|policy| &policy.limits);
        let max_wait = limits.map(|limit| limit.max_wait).min().unwrap_or_default();
        let mut patient = policies.clone();
        for limit in patient.iter_mut().flat_map(|policy| &mut policy.limits) {
            limit.max_wait = ANY_WAIT;
        }
        let set = |policies| {
            let access = config.policies.shared_access().clone();
            let set = PolicySet::with(policies, access, config.client_ip.ipv6_prefix);
            set.map(Arc::new).map_err(|error| Mistake(format!("{file}: {error}")))
        };
        let judged =
            Self { strict: set(policies)?, patient: set(patient)?, max_wait, is_keyed, has_own_cost };
        let (gate, _) = judged.gate(&judged.strict, 1)?;
        let decision = gate.check(Check::of(&question.descriptor(0)).peek()).now()?;
        if decision.limits.is_empty() && decision.refusal.is_none() {
            return Err(Mistake(format!(
                "no policy in force of {file} matches these requests, which have {}; name the attributes with --by and --attr",
                question.descriptor(0).pairs().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
            ))
            .into());
        }
        Ok(judged)
    }

    /// Makes a gate for one of the forms, on a clock of its own.
    ///
    /// # Errors
    /// If there is no memory for this many keys.
    pub(super) fn gate(&self, policies: &Arc<PolicySet>, keys: u32) -> Result<(Gate, ManualClock)> {
        let clock = ManualClock::at(Tick::EPOCH);
        // Twice as many places, so that none is evicted.
        let limits: usize = policies.policies().iter().map(|policy| policy.limits.len()).sum();
        let places = (keys as usize).saturating_mul(limits.max(1)).saturating_mul(2).max(1_000);
        let gate = Gate::in_memory(Arc::clone(policies), places).map_err(|error| match error {
            CapacityError::NoMemory { keys: places } => {
                no_room(&format!("--keys {keys} with --config:"), places, 1)
            }
            error => error.into(),
        })?;
        let gate =
            gate.with_clock(clock.clone()).with_machine(tidegate::concurrency::signals::Reading::default);
        Ok((gate, clock))
    }
}

/// Returns what a policy's decisions depend on besides the asks and their times.
fn unjudged(policy: &Policy) -> Option<&'static str> {
    if policy.limits.iter().any(Limit::is_breaker) {
        return Some("how calls end");
    }
    if policy.limits.iter().any(Limit::is_guard) {
        return Some("requests in flight");
    }
    let moves = !policy.when.is_empty() || policy.limits.iter().any(|limit| limit.follows.is_some());
    moves.then_some("numbers that only the server knows")
}
