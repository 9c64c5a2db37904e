//! Says why a breaker or a limit refuses, in words.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_core::breaker::{Condition, Force};
use tidegate_core::{Criticality, Quota, Retry, Standing};

use super::super::json::push_number;
use crate::gate::LimitDecision;
use crate::policy::{CostRule, Limit, Policy};
use tidegate_limits::duration_text::in_words;
use tidegate_limits::store::BreakerView;
use tidegate_limits::visible;

/// More than most sentences take, in bytes.
pub(super) const USUAL: usize = 160;

/// Describes the refusal by a breaker of `policy`: the policy's name in quotes, and by what it counts. `seen` is the
/// breaker's state, read after the refusal; without it, or if it has changed since, only what holds in each case is said.
/// `ttl` is the time after which the place of a probe is free again although nobody has reported its end.
pub(super) fn of_breaker(
    policy: &str,
    sheds: bool,
    ttl: Option<Duration>,
    retry: Retry,
    standing: &Standing,
    seen: Option<&BreakerView>,
) -> String {
    let again = match retry {
        Retry::After(wait) => format!("try again in {}", in_words(wait)),
        _ => "try again later".to_owned(),
    };
    let why = match (seen.map(|seen| (seen.condition, seen)), retry) {
        // If its end does not fit the answer, the state has changed since.
        (Some((Condition::Forced { to: Force::Open, until }, seen)), retry)
            if until.is_some() == matches!(retry, Retry::After(_)) =>
        {
            let until = if until.is_none() { ", without an end" } else { "" };
            let reason = seen.forced.as_ref().map_or("", |forced| forced.reason());
            let reason =
                if reason.is_empty() { String::new() } else { format!(": {}", visible::line(reason)) };
            format!("is forced open by a person{until}{reason}")
        }
        (Some((Condition::HalfOpen { in_flight: 1.., at_most: 1, .. }, _)), _) => {
            let free = unreported_probe("it", ttl);
            format!(
                "tries the service with 1 call at a time, and that one is under way; a place is free again when {free}"
            )
        }
        (Some((Condition::HalfOpen { in_flight, at_most, .. }, _)), _) if in_flight >= at_most => {
            let free = unreported_probe("one", ttl);
            format!(
                "tries the service with {at_most} calls at a time, and all of them are under way; a place is free again \
                 when {free}"
            )
        }
        (Some((Condition::Open { by: Some(figure), .. }, _)), Retry::After(_)) => {
            format!("is open, since the service behind it fails ({figure})")
        }
        (_, Retry::After(_)) => "is open".to_owned(),
        (Some((Condition::Shedding { by: figure, .. }, _)), Retry::Unknown) => {
            format!("refuses a share of the calls, since the service behind it fails ({figure})")
        }
        (_, Retry::Unknown) if sheds && standing.reset_after != Duration::MAX => {
            "refuses a share of the calls, since the service behind it fails".to_owned()
        }
        _ => "lets no call through now: it tries the service, or a person has forced it open".to_owned(),
    };
    format!("the breaker of policy {policy} {why}; {again}")
}

/// Says when the place of a probe is free again.
fn unreported_probe(probe: &str, ttl: Option<Duration>) -> String {
    let after = |ttl| format!(", or {} after it began if nobody reports the end", in_words(ttl));
    format!("{probe} ends{}", ttl.map(after).unwrap_or_default())
}

// Says which limit refuses, for which key, what is left, and what the caller can do.

/// Describes the refusal by a limit that is no breaker. `needed` is the lowest priority that passes, if the limit refuses
/// any cost for its priority.
pub(super) fn of_limit(
    policy: &Policy,
    bound: &LimitDecision,
    retry: Retry,
    needed: Option<Criticality>,
) -> String {
    let (name, key) = (&policy.name, || this_key(policy));
    let (cost, standing) = (bound.cost, bound.decision.standing);
    let (kept, comma) = match bound.kept_back {
        0 => (String::new(), ""),
        units => (format!(", {units} kept for higher priority"), ","),
    };
    match (retry, needed) {
        // By hand, as it is the usual refusal.
        (Retry::After(wait), _) => {
            let mut text = String::with_capacity(USUAL);
            text.push_str("policy ");
            push_quoted(name, &mut text);
            text.push_str(" has ");
            push_number(standing.remaining, &mut text);
            text.push_str(" of ");
            push_number(standing.limit, &mut text);
            text.push_str(" left");
            push_this_key(policy, &mut text);
            [&*kept, comma, " and "].into_iter().for_each(|piece| text.push_str(piece));
            push_number(cost.units(), &mut text);
            text.push_str(" asked for; try again in ");
            text.push_str(&in_words(wait));
            text
        }
        (Retry::Unknown, _) if policy.limit(bound.limit).is_some_and(Limit::is_guard) => format!(
            "policy {name:?} has {} of {} places free{}{kept}{comma} and {cost} asked for; a place is free again when \
             work in flight ends{}",
            standing.remaining,
            standing.limit,
            key(),
            policy.limit(bound.limit).map(unreported).unwrap_or_default(),
        ),
        (Retry::Unknown, _) => format!(
            "policy {name:?} has no room for {cost} now{}{kept}, for an unknown time; try again later",
            key()
        ),
        (Retry::Never, _) if bound.cost_is_unknown() && policy.cost.is_some() => {
            let needs = policy.cost.as_ref().map(needs).unwrap_or_default();
            format!("policy {name:?} cannot work out what this request costs{needs}")
        }
        (Retry::Never, Some(level)) => format!(
            "policy {name:?} keeps all {} of its limit for priority {level} and above, so it grants nothing to this request; \
             ask with priority {level}",
            standing.limit
        ),
        (Retry::Never, None) => format!(
            "policy {name:?} never grants a cost of {cost}: its limit is {}{kept}; ask for less at a time",
            standing.limit
        ),
    }
}

/// Names the policy, and whose breaker of it is meant.
pub(super) fn named(policy: &Policy) -> String {
    format!("{:?}{}", policy.name, this_key(policy))
}

/// Appends a name in quotes, as the formatter writes it, which looks at each character.
pub(super) fn push_quoted(name: &str, text: &mut String) {
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        text.push('"');
        text.push_str(name);
        text.push('"');
    } else {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name:?}");
    }
}

/// Says by which attributes the limit counts, such as ` for this client.ip`; empty if all requests share one limit. The
/// values are left out: the caller knows them, and logs need not contain them.
fn this_key(policy: &Policy) -> String {
    let mut text = String::new();
    push_this_key(policy, &mut text);
    text
}

fn push_this_key(policy: &Policy, text: &mut String) {
    let mut before = " for this ";
    for name in &policy.by {
        text.push_str(before);
        text.push_str(name);
        before = " and ";
    }
}

/// Says what a request must have for its cost to be known.
fn needs(cost: &CostRule) -> String {
    match cost {
        CostRule::Attribute(name) => format!("; send {name}, a number of 0 or more"),
        #[cfg(feature = "cel")]
        CostRule::Expression(expression) => {
            let names: Vec<&str> = expression.names().collect();
            format!("; it is computed from {}", names.join(", "))
        }
        _ => String::new(),
    }
}

/// Says when a place is free again whose work ends unreported; empty if never.
fn unreported(limit: &Limit) -> String {
    let after = |ttl| format!(", or {} after it was taken if nobody reports the end", in_words(ttl));
    time_to_live(limit).map(after).unwrap_or_default()
}

/// Returns the time after which a place, or the place of a probe, is free again although nobody has reported the end.
pub(super) fn time_to_live(limit: &Limit) -> Option<Duration> {
    match limit.terms.quota.as_deref()? {
        Quota::Concurrency(places) => places.time_to_live(),
        Quota::Adaptive(places) => places.time_to_live(),
        Quota::Breaker(breaker) => breaker.time_to_live(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Tick;

    use crate::http_answer::server_parts::Refusal;
    use crate::policy::PolicySet;
    use crate::{Descriptor, Gate};
    use tidegate_limits::ManualClock;

    use super::*;

    /// Refuses the second of two requests of one user.
    fn told(quota: Quota, by: &[&str]) -> String {
        let mut policy = Policy::new("each", Limit::new(quota, "one"));
        policy.by = by.iter().map(|name| (*name).to_owned()).collect();
        let set = PolicySet::new(vec![policy]).unwrap();
        let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
        let request = Descriptor::new().with("user.id", "ann").with("client.ip", "203.0.113.9");
        assert!(gate.check(&request).now().unwrap().allowed);
        let decision = gate.check(&request).now().unwrap();
        let refusal = Refusal::of_gate(&decision);
        refusal.problem(refusal.status(), None).detail
    }

    #[test]
    fn names_are_quoted_as_by_the_formatter() {
        for name in ["", "per-ip", "a b~!'", "a\"b", "a\\b", "a\nb", "a\u{7f}b", "é", "\u{200b}"] {
            let mut text = String::new();
            push_quoted(name, &mut text);
            assert_eq!(text, format!("{name:?}"));
        }
    }

    #[test]
    fn a_refusal_says_by_what_the_limit_counts_and_not_the_value() {
        let minute = || Quota::per_minute(1).gcra().unwrap();
        let wait = "and 1 asked for; try again in 60 s";
        assert_eq!(told(minute(), &[]), format!("policy \"each\" has 0 of 1 left {wait}"));
        assert_eq!(
            told(minute(), &["user.id", "client.ip"]),
            format!("policy \"each\" has 0 of 1 left for this user.id and client.ip {wait}")
        );
    }

    #[test]
    fn a_refusal_for_places_says_when_a_place_comes_back_by_itself() {
        let places = Quota::concurrency(1, Duration::from_secs(30)).unwrap();
        assert_eq!(
            told(places, &["user.id"]),
            "policy \"each\" has 0 of 1 places free for this user.id and 1 asked for; a place is free again when work in \
             flight ends, or 30 s after it was taken if nobody reports the end"
        );
    }
}
