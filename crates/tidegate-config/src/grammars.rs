//! Grammars of single keys: how their values are parsed and how invalid ones are reported.

use std::time::Duration;

use tidegate_core::Criticality;
use tidegate_core::breaker::{Evaluate, Window};

use tidegate_gate::policy::{Condition, Portion, span, whole_number};
use tidegate_limits::priority::Kept;

#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) reads: fn(&str) -> bool,
    /// The end of an error message that begins with the text.
    pub(super) expected: &'static str,
    /// Valid values.
    pub(super) examples: &'static [&'static str],
}

pub(super) const WINDOW: Grammar = Grammar {
    reads: |text| window(text).is_some(),
    expected: "is neither a time as 10s nor a number of calls as 100 calls",
    examples: &["10s", "100 calls"],
};

pub(super) const FAILURES: Grammar = Grammar {
    reads: |text| failures(text).is_some(),
    expected: "is neither a share of the calls, 1% to 100%, nor a number of failures, 1 to 16384",
    examples: &["50%", "20"],
};

pub(super) const OPEN_FOR: Grammar = Grammar {
    reads: |text| open_for(text).is_some(),
    expected: "is neither a span of time as 5s nor two as 5s..60s",
    examples: &["5s", "5s..60s"],
};

pub(super) const SHARE: Grammar = Grammar {
    reads: |text| share(text).is_some(),
    expected: "is not a share; use 0% to 100%",
    examples: &["50%"],
};

/// A share of the calls that may be slow. `0%` is read, so that its error can say why it makes no sense.
pub(super) const SLOW: Grammar =
    Grammar { expected: "is not a share; use 1% to 100%", reads: SHARE.reads, examples: SHARE.examples };

pub(super) const FACTOR: Grammar = Grammar {
    reads: |text| factor(text).is_some(),
    expected: "is not a factor; use 1 to 1000, as 1.5",
    examples: &["2", "1.5"],
};

pub(super) const OVER: Grammar = Grammar {
    reads: |text| matches!(text, "deny" | "wait" | "mark") || block(text).is_some() || demote(text).is_some(),
    expected: "is not deny, wait, mark, demote, demote to a level as demote to sheddable, or block with a time of up to 30d as block 10min",
    examples: &["deny", "wait", "mark", "demote", "demote to sheddable", "block 10min"],
};

pub(super) const KEY_SHARE: Grammar = Grammar {
    reads: |text| portion(text).is_some_and(|share| (0.001..=0.5).contains(&share.as_f64())),
    expected: "is not a share of the keys; use 0.1% to 50%, as 5%",
    examples: &["5%", "0.5%"],
};

pub(super) const MORE: Grammar = Grammar {
    reads: |text| more(text).is_some(),
    expected: "is not how much more; use +0.01% to +100%, as +1%",
    examples: &["+1%"],
};

pub(super) const KEYS_HELD: Grammar = Grammar {
    reads: |text| keys_held(text).is_some(),
    expected: "is not a number of keys; use 1 to 4294967296, or as 1000000 in full",
    examples: &["1000000", "500k in full"],
};

pub(super) const TOPOLOGY: Grammar = Grammar {
    reads: |text| matches!(text, "single" | "cluster") || master(text).is_some(),
    expected: "is not single, cluster, or sentinel with the name that the sentinels have for the master, as sentinel mymaster",
    examples: &["single", "cluster", "sentinel mymaster"],
};

pub(super) const SWITCH_NAME: Grammar = Grammar {
    reads: |text| Condition::switched_off(text).is_ok(),
    expected: "is not a name of a switch; use 1 to 64 letters, digits, `-`, `_` or `.`",
    examples: &["previews"],
};

/// Parses `block 10min`: more than no time, and 30 days at most.
pub(super) fn block(text: &str) -> Option<Duration> {
    let lasts = text.strip_prefix("block").filter(|rest| rest.starts_with(' '))?;
    let lasts = span(lasts.trim()).ok()?;
    (Duration::ZERO < lasts && lasts <= Duration::from_secs(30 * 86_400)).then_some(lasts)
}

/// Parses `500k`, or `500k in full`: a number of keys, and whether they are kept in full.
pub(super) fn keys_held(text: &str) -> Option<(u64, bool)> {
    let (number, full) = match text.strip_suffix(" in full") {
        Some(number) => (number.trim_end(), true),
        None => (text, false),
    };
    let number = whole_number(number).ok()?;
    (1..=1 << 32).contains(&number).then_some((number, full))
}

/// Parses `sentinel mymaster` into the name of the master.
pub(super) fn master(text: &str) -> Option<&str> {
    let name = text.strip_prefix("sentinel")?.strip_prefix(' ')?.trim();
    (!name.is_empty() && !name.contains(char::is_whitespace)).then_some(name)
}

/// Parses `demote`, which is one level below the request's own, or `demote to sheddable`.
pub(super) fn demote(text: &str) -> Option<Option<Criticality>> {
    match text.strip_prefix("demote")? {
        "" => Some(None),
        level => level.strip_prefix(" to ")?.trim().parse().ok().map(Some),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenWindow {
    Calls(u32),
    Time(Duration),
}

/// Parses `100 calls` or `10s`.
pub(super) fn window(text: &str) -> Option<WrittenWindow> {
    let text = text.trim();
    match text.strip_suffix("calls").or_else(|| text.strip_suffix("call")) {
        Some(calls) => u32::try_from(whole_number(calls.trim()).ok()?).ok().map(WrittenWindow::Calls),
        None => span(text).ok().map(WrittenWindow::Time),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Failures {
    Share(f64),
    Count(u32),
}

/// Parses `50%` or `20`.
pub(super) fn failures(text: &str) -> Option<Failures> {
    let text = text.trim();
    if text.ends_with('%') {
        return percent(text).map(|percent| Failures::Share(f64::from(percent) / 100.0));
    }
    let count = u32::try_from(whole_number(text).ok()?).ok()?;
    (1..=Window::MAX_CALLS).contains(&count).then_some(Failures::Count(count))
}

/// Parses `5s`, or `5s..60s`: the first open time, and the longest.
pub(super) fn open_for(text: &str) -> Option<(Duration, Option<Duration>)> {
    match text.split_once("..") {
        Some((first, longest)) => Some((span(first.trim()).ok()?, Some(span(longest.trim()).ok()?))),
        None => Some((span(text.trim()).ok()?, None)),
    }
}

/// Parses `0%` to `100%` into a fraction.
pub(super) fn share(text: &str) -> Option<f64> {
    let text = text.trim();
    let percent = match text.strip_suffix('%')?.trim() {
        "0" => 0,
        _ => percent(text)?,
    };
    Some(f64::from(percent) / 100.0)
}

/// Parses a decimal number from 1 to 1000, such as `1.5`.
pub(super) fn factor(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let factor: f64 = text.parse().ok().filter(|_| is_plain)?;
    (1.0..=1000.0).contains(&factor).then_some(factor)
}

/// Parses `each-call`, `each-failure` or `500ms`.
pub(super) fn evaluate(text: &str) -> Option<Evaluate> {
    match text {
        "each-call" => Some(Evaluate::EachCall),
        "each-failure" => Some(Evaluate::EachFailure),
        _ => span(text).ok().map(Evaluate::Every),
    }
}

/// Parses `5min`; `Some(None)` for `never`.
pub(super) fn forget(text: &str) -> Option<Option<Duration>> {
    match text {
        "never" => Some(None),
        _ => span(text).ok().map(Some),
    }
}

/// Parses a percentage from `1%` to `100%`.
pub(super) fn percent(text: &str) -> Option<u8> {
    let number: u8 = text.strip_suffix('%')?.trim().parse().ok()?;
    (1..=100).contains(&number).then_some(number)
}

/// Parses `5%` or `0.25%`: at most 100%, with up to four decimals.
pub(super) fn portion(text: &str) -> Option<Portion> {
    let number = text.trim().strip_suffix('%')?.trim_end();
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let percent: f64 = number.parse().ok().filter(|_| is_plain && decimals <= 4)?;
    (percent <= 100.0).then(|| Portion::of(percent / 100.0))
}

/// Parses `+1%`, also without its sign.
pub(super) fn more(text: &str) -> Option<Portion> {
    let text = text.trim();
    let more = portion(text.strip_prefix('+').unwrap_or(text))?;
    (more.as_f64() >= 0.0001).then_some(more)
}

/// Parses a percentage (`0%` to `100%`) or a number of units.
pub(super) fn kept(text: &str) -> Option<Kept> {
    match text.trim_end().strip_suffix('%') {
        Some(number) if number.trim() == "0" => Some(Kept::Percent(0)),
        Some(_) => percent(text.trim_end()).map(Kept::Percent),
        None => whole_number(text).ok().map(Kept::Units),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_failures_and_factors_are_read() {
        assert_eq!(window("100 calls"), Some(WrittenWindow::Calls(100)));
        assert_eq!(window("1 call"), Some(WrittenWindow::Calls(1)));
        assert_eq!(window("10s"), Some(WrittenWindow::Time(Duration::from_secs(10))));
        assert_eq!(
            (failures("50%"), failures("20")),
            (Some(Failures::Share(0.5)), Some(Failures::Count(20)))
        );
        assert_eq!((share("0%"), share("100 %"), factor("1.5")), (Some(0.0), Some(1.0), Some(1.5)));
        assert_eq!(
            (forget("never"), evaluate("500ms")),
            (Some(None), Some(Evaluate::Every(Duration::from_millis(500))))
        );
    }

    #[test]
    fn portions_are_read_exactly() {
        let read = [("5%", 0.05), ("0.25 %", 0.0025), ("100%", 1.0), ("0%", 0.0), ("33.3333%", 0.333_333)];
        for (text, share) in read {
            assert_eq!(portion(text).map(Portion::as_f64), Some(share), "{text:?}");
        }
        assert_eq!((more("+1%"), more("2.5%")), (Some(Portion::of(0.01)), Some(Portion::of(0.025))));
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "calls", "-1 calls", "10", "99999999999 calls", "calls 5"] {
            assert_eq!(window(text), None, "{text:?}");
        }
        for text in ["0", "0%", "101%", "half", "99999"] {
            assert_eq!(failures(text), None, "{text:?}");
        }
        for text in ["0.9", "1e3", "inf", "NaN", "1001", "+2", "1.2.3", "."] {
            assert_eq!(factor(text), None, "{text:?}");
        }
        assert_eq!((share("101%"), share("50")), (None, None));
        for text in ["5", "%", "-1%", "+5%", "1e1%", "100.1%", "0.00001%", "."] {
            assert_eq!(portion(text), None, "{text:?}");
        }
        assert_eq!(["+0%", "0.001%", "++1%", "1"].map(more), [None; 4]);
    }
}
