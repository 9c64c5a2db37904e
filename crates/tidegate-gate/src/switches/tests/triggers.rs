//! Triggers: readings turn switches off and on.

use super::*;
use crate::policy::{PolicySet, Source};

fn trigger(switch: &str, off_when: &str) -> Trigger {
    Trigger::new(switch, off_when.parse().expect("a condition")).expect("a trigger")
}

fn p99() -> Source {
    Source::Signal("p99".into())
}

/// Previews go by two triggers: below critical from 500 on, for all from 900 on. Holds are 10 s.
fn with_triggers() -> (Switches, ManualClock, Arc<Heard>) {
    let (switches, clock) = switches();
    let heard = Arc::new(Heard::default());
    let some =
        trigger("previews", "signal p99 above 500, until 300").below(Criticality::Critical).expect("a level");
    let all = trigger("previews", "signal p99 above 900, until 600");
    let switches =
        switches.with_observer(heard.clone()).with_triggers([some, all]).expect("switches of these names");
    (switches, clock, heard)
}

#[test]
fn the_widest_trigger_that_is_off_decides_and_each_change_of_levels_is_told_once() {
    let (switches, clock, heard) = with_triggers();
    let mut levels = Vec::new();
    for value in [500.0, 501.0, 502.0, 901.0, 950.0, 601.0, 600.0, 550.0, 300.0] {
        switches.report(&p99(), value).unwrap();
        levels.push(switches.levels_off("previews").unwrap());
        clock.advance(Duration::from_secs(10));
    }
    assert_eq!(levels, [0, 2, 2, 4, 4, 4, 2, 2, 0]);
    assert_eq!(
        *heard.0.lock(),
        [
            r#"Signal previews: Some(("signal p99 above 500, until 300: read as 501", Some(Critical), Some(610000000000)))"#,
            r#"Signal previews: Some(("signal p99 above 900, until 600: read as 901", None, Some(630000000000)))"#,
            r#"Signal previews: Some(("signal p99 above 500, until 300: read as 501", Some(Critical), Some(660000000000)))"#,
            "Signal previews: None",
        ]
    );
    assert_eq!(switches.levels_off("search"), Some(0));
}

#[test]
fn what_is_not_read_turns_nothing_off_and_a_switch_that_is_off_ends_by_itself() {
    let (switches, clock, heard) = with_triggers();
    switches.report(&p99(), 901.0).unwrap();
    assert!(switches.report(&p99(), f64::NAN).is_err() && switches.report(&p99(), f64::INFINITY).is_err());
    clock.advance(Trigger::LASTING - Duration::from_nanos(1));
    assert_eq!(switches.levels_off("previews"), Some(4), "silence turns nothing on before its end");
    clock.advance(Duration::from_nanos(1));
    assert_eq!((switches.levels_off("previews"), &switches.standing()[0].by_signal), (Some(0), &None));
    // Between the marks: it has been on.
    switches.report(&p99(), 450.0).unwrap();
    assert_eq!(switches.levels_off("previews"), Some(0));
    assert_eq!(heard.0.lock().last().unwrap(), "Signal previews: None");
}

#[test]
fn a_hand_decides_and_a_sent_signal_is_kept_apart() {
    let (switches, clock, _) = with_triggers();
    switches.keep_on("previews", "a demonstration", MINUTE).unwrap();
    switches.report(&p99(), 901.0).unwrap();
    assert_eq!(switches.levels_off("previews"), Some(0));
    clock.advance(MINUTE);
    assert_eq!(switches.levels_off("previews"), Some(4));
    // Whoever sends signals for the same switch does not end what a trigger turned off, nor the other way round.
    switches.signal("previews", None).unwrap();
    assert_eq!(switches.levels_off("previews"), Some(4));
    switches.signal("previews", Some(Off::for_all("the disk is full"))).unwrap();
    switches.report(&p99(), 0.0).unwrap();
    assert_eq!(switches.why_off("previews", Priority::default()).unwrap().reason(), "the disk is full");
}

#[test]
fn a_number_that_no_trigger_uses_is_told() {
    let (switches, ..) = with_triggers();
    let error = switches.report(&Source::Cpu, 99.0).unwrap_err().to_string();
    assert_eq!(error, "no switch goes by cpu; they go by signal p99");
    let (switches, _) = super::switches();
    let error = switches.with_triggers([trigger("previws", "cpu above 80%")]).unwrap_err().to_string();
    assert_eq!(error, "there is no switch `previws`; there are previews, search");
}

/// A reload with the same trigger is no news of the number: the switch stays off. A changed trigger starts anew.
#[test]
fn triggers_that_stay_keep_their_state() {
    let set = |off_when: &str| {
        let triggers = vec![trigger("previews", off_when), trigger("search", "cpu above 80%")];
        PolicySet::new(Vec::new()).unwrap().with_triggers(triggers).unwrap()
    };
    let first = set("signal p99 above 500");
    let switches = Switches::of(&first).unwrap().with_clock(ManualClock::default());
    switches.report(&p99(), 501.0).unwrap();
    switches.turn_off("search", Off::for_all("by hand")).unwrap();
    switches.follow(&set("signal p99 above 500")).unwrap();
    assert_eq!(switches.levels_off("previews"), Some(4));
    switches.follow(&set("signal p99 above 600")).unwrap();
    assert_eq!((switches.levels_off("previews"), switches.levels_off("search")), (Some(0), Some(4)));
    switches.follow(&PolicySet::new(Vec::new()).unwrap()).unwrap();
    assert_eq!(switches.levels_off("previews"), None);
}

/// A page that counted by the observer showed such a switch as off for ever.
#[test]
fn a_trigger_or_a_switch_that_is_gone_is_told_to_be_on() {
    let set = |triggers: &[(&str, &str)]| {
        let triggers = triggers.iter().map(|(switch, off_when)| trigger(switch, off_when)).collect();
        PolicySet::new(Vec::new()).unwrap().with_triggers(triggers).unwrap()
    };
    let (p99_off, errors_off) = (("previews", "signal p99 above 500"), ("previews", "signal errors above 5"));
    let heard = Arc::new(Heard::default());
    let clock = ManualClock::default();
    let switches = Switches::of(&set(&[p99_off, errors_off])).unwrap().with_clock(clock.clone());
    let switches = switches.with_observer(heard.clone());
    let said = || std::mem::take(&mut *heard.0.lock());
    switches.report(&p99(), 501.0).unwrap();
    assert_eq!(said().len(), 1);

    switches.follow(&set(&[p99_off])).unwrap();
    assert_eq!(said(), [""; 0], "what keeps it off is still there");
    switches.follow(&set(&[errors_off])).unwrap();
    assert_eq!(
        (said(), switches.levels_off("previews")),
        (vec!["Signal previews: None".to_owned()], Some(0))
    );

    // The switch itself is gone, and what a hand set with it.
    switches.report(&Source::Signal("errors".into()), 6.0).unwrap();
    switches.turn_off("previews", Off::for_all("by hand")).unwrap();
    said();
    switches.follow(&set(&[("search", "cpu above 80%")])).unwrap();
    assert_eq!(said(), ["Signal previews: None", "Hand previews: None"]);
    switches.turn_off("search", Off::for_all("by hand")).unwrap();
    said();
    switches.rename(["search"]).unwrap();
    switches.rename(["prices"]).unwrap();
    assert_eq!(said(), ["Hand search: None"]);

    // What has ended by itself was told in advance.
    switches.rename(["search"]).unwrap();
    switches.turn_off("search", Off::for_all("by hand").lasting(MINUTE)).unwrap();
    clock.advance(MINUTE);
    said();
    switches.rename(["prices"]).unwrap();
    assert_eq!(said(), [""; 0]);
}

/// Its end was told in advance, so the next reading that turns it off is news.
#[test]
fn a_switch_that_goes_off_again_after_its_end_is_told_again() {
    let (switches, clock, heard) = with_triggers();
    switches.report(&p99(), 901.0).unwrap();
    clock.advance(Trigger::LASTING);
    switches.report(&p99(), 901.0).unwrap();
    assert_eq!(heard.0.lock().len(), 2, "{heard:?}");
    switches.report(&p99(), 902.0).unwrap();
    assert_eq!(heard.0.lock().len(), 2, "{heard:?}");
}
