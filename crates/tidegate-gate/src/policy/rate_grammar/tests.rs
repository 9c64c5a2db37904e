//! Tests of the grammar: the forms that it accepts, and the messages for those that it refuses.

use std::time::Duration;

use proptest::prelude::*;

use super::unit::UNITS;
use super::written_rate::MAX_PERIOD;
use super::*;

fn rate(text: &str) -> Result<WrittenRate, GrammarError> {
    text.parse()
}

#[test]
fn every_form_of_the_manual_is_read() {
    for (text, count, secs) in [
        ("100/s", 100, 1),
        ("60/min", 60, 60),
        ("3/h", 3, 3600),
        ("5/day", 5, 86_400),
        ("1/week", 1, 604_800),
        ("100/10min", 100, 600),
        ("1000/month", 1000, 2_592_000),
        ("1_000 / minute", 1000, 60),
        ("5k/2h", 5000, 7200),
        ("1/year", 1, 31_536_000),
        ("60/m", 60, 60),
        ("60/10m", 60, 600),
        ("5/2w", 5, 1_209_600),
        ("10/1h30min", 10, 5400),
        ("10/1.5h", 10, 5400),
        ("10/5 min", 10, 300),
        ("10/1d12h", 10, 129_600),
    ] {
        let rate = rate(text).unwrap();
        let WrittenRate::Per { count: have, .. } = rate else { panic!("{text} is limited") };
        assert_eq!((have, rate.period()), (count, Some(Duration::from_secs(secs))), "{text}");
    }
    assert_eq!(rate("Unlimited"), Ok(WrittenRate::Unlimited));
}

/// Formerly the grammar of a rate's period differed from that of spans: `1.5s` was read as a unit called ".5s".
#[test]
fn a_period_is_any_span() {
    for (text, prints) in [
        ("10/1h30min", "10/90min"),
        ("10/1.5s", "10/1500ms"),
        ("10/0.5s", "10/500ms"),
        ("10/1000us 1ns", "10/1000001ns"),
        ("10/2h0s", "10/2h"),
    ] {
        assert_eq!(rate(text).unwrap().to_string(), prints, "{text}");
    }
    let says = |text: &str| rate(text).unwrap_err().to_string();
    assert_eq!(says("10/90"), "\"90\" has no unit; write 90ms, 90s or 90min");
    assert_eq!(says("10/1h30"), "\"1h30\" is not a span of time; write 200ms, 10s or 1h30min");
    assert_eq!(says("10/0h0s"), "\"10/0h0s\" has a period of 0; write 10/s, or 10/10s for ten of those");
}

#[test]
fn what_could_be_two_things_is_refused() {
    let says = |text: &str| rate(text).unwrap_err().to_string();
    assert_eq!(says("60/M"), "\"M\" could be minute or month; write min or month");
    assert_eq!(says("60/10M"), "\"M\" could be minute or month; write min or month");
    assert_eq!(says("0.5r/M"), "\"0.5r\" is not a whole number from 1 to 2^60");
    assert_eq!(says("100"), "\"100\" does not say per what; write 100/s, 100/min or 100/day");
    assert_eq!(
        says("5/fortnight"),
        "unknown unit \"fortnight\"; use ns, us, ms, s, min, h, day, week, month or year"
    );
    assert_eq!(says("0"), "\"0\" lets nothing pass; use 1 or more, or access.deny to refuse everyone");
    assert_eq!(says("0/s"), "\"0/s\" lets nothing pass; use 1 or more, or access.deny to refuse everyone");
    assert_eq!(says("-1/s"), "\"-1\" is not a whole number from 1 to 2^60");
    assert_eq!(says("1/0s"), "\"1/0s\" has a period of 0; write 1/s, or 1/10s for ten of those");
    assert_eq!(says("1/200year"), "\"1/200year\" is longer than 146 years");
}

/// Formerly the error for `10rps` proposed `10rps/s`, and that for nginx's `10r/s` called "10r" not a number.
#[test]
fn rates_of_other_systems_are_told_how_they_are_written_here() {
    for (text, write) in [
        ("10r/s", "10/s"),
        ("300-M", "300/min"),
        ("5/mo", "5/month"),
        ("10kb/s", "10000/s"),
        ("10M/min", "10000000/min"),
        ("10 r/s", "10/s"),
        ("10r/m", "10/min"),
        ("0.5/m", "1/2min"),
        ("10R/S", "10/s"),
        ("100r/10min", "100/10min"),
        ("5 requests/hour", "5/h"),
        ("10 req per min", "10/min"),
        ("10 per second", "10/s"),
        ("10rps", "10/s"),
        ("10 qps", "10/s"),
        ("600rpm", "600/min"),
        ("5rpd", "5/day"),
        ("0.5/s", "1/2s"),
        (".5r/s", "1/2s"),
        ("1.5/s", "3/2s"),
        ("2.0/min", "2/min"),
        ("0.5rps", "1/2s"),
        ("1.25/10s", "5/40s"),
    ] {
        let expected = format!("\"{text}\" is not how a rate is written here; write {write}");
        assert_eq!(rate(text).unwrap_err().to_string(), expected);
        assert!(rate(write).is_ok(), "{write}");
    }
    for (text, says) in [
        ("fast", "\"fast\" is not a rate; write 100/s, 60/min or unlimited"),
        ("10ps", "\"10ps\" is not a rate; write 100/s, 60/min or unlimited"),
        ("0.0/s", "\"0.0\" is not a whole number from 1 to 2^60"),
        ("1.5.5/s", "\"1.5.5\" is not a whole number from 1 to 2^60"),
        ("0.1234567890/s", "\"0.1234567890\" is not a whole number from 1 to 2^60"),
    ] {
        assert_eq!(rate(text).unwrap_err().to_string(), says);
    }
}

#[test]
fn spans_are_sums() {
    let nanos = |text: &str| span(text).unwrap().as_nanos();
    assert_eq!(nanos("200ms"), 200_000_000);
    assert_eq!(nanos("0s"), 0);
    assert_eq!(nanos("1h 30 min"), 5_400_000_000_000);
    assert_eq!(nanos("1h30m"), nanos("1.5h"));
    assert_eq!(nanos("1m30.5s"), 90_500_000_000);
    assert_eq!(nanos("1.234567ms"), 1_234_567);
    assert_eq!([nanos("1\u{b5}s"), nanos("1\u{3bc}s"), nanos("1000ns")], [1000; 3]);
    assert_eq!(nanos("2W 1d"), nanos("15 days"));
    assert_eq!(nanos("1_000s"), 1_000_000_000_000);
}

/// Each error says what would work. Formerly `m` was refused here, but was a minute in flags, whose grammar was
/// another.
#[test]
fn a_span_that_cannot_be_read_says_what_can() {
    for (text, says) in [
        ("", "\"\" is not a span of time; write 200ms, 10s or 1h30min"),
        ("10", "\"10\" has no unit; write 10ms, 10s or 10min"),
        ("s", "\"s\" is not a span of time; write 200ms, 10s or 1h30min"),
        ("10s5", "\"10s5\" is not a span of time; write 200ms, 10s or 1h30min"),
        ("-1s", "\"-1s\" is not a span of time; write 200ms, 10s or 1h30min"),
        (
            "1.s",
            "\"1.\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
        ),
        (
            "1.5ns",
            "\"1.5\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
        ),
        (
            "1.0000000001s",
            "\"1.0000000001\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
        ),
        (
            ".5s",
            "\".5\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
        ),
        ("10M", "\"M\" could be minute or month; write min or month"),
        ("1 fortnight", "unknown unit \"fortnight\"; use ns, us, ms, s, min, h, day, week, month or year"),
        ("147y", "\"147y\" is longer than 146 years"),
        ("99999999999999 year", "\"99999999999999 year\" is longer than 146 years"),
        ("100y 100y", "\"100y 100y\" is longer than 146 years"),
    ] {
        assert_eq!(span(text).unwrap_err().to_string(), says, "{text}");
    }
}

proptest! {
    #[test]
    fn a_printed_rate_reads_back(count in 1..=tidegate_core::Rate::MAX_COUNT, times in 1..200_u64, unit in 0..UNITS.len()) {
        let rate = WrittenRate::Per { count, times, unit: UNITS[unit].0 };
        prop_assume!(rate.period().is_some());
        prop_assert_eq!(rate.to_string().parse(), Ok(rate));
    }

    #[test]
    fn every_spelling_of_a_unit_is_read(number in 1..100_u32, unit in 0..UNITS.len()) {
        let (unit, names) = UNITS[unit];
        prop_assume!(unit.length() * number < MAX_PERIOD);
        for name in names {
            prop_assert_eq!(span(&format!("{number}{name}")), Ok(unit.length() * number));
            prop_assert_eq!(rate(&format!("5/{number} {name}")).map(WrittenRate::period), Ok(Some(unit.length() * number)));
        }
    }

    #[test]
    fn no_text_panics(text in ".{0,40}") {
        let _ = rate(&text);
        let _ = span(&text);
    }
}
