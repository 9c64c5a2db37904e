//! Says why a breaker refuses: a service fails, it is being tried, or a person has forced the breaker open.

use std::time::Duration;

use tidegate_core::breaker::{Condition, Force};
use tidegate_core::{Retry, Standing};

use tidegate_limits::duration_text::in_words;
use tidegate_limits::store::BreakerView;
use tidegate_limits::visible;

/// Describes the refusal by a breaker of `policy`: the policy's name in quotes, and by what it counts. `seen` is the
/// breaker's state, read after the refusal; without it, or if it has changed since, only what holds in each case is said.
/// `ttl` is the time after which the place of a probe is free again although nobody has reported its end.
pub(super) fn detail(
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
            let free = unreported("it", ttl);
            format!(
                "tries the service with 1 call at a time, and that one is under way; a place is free again when {free}"
            )
        }
        (Some((Condition::HalfOpen { in_flight, at_most, .. }, _)), _) if in_flight >= at_most => {
            let free = unreported("one", ttl);
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
fn unreported(probe: &str, ttl: Option<Duration>) -> String {
    let after = |ttl| format!(", or {} after it began if nobody reports the end", in_words(ttl));
    format!("{probe} ends{}", ttl.map(after).unwrap_or_default())
}
