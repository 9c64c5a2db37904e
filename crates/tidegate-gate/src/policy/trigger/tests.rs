use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn trigger() -> Trigger {
    let condition = "signal p99 above 500, until 300".parse().unwrap();
    Trigger::new("previews", condition).unwrap().hold(10 * SECOND).unwrap().lasting(60 * SECOND).unwrap()
}

/// A table of (second, reading) and (whether it is off right after it, the second at which it ends by itself).
#[test]
fn it_is_off_from_its_value_to_its_end_and_for_as_long_as_it_holds() {
    let trigger = trigger();
    let mut state = TriggerState::default();
    for (second, value, until) in [
        (1, 500.0, None),
        (2, 501.0, Some(62)),
        (3, 301.0, Some(63)),
        (4, 300.0, Some(12)),
        // Between the two marks while it is only held: nothing begins anew.
        (5, 450.0, Some(12)),
        // Beyond the mark within the hold: still the same time off.
        (6, 501.0, Some(66)),
        (7, f64::NAN, Some(66)),
        (8, f64::INFINITY, Some(66)),
        (12, 299.0, None),
        (13, 499.0, None),
        (14, 501.0, Some(74)),
        // A second before its end the last reading still counts, and between the marks it lasts.
        (73, 301.0, Some(133)),
        // After the end it has been on: between the marks it stays on.
        (133, 301.0, None),
    ] {
        let now = Tick::from_secs(second);
        state = trigger.step(state, now, value);
        let shown = state.is_off(now).then(|| state.until().as_nanos() / 1_000_000_000);
        assert_eq!(shown, until, "at {second} s with {value}");
    }
}

#[test]
fn without_a_reading_it_ends_by_itself_and_begins_never() {
    let trigger = trigger();
    let off = trigger.step(TriggerState::default(), Tick::from_secs(1), 900.0);
    assert!(off.is_off(Tick::from_secs(60)) && !off.is_off(Tick::from_secs(61)));
    assert!(
        !TriggerState::default().is_off(Tick::EPOCH) && !TriggerState::default().is_off(Tick::from_secs(1))
    );
}

#[test]
fn a_clock_that_steps_back_turns_nothing_on_early() {
    let trigger = trigger();
    let off = trigger.step(TriggerState::default(), Tick::from_secs(100), 900.0);
    let calm = trigger.step(off, Tick::from_secs(90), 0.0);
    assert_eq!(calm.until(), Tick::from_secs(110));
}

#[test]
fn mistakes_name_what_would_work() {
    let condition = |text: &str| text.parse::<Condition>().unwrap();
    let error = Trigger::new("a b", condition("cpu above 80%")).unwrap_err().to_string();
    assert!(error.contains("\"a b\" is not a name of a switch"), "{error}");
    let error = Trigger::new("a", condition("switch b off")).unwrap_err().to_string();
    assert!(error.contains("by no other switch"), "{error}");
    assert_eq!(trigger().below(Criticality::Sheddable), Err(TriggerError::Nobody));
    assert!(trigger().hold(Trigger::LONGEST).is_ok() && trigger().hold(Trigger::LONGEST + SECOND).is_err());
    assert!(trigger().lasting(SECOND).is_ok() && trigger().lasting(Duration::ZERO).is_err());
}

proptest::proptest! {
    /// Once off, it is off for `hold`, whatever the readings say; and it goes off only with a reading above its value.
    #[test]
    fn it_is_never_off_for_less_than_its_hold(steps in proptest::collection::vec((0_u64..20, 0_u32..1000), 1..60)) {
        let trigger = trigger();
        let (mut state, mut now, mut went_off) = (TriggerState::default(), 0, None);
        for (pause, value) in steps {
            now += pause;
            let at = Tick::from_secs(now);
            let was_off = state.is_off(at);
            if let Some(since) = went_off {
                proptest::prop_assert!(was_off || now >= since + 10, "on again at {now}, off since {since}");
                went_off = went_off.filter(|_| was_off);
            }
            state = trigger.step(state, at, f64::from(value));
            if state.is_off(at) && !was_off {
                proptest::prop_assert!(value > 500);
                went_off = Some(now);
            }
            proptest::prop_assert!(state.until() <= at.after(60 * SECOND));
        }
    }
}
