//! The policies that answers are judged by.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tidegate::config::Config;
use tidegate::policy::{Limit, Mode, Policy, PolicySet};
use tidegate::store::CapacityError;
use tidegate::{Gate, ManualClock, Tick};

use super::super::question::Question;
use crate::exit::Mistake;
use crate::room::no_room;

/// How long a charge may wait in the accounts of the refusals: what the server let through is charged there, whether or not there are units
/// left.
const ANY_WAIT: Duration = Duration::from_secs(30 * 86_400);

/// Policies that can be judged, in two forms.
#[derive(Debug)]
pub(in super::super) struct Judged {
    /// As written.
    pub(super) strict: Arc<PolicySet>,
    /// With limits that charge whatever is asked.
    pub(super) patient: Arc<PolicySet>,
    /// The longest delay that all limits of the file accept.
    pub(super) max_wait: Duration,
    /// Whether all keys are made of the attributes that hold the bench's key: then keys have nothing to do with each other.
    pub(super) is_keyed: bool,
    /// Whether a policy says what a request costs, which nobody can ask several times over.
    pub(super) has_own_cost: bool,
}

impl Judged {
    /// Takes the policies of a file that are in force, or the one that is expected.
    ///
    /// # Errors
    /// An unknown policy; one whose decisions depend on more than what was asked when; policies that are not for these asks.
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
                    "{file}: whether policy \"{}\" refuses depends on {why}, which cannot be judged from outside; judge another policy by \
                     --expect, or leave --config out",
                    policy.name
                ))
                .into());
            }
            // One gate in memory stands for whatever the server keeps its counters in.
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
        let decision = gate.peek(&question.descriptor(0))?;
        if decision.limits.is_empty() && decision.denied_by_list.is_none() {
            return Err(Mistake(format!(
                "no policy in force of {file} is for these asks, which know {}; name the attributes with --by and --attr",
                question.descriptor(0).pairs().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
            ))
            .into());
        }
        Ok(judged)
    }

    /// Makes a gate of one of the forms, on a clock of its own.
    ///
    /// # Errors
    /// When there is no memory for so many keys.
    pub(super) fn gate(&self, policies: &Arc<PolicySet>, keys: u32) -> Result<(Gate, ManualClock)> {
        let clock = ManualClock::at(Tick::EPOCH);
        // Each limit of each key has a place, and room beside it, so that none is crowded out.
        let limits: usize = policies.policies().iter().map(|policy| policy.limits.len()).sum();
        let places = (keys as usize).saturating_mul(limits.max(1)).saturating_mul(2).max(1_000);
        let gate = Gate::in_memory(Arc::clone(policies), places).map_err(|error| match error {
            CapacityError::NoMemory { keys: places } => {
                no_room(&format!("--keys {keys} with --config:"), places, 1)
            }
            error => error.into(),
        })?;
        let gate = gate.with_clock(clock.clone()).with_machine(tidegate::signals::Reading::default);
        Ok((gate, clock))
    }
}

/// Says what a policy goes by besides what was asked when.
fn unjudged(policy: &Policy) -> Option<&'static str> {
    if policy.limits.iter().any(Limit::is_breaker) {
        return Some("how calls end");
    }
    if policy.limits.iter().any(Limit::is_guard) {
        return Some("what is in flight");
    }
    let moves = !policy.when.is_empty() || policy.limits.iter().any(|limit| limit.follows.is_some());
    moves.then_some("numbers that only the server knows")
}
