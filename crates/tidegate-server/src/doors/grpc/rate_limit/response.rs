//! Writes one status for each descriptor, from which a proxy makes its headers.

use std::borrow::Cow;
use std::time::Duration;

use tidegate::gate::{GateDecision, LimitDecision};
use tidegate::limiter::Retry;

use super::super::envoy::{DescriptorStatus, RateLimit, RateLimitCode, RateLimitResponse, Unit};
use super::descriptors::{CallDescriptor, Refused, Units};
use crate::active_config::Facts;
use crate::decider::Conclusion;

/// Answers a call whose limits were not asked, since some descriptors are refused whatever their limits say.
pub(super) fn refused(descriptors: &[CallDescriptor<'_>]) -> RateLimitResponse {
    let status = |descriptor: &CallDescriptor<'_>| DescriptorStatus {
        code: code(descriptor.refused.is_none()),
        current_limit: (descriptor.refused == Some(Refused::NothingGranted)).then(RateLimit::default),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: code(false),
        statuses: descriptors.iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

/// Answers a decided call. `facts`: those of the policies that a conclusion was made under.
pub(super) fn decided<'l>(
    descriptors: &[CallDescriptor<'_>],
    conclusions: &[Conclusion],
    allowed: bool,
    facts: impl Fn(&Conclusion) -> Cow<'l, [Facts]>,
) -> RateLimitResponse {
    let status = |(at, descriptor): (usize, &CallDescriptor<'_>)| {
        // If none could be decided, there is one conclusion for all.
        match conclusions.get(at).or(conclusions.first()) {
            Some(conclusion @ Conclusion::Decided(decision)) => {
                status(decision, descriptor, &facts(conclusion))
            }
            Some(Conclusion::Unsettled { allowed, .. }) => {
                DescriptorStatus { code: code(*allowed), ..DescriptorStatus::default() }
            }
            None => DescriptorStatus { code: code(allowed), ..DescriptorStatus::default() },
        }
    };
    RateLimitResponse {
        overall_code: code(allowed),
        statuses: descriptors.iter().enumerate().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

fn status(decision: &GateDecision, descriptor: &CallDescriptor<'_>, facts: &[Facts]) -> DescriptorStatus {
    // If another descriptor refuses, this one may not be evaluated completely; that is no refusal.
    let refuses = refuses(decision, descriptor);
    let mut status = DescriptorStatus { code: code(!refuses), ..DescriptorStatus::default() };
    let Some(limit) = shown(decision) else { return status };
    let standing = limit.decision.standing;
    let quota = decision.quota_of(limit, &descriptor.request).map(|(quota, _)| quota);
    let window = quota.and_then(|quota| facts[limit.policy].window(quota, decision.at));
    status.current_limit = Some(RateLimit {
        name: decision.policies.policies()[limit.policy].name.clone(),
        requests_per_unit: whole(standing.limit),
        unit: unit(window) as i32,
    });
    status.limit_remaining = whole(limit.remaining().min(standing.limit));
    let wait = match limit.decision.retry() {
        // No wait is long enough for these units, but after that others may pass.
        Retry::Never => Some(standing.reset_after),
        _ if limit.decision.is_allowed() => Some(standing.reset_after),
        retry => retry.after(),
    };
    // Limits without a window, such as places, have no number of seconds after which they reset.
    status.duration_until_reset = wait.filter(|_| window.is_some()).map(seconds_up);
    status
}

/// The limit that a status tells: the one that binds. If all are shadow limits, the one over its limit, else the one
/// with least remaining: a trial shows what it would do, as rules in shadow mode of envoyproxy/ratelimit do.
fn shown(decision: &GateDecision) -> Option<&LimitDecision> {
    match decision.binding {
        Some(at) => decision.limits.get(at),
        None => decision.limits.iter().min_by_key(|limit| (limit.decision.is_allowed(), limit.remaining())),
    }
}

/// Returns whether a descriptor refuses the call. Giving back never does, however full the limits are.
pub(super) fn refuses(decision: &GateDecision, descriptor: &CallDescriptor<'_>) -> bool {
    let refuses = decision.refusal.is_some() || decision.refusing().next().is_some();
    refuses && !matches!(descriptor.units, Units::GiveBack(_))
}

fn code(allowed: bool) -> i32 {
    if allowed { RateLimitCode::Ok as i32 } else { RateLimitCode::OverLimit as i32 }
}

/// Returns the unit of a limit whose window has this many seconds; unknown if no unit has that length.
fn unit(seconds: Option<u64>) -> Unit {
    const DAY: u64 = 86_400;
    // Days and months differ in length, also where clocks are changed.
    const HOURS_23: u64 = 23 * 3600;
    const HOURS_25: u64 = 25 * 3600;
    match seconds {
        Some(1) => Unit::Second,
        Some(60) => Unit::Minute,
        Some(3600) => Unit::Hour,
        Some(HOURS_23 | DAY | HOURS_25) => Unit::Day,
        Some(604_800) => Unit::Week,
        Some(days) if (28 * DAY - 3600..=31 * DAY + 3600).contains(&days) => Unit::Month,
        Some(days) if (365 * DAY..=366 * DAY).contains(&days) => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Rounded up: a client that returns after these seconds must not be refused again.
fn seconds_up(span: Duration) -> prost_types::Duration {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    // The message allows 10,000 years at most.
    prost_types::Duration { seconds: seconds.min(315_576_000_000) as i64, nanos: 0 }
}

fn whole(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_in_the_unit_that_it_is() {
        for (seconds, named) in [
            (1, Unit::Second),
            (60, Unit::Minute),
            (3600, Unit::Hour),
            (86_400, Unit::Day),
            (604_800, Unit::Week),
            (28 * 86_400, Unit::Month),
            (31 * 86_400, Unit::Month),
            (365 * 86_400, Unit::Year),
            (2, Unit::Unknown),
            (600, Unit::Unknown),
            (27 * 86_400, Unit::Unknown),
        ] {
            assert_eq!(unit(Some(seconds)), named, "{seconds}");
        }
        assert_eq!(unit(None), Unit::Unknown);
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(seconds_up(Duration::from_nanos(1)).seconds, 1);
        assert_eq!(seconds_up(Duration::from_secs(2)).seconds, 2);
        assert_eq!(seconds_up(Duration::MAX).seconds, 315_576_000_000);
    }
}
