//! `CL.THROTTLE`: charges the caller's limit, and answers like redis-cell.

use std::time::Duration;

use tidegate::Cost;
use tidegate::limiter::{Rate, Retry};
use tidegate::policy::CALLER_LIMIT;
use tidegate::store::{Charge, Executed, Op};
use tidegate::visible::excerpt;

use super::protocol::Replies;
use super::redis;
use super::session::{RespDoor, Session, Written};
use crate::metrics::{Decided, RequestOutcome, Transport};
use crate::requests::InlineLimit;
use crate::span_attributes;

/// `CL.THROTTLE key max_burst count period [quantity]`
pub(super) async fn run(door: &RespDoor, session: &mut Session, words: &[&[u8]], replies: &mut Replies) {
    let (key, limit, quantity) = match *words {
        [_, key, burst, count, period] => (key, [burst, count, period], None),
        [_, key, burst, count, period, quantity] => (key, [burst, count, period], Some(quantity)),
        _ => return redis::wrong_number(words[0], replies),
    };
    let quantity = quantity.map_or(Ok(1), |written| number("quantity", written, 0));
    let quota = session.quota(limit, &door.quotas, || inline_limit(limit));
    let (quota, quantity) = match quota.and_then(|quota| Ok((quota, quantity?))) {
        Ok(read) => read,
        Err(what) => return replies.error("ERR", &what),
    };
    if key.len() > MAX_KEY {
        return replies.error("ERR", &format!("the key has {} bytes; use at most {MAX_KEY}", key.len()));
    }
    let mut own = smallvec::SmallVec::<[u8; 64]>::from_slice(&CALLER_LIMIT);
    own.extend_from_slice(key);
    // Declared here and passed by reference: it holds several charges, and moving it costs as much as deciding one.
    let mut executed = Executed::default();
    // 0 only looks.
    let (op, cost) = Cost::new(quantity).map_or((Op::Peek, Cost::ONE), |cost| (Op::Take, cost));
    let charge = Charge::new(&own, quota, cost);
    let decided = door.app.decider.deciding.execute_brought(op, charge, &mut executed).await;
    // A look is never refused.
    executed.allowed |= quantity == 0;
    span_attributes::note(|notes| {
        notes.outcome = Some(match decided {
            Ok(()) if executed.allowed => "allowed",
            Ok(()) => "denied",
            Err(_) => "error",
        });
    });
    if quantity > 0 {
        let (decision, outcome) = match decided {
            Ok(()) if executed.allowed => (Decided::allowed, RequestOutcome::allowed),
            Ok(()) => (Decided::denied, RequestOutcome::denied),
            // The client gets an error, and decides by itself.
            Err(_) => (Decided::error, RequestOutcome::invalid),
        };
        door.app.decider.metrics.throttled.count(decision);
        door.app.decider.metrics.requests.count(Transport::resp, outcome);
    }
    match decided {
        Ok(()) => answer(&executed, replies),
        Err(error) => replies.error("UNAVAILABLE", &error.to_string()),
    }
}

/// The longest key, in bytes, as for an attribute's value.
const MAX_KEY: usize = tidegate::policy::Descriptor::MAX_VALUE;

/// Parses the caller's limit.
///
/// # Errors
/// The number that is not valid, or out of range.
fn inline_limit([burst, count, period]: Written<'_>) -> Result<InlineLimit, String> {
    // redis-cell does not count the first request in `max_burst`.
    let burst = number("max_burst", burst, 0)?.checked_add(1).filter(|burst| *burst <= Rate::MAX_COUNT);
    let burst =
        burst.ok_or_else(|| format!("max_burst is out of range; use at most {}", Rate::MAX_COUNT - 1))?;
    Ok(InlineLimit { burst, count: number("count", count, 1)?, period: number("period", period, 1)? })
}

/// Parses a number, `least` or more.
fn number(name: &str, written: &[u8], least: u64) -> Result<u64, String> {
    match digits(written) {
        Some(number) if (least..=Rate::MAX_COUNT).contains(&number) => Ok(number),
        _ => {
            let shown = excerpt(&String::from_utf8_lossy(written));
            Err(format!("{name}: \"{shown}\" is not a whole number from {least} to {}", Rate::MAX_COUNT))
        }
    }
}

/// Parses digits without a detour by UTF-8: every command has up to four numbers.
fn digits(text: &[u8]) -> Option<u64> {
    /// This many digits fit 64 bits.
    const ALWAYS_FIT: usize = 19;
    let add = |number: u64, byte: &u8| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| number * 10 + u64::from(digit))
    };
    match text.len() {
        0 => None,
        1..=ALWAYS_FIT => text.iter().try_fold(0, add),
        // `str::parse` would accept a sign too.
        _ if text.iter().all(u8::is_ascii_digit) => str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Writes whether it is refused, the limit, what remains, the seconds until asking again (-1 if allowed, or if no
/// wait is long enough), and until the limit is full. Rounded up, as redis-cell has done since 2022.
fn answer(executed: &Executed, replies: &mut Replies) {
    let Some(line) = executed.lines.first() else {
        return replies.error("UNAVAILABLE", "the store has not decided");
    };
    let standing = &line.decision.standing;
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let seconds = |span: Duration| whole(span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)));
    let retry = match line.decision.retry() {
        _ if executed.allowed => -1,
        Retry::After(wait) => seconds(wait),
        Retry::Unknown => 1,
        // No wait is long enough for this quantity. redis-cell answers the same.
        Retry::Never => -1,
    };
    replies.five_integers([
        i64::from(!executed.allowed),
        whole(standing.limit),
        whole(standing.remaining),
        retry,
        seconds(standing.reset_after),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_alone_and_fit_64_bits() {
        for (text, number) in [
            ("0", Some(0)),
            ("1000000", Some(1_000_000)),
            ("9999999999999999999", Some(9_999_999_999_999_999_999)),
            ("18446744073709551615", Some(u64::MAX)),
            ("00000000000000000000000000000000000007", Some(7)),
            ("18446744073709551616", None),
            ("", None),
            ("+1", None),
            ("-1", None),
            ("1/", None),
            ("1:", None),
            ("+0000000000000000000000000000000000001", None),
        ] {
            assert_eq!(digits(text.as_bytes()), number, "{text}");
        }
    }
}
