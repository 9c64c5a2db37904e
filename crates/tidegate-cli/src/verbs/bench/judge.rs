//! Finds wrong answers by the policy file that the server should follow.
//!
//! The server decided an ask at an unknown time between sending and answer. So an answer is wrong only if no choice of
//! times makes it right. An allowed ask is tried at every time in its span ([`LetThrough`]), a denied one at the worst
//! time ([`Refused`]). Both use the library's own gate, on a clock that follows the asks in order.

mod refused;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate::config::Config;
use tidegate::gate::Check;
use tidegate::limiter::Retry;
use tidegate::policy::{Limit, Mode, Policy, PolicySet};
use tidegate::store::CapacityError;
use tidegate::{Gate, Tick};

use self::refused::Refused;
use super::client::Fate;
use super::question::Question;
use crate::exit::{Mistake, no_room};

/// Each takes 40 bytes, and waits until all asks sent before it have ended, at most for the timeout.
pub(super) const MAX_WAITING: usize = 4_000_000;

/// Times are ticks of this process's clock, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) key: u32,
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) fate: Fate,
}

/// The span in which the server decided an ask, by the judge's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    from: u64,
    to: u64,
    key: u32,
}

impl Span {
    const MIN: Self = Self { from: 0, to: 0, key: 0 };
    const MAX: Self = Self { from: u64::MAX, to: u64::MAX, key: u32::MAX };
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrongAnswers {
    /// Allowed asks, and how many of them the limits had no units for at any time.
    pub(super) let_through: u64,
    pub(super) wrongly_let_through: u64,
    /// Denied asks, and how many of them the limits had units for at every time.
    pub(super) refused: u64,
    pub(super) wrongly_refused: u64,
    /// Too many asks were waiting; the other numbers count the asks before that.
    pub(super) gave_up: bool,
}

#[derive(Debug)]
pub(super) struct Judge {
    let_through: LetThrough,
    refused: Refused,
    slack: u64,
    gave_up: bool,
}

impl Judge {
    /// Makes a judge for this many keys.
    ///
    /// # Errors
    /// If there is no memory for the keys.
    pub(super) fn new(judged: &Judged, question: &Question, keys: u32, slack: Duration) -> Result<Self> {
        Ok(Self {
            let_through: LetThrough::new(judged, question.clone(), keys)?,
            refused: Refused::new(judged, question.clone(), keys)?,
            slack: u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX),
            gave_up: false,
        })
    }

    /// Takes asks in any order. All asks sent before `known_until` have been taken with this call; later ones may still
    /// follow.
    pub(super) fn take(&mut self, asks: &[Ask], known_until: u64) {
        if self.gave_up {
            return;
        }
        for ask in asks {
            let span = Span {
                from: ask.sent.saturating_sub(self.slack),
                to: ask.answered.saturating_add(self.slack),
                key: ask.key,
            };
            match ask.fate {
                Fate::Allowed => {
                    self.let_through.add(span);
                    self.refused.add_charge(span);
                }
                Fate::Denied => self.refused.add(span),
                // It may have been charged within its span, a lost one at any time after sending.
                Fate::Failed => self.refused.add_charge(span),
                Fate::Lost => self.refused.add_charge(Span { to: u64::MAX, ..span }),
                Fate::Unsent => {}
            }
        }
        if self.let_through.waiting() + self.refused.waiting() > MAX_WAITING {
            self.give_up();
            return;
        }
        let until = known_until.saturating_sub(self.slack);
        self.let_through.run(until);
        self.refused.run(until);
    }

    pub(super) fn give_up(&mut self) {
        self.gave_up = true;
        self.let_through.clear();
        self.refused.clear();
    }

    pub(super) fn found(&self) -> WrongAnswers {
        let ((let_through, wrongly_let_through), (refused, wrongly_refused)) =
            (self.let_through.found(), self.refused.found());
        WrongAnswers { let_through, wrongly_let_through, refused, wrongly_refused, gave_up: self.gave_up }
    }
}

impl WrongAnswers {
    pub(super) fn json(self) -> Value {
        json!({
            "let_through": self.let_through,
            "wrongly_let_through": self.wrongly_let_through,
            "refused": self.refused,
            "wrongly_refused": self.wrongly_refused,
            "gave_up": self.gave_up,
        })
    }
}

// Finds asks that were allowed although their limits had no units at any time.
//
// Every allowed ask is charged as soon as there are units within its span. If there are none until its end, it may take
// the units of an ask already charged whose span ends later, since that one may have been decided later. Only if there
// is no such ask was one ask too many allowed. For limits that grant equal costs, this finds the smallest number of
// wrong asks, like earliest-deadline scheduling. A wrong ask is not charged.

#[derive(Debug)]
struct LetThrough {
    gate: Gate,
    clock: ManualClock,
    question: Question,
    is_keyed: bool,
    /// Asks by the time of the next attempt, then by the end of their span.
    waiting: BinaryHeap<Reverse<(u64, Span)>>,
    /// Charged, with a span that is not over, by group and end.
    charged: BTreeSet<(u32, u64, u64, Span)>,
    /// Two asks may have the same span.
    number: u64,
    taken: u64,
    wrong: u64,
}

impl LetThrough {
    fn new(judged: &Judged, question: Question, keys: u32) -> Result<Self> {
        let (gate, clock) = judged.gate(&judged.strict, keys)?;
        let (waiting, charged) = (BinaryHeap::new(), BTreeSet::new());
        Ok(Self {
            gate,
            clock,
            question,
            is_keyed: judged.is_keyed,
            waiting,
            charged,
            number: 0,
            taken: 0,
            wrong: 0,
        })
    }

    fn add(&mut self, span: Span) {
        self.taken += 1;
        self.waiting.push(Reverse((span.from, span)));
    }

    /// Judges all asks before `until`. Earlier asks must not be added afterwards.
    fn run(&mut self, until: u64) {
        while let Some(&Reverse((at, span))) = self.waiting.peek()
            && at < until
        {
            self.waiting.pop();
            self.attempt(at, span);
        }
        self.charged.retain(|(_, end, _, _)| *end > until);
    }

    fn attempt(&mut self, at: u64, span: Span) {
        self.clock.set(Tick::from_nanos(at));
        let decision = {
            let request = self.question.descriptor(span.key);
            let check = Check::of(&request).maybe_cost(self.question.cost());
            self.gate.check(check).now().expect("a gate in memory decides every cost from 1 on")
        };
        let group = if self.is_keyed { span.key } else { 0 };
        if decision.allowed {
            self.charge(group, span);
            return;
        }
        let wait = match decision.retry() {
            Retry::After(wait) => u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).max(1),
            Retry::Unknown | Retry::Never => u64::MAX,
        };
        let next = at.saturating_add(wait);
        if next <= span.to && next < u64::MAX {
            self.waiting.push(Reverse((next, span)));
            return;
        }
        let later =
            self.charged.range((group, span.to + 1, 0, Span::MIN)..=(group, u64::MAX, u64::MAX, Span::MAX));
        match later.last().copied() {
            Some(other) => {
                self.charged.remove(&other);
                self.charge(group, span);
                self.waiting.push(Reverse((at, other.3)));
            }
            None => self.wrong += 1,
        }
    }

    fn charge(&mut self, group: u32, span: Span) {
        self.number += 1;
        self.charged.insert((group, span.to, self.number, span));
    }

    fn waiting(&self) -> usize {
        self.waiting.len() + self.charged.len()
    }

    fn clear(&mut self) {
        (self.waiting, self.charged) = (BinaryHeap::new(), BTreeSet::new());
    }

    /// How many asks were taken, and how many were wrong.
    fn found(&self) -> (u64, u64) {
        (self.taken, self.wrong)
    }
}

// The policies that answers are judged by.

/// The wait accepted for charges in the accounts of denials: asks that the server allowed are charged there even if no
/// units are left.
const ANY_WAIT: Duration = Duration::from_secs(30 * 86_400);

/// The policies for judging, in two forms.
#[derive(Debug)]
pub(super) struct Judged {
    /// As written.
    strict: Arc<PolicySet>,
    /// With limits that accept every charge.
    patient: Arc<PolicySet>,
    /// That all limits of the file accept.
    max_wait: Duration,
    /// Different keys do not share limits: the keys of all policies contain the attribute of the bench's key.
    is_keyed: bool,
    /// The judge cannot ask for several costs at once.
    has_own_cost: bool,
}

impl Judged {
    /// The active policies of a file, or only the expected one.
    ///
    /// # Errors
    /// An unknown policy; one whose decisions depend on more than the asks and their times; policies that do not apply
    /// to these asks.
    pub(super) fn of(config: &Config, question: &Question, file: &str) -> Result<Self> {
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
    fn gate(&self, policies: &Arc<PolicySet>, keys: u32) -> Result<(Gate, ManualClock)> {
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
    if policy.canary.is_some() {
        return Some("the share of its canary");
    }
    let moves = !policy.when.is_empty() || policy.limits.iter().any(|limit| limit.follows.is_some());
    moves.then_some("numbers that only the server knows")
}
