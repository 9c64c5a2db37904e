//! What the grammar reads, and what it says of what it does not.

use proptest::prelude::*;

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
    ] {
        let rate = rate(text).unwrap();
        let WrittenRate::Per { count: have, .. } = rate else { panic!("{text} is limited") };
        assert_eq!((have, rate.period()), (count, Some(Duration::from_secs(secs))), "{text}");
    }
    assert_eq!(rate("Unlimited"), Ok(WrittenRate::Unlimited));
}

#[test]
fn what_could_be_two_things_is_refused() {
    let says = |text: &str| rate(text).unwrap_err().to_string();
    assert_eq!(says("60/m"), "\"m\" could be minute or month; write min or month");
    assert_eq!(says("60/10m"), "\"m\" could be minute or month; write min or month");
    assert_eq!(says("100"), "\"100\" does not say per what; write 100/s, 100/min or 100/day");
    assert_eq!(
        says("5/fortnight"),
        "unknown unit \"fortnight\"; use ms, s, min, h, day, week, month or year"
    );
    assert_eq!(says("0/s"), "\"0/s\" lets nothing pass; use 1 or more, or access.deny to refuse everyone");
    assert_eq!(says("-1/s"), "\"-1\" is not a whole number from 1 to 2^60");
    assert_eq!(says("1/0s"), "\"0\" is not a whole number from 1 to 2^60");
    assert_eq!(says("1/200year"), "\"1/200year\" is longer than 146 years");
}

/// `10rps` was told to write `10rps/s`, and `10r/s`, as nginx has it, that "10r" is no number.
#[test]
fn rates_of_other_systems_are_told_how_they_are_written_here() {
    for (text, write) in [
        ("10r/s", "10/s"),
        ("10 r/s", "10/s"),
        ("10r/m", "10/min"),
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
        ("0.5/m", "\"0.5\" is not a whole number from 1 to 2^60"),
        ("1.5.5/s", "\"1.5.5\" is not a whole number from 1 to 2^60"),
        ("0.1234567890/s", "\"0.1234567890\" is not a whole number from 1 to 2^60"),
    ] {
        assert_eq!(rate(text).unwrap_err().to_string(), says);
    }
}

#[test]
fn spans_are_sums() {
    assert_eq!(span("200ms"), Ok(Duration::from_millis(200)));
    assert_eq!(span("0s"), Ok(Duration::ZERO));
    assert_eq!(span("1h 30 min"), Ok(Duration::from_secs(5400)));
    for bad in ["", "10", "s", "10m", "1.5s", "-1s", "99999999999999 year", "10s5"] {
        assert!(span(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn a_printed_rate_reads_back(count in 1..=MAX_COUNT, times in 1..200_u64, unit in 0..UNITS.len()) {
        let rate = WrittenRate::Per { count, times, unit: UNITS[unit].0 };
        prop_assume!(rate.period().is_some());
        prop_assert_eq!(rate.to_string().parse(), Ok(rate));
    }

    #[test]
    fn no_text_panics(text in ".{0,40}") {
        let _ = rate(&text);
        let _ = span(&text);
    }
}
