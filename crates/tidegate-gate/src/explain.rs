//! Explains a decision: what every policy does with a request, in words and numbers. The server's `/v1/explain` and the
//! command line print the same lines.

mod allowed_with;
mod terminal;

pub use self::allowed_with::AllowedWith;
use self::allowed_with::{allowed_with, cohorts_admitted, word};
use crate::gate::waits::Waits;
use crate::gate::{Asking, Check, Gate, GateDecision};
use crate::policy::{
    Descriptor, Limit, Mode, Over, Policy, PolicySet, Relevance, meant_among, shortest_time_left,
};
use tidegate_core::Priority;
use tidegate_limits::duration_text::millis_up;
use tidegate_limits::store::StoreError;
use tidegate_limits::visible::excerpt;

/// The explanation of one request.
///
/// If made from a check, the numbers are those after it. As text: one line per limit.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Serialize))]
pub struct Explanation {
    /// `allowed`, `delayed` or `denied`.
    pub decision: &'static str,
    /// The policy that binds; absent if no policy limits the request, or if a list or a block for all policies refused it.
    pub policy: Option<String>,
    /// When the request is worth repeating: `after` a known wait, `unknown`, or `never`; absent if it passes.
    pub retry: Option<&'static str>,
    /// The shortest wait until the request would pass, in milliseconds rounded up; absent if it passes, and if no wait is known.
    pub retry_after_ms: Option<u64>,
    /// How long the request would be delayed, in milliseconds rounded up.
    pub delay_ms: u64,
    /// Whether a deny-list, a deadline or a block refused the request; no limit was checked then.
    pub denied_by_list: bool,
    /// The reason of the block, if the key is blocked; may be empty.
    pub blocked: Option<String>,
    /// Whether a deadline refused the request: its caller waits for too little time.
    pub too_late: bool,
    /// The policies, in the order of the file.
    pub reasons: Vec<Reason>,
    /// What the explanation does not know: the state of breakers, and deadlines that were not compared. As sentences
    /// without a full stop; empty if made by [`Explanation::of`].
    pub remarks: Vec<String>,
    /// The attributes of the request, other than `client.ip` and those of `request.`, that no policy of the set names.
    #[cfg_attr(feature = "config", serde(skip))]
    unused: Vec<String>,
    /// Of a request that no policy is about: its domain and keys that no policy reads, as sentences.
    #[cfg_attr(feature = "config", serde(skip))]
    unread: Option<Vec<String>>,
}

/// The decision of one policy about the request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Serialize))]
pub struct Reason {
    /// The policy's name.
    pub policy: String,
    /// `off`, `shadow` or `enforce`.
    pub mode: &'static str,
    /// `allowed`, `DENIED`, `would deny` (in shadow), `marked` or `demoted` (over the limit), or `not charged`.
    pub result: &'static str,
    /// Why the policy charges the request or not.
    pub why: String,
    /// The key that is charged: `client.ip=203.0.113.9`, or `(all)`.
    pub key: String,
    /// The policy's limits, if it charges the request; a shadow limit comes last.
    pub limits: Vec<LimitReason>,
    /// Whether the policy has a deadline and charges a request that does not say how long its caller waits.
    #[cfg_attr(feature = "config", serde(skip))]
    untimed: bool,
}

/// The present state of a breaker, for [`Explanation::with_breakers`].
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerState {
    /// The state in words, as `is forced open by a person`.
    pub words: String,
    /// The share of calls that is admitted, 0 to 1, for a breaker that sheds; `None` for others.
    pub admitted_share: Option<f64>,
}

/// The decision of one limit about the request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Serialize))]
pub struct LimitReason {
    /// The limit in short form: `gcra 100/s burst 200`; if the check brought a quota, `the check's own quota`.
    pub limit: String,
    /// `allowed`, `DENIED`, `would deny`, `marked` or `demoted`.
    pub result: &'static str,
    /// Whether this is a shadow limit, which refuses nothing.
    pub shadow_limit: bool,
    /// Whether this is the limit of the policy's canary, which decides about this key in the place of the first limit.
    pub canary: bool,
    /// What the limit counts: `units`, which return with time, or `places`, for requests in flight.
    pub counts: &'static str,
    /// Units or places asked for; absent if the cost cannot be worked out.
    pub needs: Option<u64>,
    /// Units or places left, including those that are kept back.
    pub has: u64,
    /// Units or places that are kept back from this request, for others of higher priority.
    pub kept_back: u64,
    /// The units of a full limit, or the number of places.
    pub of: u64,
    /// When the request is worth repeating: `after` a known wait, `unknown`, or `never`; absent if this limit allows it.
    pub retry: Option<&'static str>,
    /// The shortest wait until this limit would allow the request, in milliseconds rounded up; absent if it does, and if no wait is known.
    pub retry_after_ms: Option<u64>,
    /// The smallest changes with which the request would have passed this limit; absent if it passed, and for a
    /// breaker, whose state depends on how calls end.
    pub allowed_with: Option<AllowedWith>,
    /// The share of such requests that this limit admits now, 0 to 1: of the calls, for a breaker that sheds; of the cohorts
    /// of the request's level, for a limit that refused the request only because it keeps a part for higher priority.
    /// Absent otherwise.
    pub admitted_share: Option<f64>,
    /// Whether this limit allowed the request but was not charged, because another limit denied it.
    pub spared: bool,
    #[cfg_attr(feature = "config", serde(skip))]
    binds: bool,
    /// The policy file's word for [`AllowedWith::burst_at_least`], and the text after the number.
    #[cfg_attr(feature = "config", serde(skip))]
    word: (&'static str, &'static str),
    /// Places in use; if the number of places was lowered, this may exceed it.
    #[cfg_attr(feature = "config", serde(skip))]
    in_use: u64,
    #[cfg_attr(feature = "config", serde(skip))]
    is_breaker: bool,
    /// Whether the limit is a breaker that sheds instead of opening.
    #[cfg_attr(feature = "config", serde(skip))]
    may_shed: bool,
    /// The level of priority that is shed, and how many of its cohorts are admitted.
    #[cfg_attr(feature = "config", serde(skip))]
    shed: Option<(&'static str, u8)>,
    /// The index of the limit within its policy.
    #[cfg_attr(feature = "config", serde(skip))]
    place: usize,
    /// The state of the breaker in words, where more is known than the decision says.
    #[cfg_attr(feature = "config", serde(skip))]
    breaker: Option<String>,
}

impl Gate {
    /// Explains what every policy does with a request, why, and what would let it pass. Spends nothing.
    ///
    /// Examines every policy, matching or not: for people, not for the hot path. Of a breaker it knows whether it lets the
    /// request through, but not why: [`Keys::handle_breaker`](crate::gate::Keys::handle_breaker) tells that, and [`Explanation::remarks`] says so.
    ///
    /// # Errors
    /// [`StoreError`] if no decision could be made.
    ///
    /// # Cancel safety
    /// Spends nothing, so it may be dropped at any time.
    pub fn explain<'a, 'd: 'a>(
        &'a self,
        check: impl Into<Check<'a, 'd>>,
    ) -> Asking<'a, Result<Explanation, StoreError>> {
        let check = check.into().peek();
        Asking::new(move |waits| async move {
            let decision = match waits {
                Waits::Yes => self.check(check).await,
                Waits::No | Waits::Unwatched => self.check(check).now(),
            };
            Ok(Explanation::of_peek(&check, &decision?))
        })
    }
}

impl Explanation {
    fn of_peek(check: &Check<'_, '_>, decision: &GateDecision) -> Self {
        let (set, request) = (&decision.policies, check.request);
        let explained = Self::of(set, request, decision, |_| true, |policy| key_text(set, policy, request));
        let explained = if check.deadline.is_some() { explained.without_waits() } else { explained };
        explained.with_remarks()
    }

    /// Explains a decision by those policies of `set` whose indices `asked` accepts; `key` formats a policy's key as the
    /// readers may see it. The decision may come from a set with fewer policies: they are matched by name.
    pub fn of(
        set: &PolicySet,
        request: &Descriptor<'_>,
        decision: &GateDecision,
        asked: impl Fn(usize) -> bool,
        key: impl Fn(&Policy) -> String,
    ) -> Self {
        let relevance = set.relevance_at(request, decision.priority);
        let is_timed = shortest_time_left(request).is_some();
        let policies = set.policies().iter().zip(&relevance).enumerate().filter(|(place, _)| asked(*place));
        let is_unmet = decision.allowed && !policies.clone().any(|(_, (_, relevance))| relevance.is_met());
        let reasons = policies.map(|(_, (policy, relevance))| {
            let limits = limits(policy, request, decision);
            let untimed = policy.deadline.is_some() && !limits.is_empty() && !is_timed;
            Reason {
                untimed,
                policy: policy.name.clone(),
                mode: match policy.mode {
                    Mode::Off => "off",
                    Mode::Shadow => "shadow",
                    Mode::Enforce => "enforce",
                },
                result: result(relevance, &limits),
                why: why(relevance, &limits, decision),
                key: key(policy),
                limits,
            }
        });
        Self {
            decision: match (decision.allowed, decision.wait.is_zero()) {
                (true, true) => "allowed",
                (true, false) => "delayed",
                (false, _) => "denied",
            },
            policy: decision.policy().map(|place| decision.policies.policies()[place].name.clone()),
            retry: (!decision.allowed).then(|| decision.retry().as_str()),
            retry_after_ms: (!decision.allowed).then(|| decision.retry().after()).flatten().map(millis_up),
            delay_ms: millis_up(decision.wait),
            denied_by_list: decision.refusal.is_some(),
            blocked: decision
                .refusal
                .as_ref()
                .and_then(|refusal| Some(refusal.block.as_ref()?.reason.to_string())),
            too_late: decision.refusal.as_ref().is_some_and(|refusal| refusal.needs.is_some()),
            reasons: reasons.collect(),
            remarks: Vec::new(),
            unused: unused(set, request),
            unread: is_unmet.then(|| set.unread_values(request)),
        }
    }

    /// Replaces what is said about breakers: `tell` gets the name of a policy and the index of a breaker within it, and
    /// returns its state; `None` leaves what is said.
    #[must_use]
    pub fn with_breakers(mut self, tell: impl Fn(&str, usize) -> Option<BreakerState>) -> Self {
        for reason in &mut self.reasons {
            for limit in reason.limits.iter_mut().filter(|limit| limit.is_breaker) {
                let Some(state) = tell(&reason.policy, limit.place) else { continue };
                (limit.breaker, limit.admitted_share) = (Some(state.words), state.admitted_share);
            }
        }
        self
    }

    /// Leaves out which `max_wait` would have let the request pass: its caller's time is bounded in a way that the
    /// request does not state.
    fn without_waits(mut self) -> Self {
        let limits = self.reasons.iter_mut().flat_map(|reason| &mut reason.limits);
        for with in limits.filter_map(|limit| limit.allowed_with.as_mut()) {
            with.max_wait_at_least_ms = None;
        }
        self
    }

    /// Returns whether a breaker takes part in the decision.
    #[must_use]
    pub fn has_breakers(&self) -> bool {
        self.reasons.iter().flat_map(|reason| &reason.limits).any(|limit| limit.is_breaker)
    }
}

/// Returns the attributes of a request that no policy names, each with the name that may be meant.
fn unused(set: &PolicySet, request: &Descriptor<'_>) -> Vec<String> {
    let named = set.named();
    let own = |name: &str| name != "client.ip" && !name.starts_with("request.") && !named.contains(name);
    let names = request.pairs().map(|(name, _)| name).filter(|name| own(name));
    names
        .map(|name| match meant_among(&named, name) {
            Some(meant) => format!("{} (did you mean {meant}?)", excerpt(name)),
            None => excerpt(name),
        })
        .collect()
}

fn limits(policy: &Policy, request: &Descriptor<'_>, decision: &GateDecision) -> Vec<LimitReason> {
    let policies = decision.policies.policies();
    let left = shortest_time_left(request).map(|(left, ..)| left);
    let own = decision.limits.iter().enumerate();
    let own = own.filter(|(_, limit)| policies[limit.policy].name == policy.name);
    own.map(|(place, limit)| {
        let (standing, refused) = (limit.decision.standing, !limit.decision.is_allowed());
        let terms = policy.limit(limit.limit).map(|of| of.terms_for(request));
        let held = decision.quota_of(limit, request);
        let quota = held.map(|(quota, _)| &**quota);
        let brought = held.is_some_and(|(_, brought)| brought);
        let of = policy.limit(limit.limit);
        let is_breaker = of.is_some_and(Limit::is_breaker);
        let level = decision.priority.level();
        let cohorts = quota
            .zip(of)
            .filter(|_| refused && !is_breaker)
            .and_then(|(quota, of)| cohorts_admitted(limit, quota, of.keep_for, level));
        LimitReason {
            limit: match terms {
                Some(_) if brought => "the check's own quota".to_owned(),
                Some(terms) => terms.label.clone(),
                None => String::new(),
            },
            result: match (refused, limit.binding) {
                (false, _) => "allowed",
                (true, true) => "DENIED",
                (true, false) if policy.mode == Mode::Enforce && !policy.is_shadow_limit(limit.limit) => {
                    match policy.over {
                        Over::Mark => "marked",
                        Over::Demote { .. } => "demoted",
                        Over::Deny | Over::Block { .. } => "would deny",
                    }
                }
                (true, false) => "would deny",
            },
            shadow_limit: policy.is_shadow_limit(limit.limit),
            canary: policy.is_canary(limit.limit),
            counts: if policy.limit(limit.limit).is_some_and(Limit::is_guard) { "places" } else { "units" },
            needs: (!limit.cost_is_unknown()).then(|| limit.cost.units()),
            has: standing.remaining,
            kept_back: limit.kept_back,
            of: standing.limit,
            retry: refused.then(|| limit.decision.retry().as_str()),
            retry_after_ms: if refused { limit.decision.retry().after().map(millis_up) } else { None },
            allowed_with: (refused && !is_breaker && !limit.cost_is_unknown())
                .then(|| allowed_with(limit, quota, of, decision.priority, left)),
            admitted_share: cohorts.map(|cohorts| f64::from(cohorts) / f64::from(Priority::COHORTS)),
            spared: !decision.allowed && !refused,
            binds: !decision.allowed && decision.binding == Some(place),
            word: quota.and_then(word).unwrap_or_default(),
            in_use: standing.limit.saturating_sub(standing.remaining).saturating_add(standing.debt),
            is_breaker,
            may_shed: of.is_some_and(Limit::sheds),
            shed: cohorts.map(|cohorts| (level.as_str(), cohorts)),
            place: limit.limit,
            breaker: None,
        }
    })
    .collect()
}

fn result(relevance: &Relevance, limits: &[LimitReason]) -> &'static str {
    if matches!(relevance, Relevance::DenyListed { .. } | Relevance::TooLate { .. }) {
        return "DENIED";
    }
    let mut own = limits.iter().filter(|limit| !limit.shadow_limit).peekable();
    if own.peek().is_none() {
        return "not charged";
    }
    own.map(|limit| limit.result).find(|result| *result != "allowed").unwrap_or("allowed")
}

/// Says why a policy charges a request or not. One that would charge it may not have been asked.
fn why(relevance: &Relevance, limits: &[LimitReason], decision: &GateDecision) -> String {
    match relevance {
        Relevance::Charged { .. } if limits.is_empty() && decision.refusal.is_some() => {
            "not charged: refused before any of its limits was asked".to_owned()
        }
        Relevance::Charged { cost_error: None, .. } if limits.is_empty() => {
            "not charged: none of its limits was asked".to_owned()
        }
        _ => relevance.to_string(),
    }
}

/// Returns the key of a request under a policy of this set in readable form: `client.ip=203.0.113.9`, or `(all)`.
#[must_use]
pub fn key_text(set: &PolicySet, policy: &Policy, request: &Descriptor<'_>) -> String {
    /// Room for an attribute of usual length and its value.
    const ROOM: usize = 64;
    let mut text = String::with_capacity(ROOM * policy.by.len().max(1));
    push_key_text(set, policy, request, &mut text);
    text
}

/// Appends a key to a text as [`key_text`] writes it, without an allocation of its own.
pub fn push_key_text(set: &PolicySet, policy: &Policy, request: &Descriptor<'_>, text: &mut String) {
    // By hand: it runs for each refusal, and the formatter takes ten times as many instructions.
    let mut comma = "";
    for (name, value) in policy.key_values(request, set.ipv6_prefix()) {
        let (sign, value) = value.as_deref().map_or((" ", "absent"), |value| ("=", value));
        [comma, name, sign, value].into_iter().for_each(|piece| text.push_str(piece));
        comma = ", ";
    }
    if comma.is_empty() {
        text.push_str("(all)");
    }
}

#[cfg(test)]
mod key_text_tests {
    use super::*;
    use crate::policy::{Access, Limit};
    use tidegate_limits::Quota;

    #[test]
    fn an_ipv6_address_is_the_network_that_is_the_key() {
        let mut policy = Policy::new("p", Limit::new(Quota::per_hour(1).sliding_log().unwrap(), "1/h"));
        policy.by = vec!["client.ip".to_owned(), "request.path".to_owned()];
        for (prefix, address, text) in [
            (64, "2001:db8:1:2:3::4", "client.ip=2001:db8:1:2::/64, request.path=/a"),
            (64, "[2001:db8:1:2:3::4]:80", "client.ip=2001:db8:1:2::/64, request.path=/a"),
            (48, "2001:db8:1:2:3::4", "client.ip=2001:db8:1::/48, request.path=/a"),
            (64, "::ffff:203.0.113.9", "client.ip=203.0.113.9, request.path=/a"),
            (64, "203.0.113.9", "client.ip=203.0.113.9, request.path=/a"),
            // In the form of the key's text, so that it can be used to name the key again.
            (64, "2001:db8:1:2::/64", "client.ip=2001:db8:1:2::/64, request.path=/a"),
        ] {
            let set = PolicySet::with(vec![policy.clone()], Access::default(), prefix).unwrap();
            let request = Descriptor::new().with("client.ip", address).with("request.path", "/x/../a");
            assert_eq!(key_text(&set, &set.policies()[0], &request), text);
        }
    }
}

#[cfg(test)]
mod tests;
