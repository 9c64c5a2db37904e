use super::*;
use crate::policy::{PolicySet, Source};
use tidegate_limits::clock::ManualClock;

const MINUTE: Duration = Duration::from_secs(60);

fn switches() -> (Switches, ManualClock) {
    let clock = ManualClock::default();
    let switches = Switches::new(["previews", "search"]).expect("switches").with_clock(clock.clone());
    (switches, clock)
}

#[test]
fn what_was_turned_off_for_a_while_is_on_again_after_it() {
    let (switches, clock) = switches();
    switches.turn_off("previews", Off::for_all("too busy").lasting(MINUTE)).unwrap();
    clock.advance(MINUTE - Duration::from_nanos(1));
    let off = switches.why_off("previews", Priority::default()).unwrap();
    assert_eq!((off.reason(), switches.is_on("search", Priority::default())), ("too busy", true));
    clock.advance(Duration::from_nanos(1));
    assert!(switches.is_on("previews", Priority::default()));
    assert_eq!(switches.standing()[0].by_hand, None);
}

#[test]
fn a_level_and_what_is_above_it_stay_on() {
    let (switches, _) = switches();
    switches.turn_off("search", Off::below(Criticality::Critical, "a failing disk")).unwrap();
    let on = Criticality::ALL.map(|level| switches.is_on("search", Priority::of(level)));
    assert_eq!(on, [false, false, true, true]);
}

#[test]
fn a_signal_does_not_overrule_a_hand_nor_does_the_end_of_a_hand_a_signal() {
    let (switches, clock) = switches();
    switches.turn_off("search", Off::for_all("by hand")).unwrap();
    switches.signal("search", None).unwrap();
    assert!(!switches.is_on("search", Priority::default()));
    switches.signal("search", Some(Off::for_all("p99 is 2 s").lasting(MINUTE))).unwrap();
    switches.turn_on("search").unwrap();
    let why = switches.why_off("search", Priority::default()).unwrap();
    assert_eq!(why.reason(), "p99 is 2 s");
    assert_eq!(switches.standing()[1].by_signal.as_ref().unwrap().1, Some(Tick::from_secs(60)));
    clock.advance(MINUTE);
    assert!(switches.is_on("search", Priority::default()), "the signal has gone silent");
}

#[test]
fn names_that_are_not_known_are_told_and_are_on() {
    let (switches, _) = switches();
    let said = switches.turn_off("serach", Off::for_all("too busy")).unwrap_err().to_string();
    assert_eq!(said, "there is no switch `serach`; there are previews, search");
    let none = Switches::new([] as [&str; 0]).unwrap();
    assert_eq!(
        none.turn_on("search").unwrap_err().to_string(),
        "there is no switch `search`; there are none"
    );
    assert!(switches.is_on("serach", Priority::default()));
    let said = Switches::new([""]).unwrap_err().to_string();
    assert_eq!(said, "switch `` is not a name; use a word such as recommendations");
    assert!(Switches::new((0..1025).map(|number| number.to_string())).is_err());
}

#[test]
fn what_stays_among_the_names_stays_as_it_is() {
    let (switches, clock) = switches();
    switches.turn_off("search", Off::below(Criticality::Critical, "a failing disk").lasting(MINUTE)).unwrap();
    switches.replace(["search", "prices"].into_iter(), &[]).unwrap();
    let levels = ["search", "prices", "previews"].map(|name| switches.levels_off(name));
    assert_eq!(levels, [Some(2), Some(0), None]);
    assert!(switches.replace([""].into_iter(), &[]).is_err() && switches.levels_off("search") == Some(2));
    switches.signal("search", Some(Off::for_all("p99 is 2 s"))).unwrap();
    assert_eq!(switches.levels_off("search"), Some(2), "as the hand has it");
    clock.advance(MINUTE);
    assert_eq!(switches.levels_off("search"), Some(4), "as the signal has it");
    switches.signal("search", None).unwrap();
    assert_eq!(switches.levels_off("search"), Some(0));
}

/// A demonstration, or a signal that is known to be wrong: a person had no way to keep such a feature on.
#[test]
fn what_is_kept_on_by_hand_is_on_whatever_signals_say_until_its_end() {
    let heard = Arc::new(Heard::default());
    let (switches, clock) = switches();
    let switches = switches.with_observer(heard.clone());
    switches.signal("search", Some(Off::for_all("p99 is 2 s"))).unwrap();
    switches.keep_on("search", "a demonstration", MINUTE).unwrap();
    assert_eq!(switches.levels_off("search"), Some(0));
    let standing = switches.standing().remove(1);
    let (off, end) = standing.by_hand.clone().unwrap();
    assert!(off.is_for_nobody() && off.reason() == "a demonstration" && standing.off().is_none());
    assert_eq!((end, standing.by_signal.is_some()), (Some(Tick::from_secs(60)), true));
    let said = heard.0.lock().pop().unwrap();
    assert_eq!(said, r#"Hand search: Some(("a demonstration", Some(Sheddable), Some(60000000000)))"#);
    clock.advance(MINUTE);
    assert_eq!(switches.levels_off("search"), Some(4));
    switches.keep_on("search", "another one", MINUTE).unwrap();
    switches.turn_on("search").unwrap();
    assert_eq!(switches.levels_off("search"), Some(4), "the signal decides again");
}

/// Two threads change two switches: neither change is lost.
#[test]
fn changes_made_together_are_both_made() {
    let (switches, _) = switches();
    std::thread::scope(|scope| {
        for name in ["previews", "search"] {
            let switches = switches.clone();
            scope.spawn(move || {
                for _ in 0..1000 {
                    switches.turn_off(name, Off::for_all("a try")).unwrap();
                    assert!(!switches.is_on(name, Priority::default()));
                    switches.turn_on(name).unwrap();
                    assert!(switches.is_on(name, Priority::default()));
                }
            });
        }
    });
}

#[derive(Debug, Default)]
pub(super) struct Heard(pub(super) Mutex<Vec<String>>);

impl Observer for Heard {
    fn on_switch(&self, turned: &SwitchTurned<'_>) {
        let off = turned.off.map(|off| (off.reason.to_owned(), off.on_from, off.until.map(Tick::as_nanos)));
        self.0.lock().push(format!("{:?} {}: {off:?}", turned.by, turned.name));
    }
}

/// Signals are sent over and over: the observer is told of changes, not of repetitions.
#[test]
fn an_observer_hears_who_turned_what_and_why() {
    let heard = Arc::new(Heard::default());
    let (switches, clock) = switches();
    let switches = switches.with_observer(heard.clone());
    let said = || std::mem::take(&mut *heard.0.lock());
    switches.turn_on("search").unwrap();
    assert_eq!(said(), [""; 0], "it is on");
    switches.turn_off("search", Off::for_all("a failing disk").lasting(Duration::from_nanos(9))).unwrap();
    assert_eq!(said(), [r#"Hand search: Some(("a failing disk", None, Some(9)))"#]);
    for latency in [2, 3, 4] {
        let slow = Off::below(Criticality::Critical, &format!("p99 is {latency} s")).lasting(MINUTE);
        switches.signal("previews", Some(slow)).unwrap();
    }
    assert_eq!(said(), [r#"Signal previews: Some(("p99 is 2 s", Some(Critical), Some(60000000000)))"#]);
    switches.signal("previews", Some(Off::for_all("p99 is 9 s").lasting(MINUTE))).unwrap();
    switches.signal("previews", None).unwrap();
    switches.signal("previews", None).unwrap();
    assert_eq!(
        said(),
        [r#"Signal previews: Some(("p99 is 9 s", None, Some(60000000000)))"#, "Signal previews: None"]
    );
    clock.advance(MINUTE);
    switches.turn_on("search").unwrap();
    assert_eq!(said(), [""; 0], "it is on again by itself");
    assert!(switches.turn_off("serach", Off::for_all("too busy")).is_err() && said().is_empty());
}

/// No request is less important than sheddable ones. Such a switch was listed as off, and was off for nobody.
#[test]
fn off_below_the_lowest_level_is_on() {
    let switches = Switches::new(["search"]).unwrap();
    switches.turn_off("search", Off::for_all("a failing disk")).unwrap();
    switches.turn_off("search", Off::below(Criticality::Sheddable, "a failing disk")).unwrap();
    assert!(switches.is_on("search", Priority::of(Criticality::Sheddable)));
    assert_eq!(switches.standing()[0].by_hand, None);
    assert_eq!(switches.levels_off("search"), Some(0));
}

// Triggers: readings turn switches off and on.

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
    let (switches, _) = self::switches();
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
    switches.replace(["search"].into_iter(), &[]).unwrap();
    switches.replace(["prices"].into_iter(), &[]).unwrap();
    assert_eq!(said(), ["Hand search: None"]);

    // What has ended by itself was told in advance.
    switches.replace(["search"].into_iter(), &[]).unwrap();
    switches.turn_off("search", Off::for_all("by hand").lasting(MINUTE)).unwrap();
    clock.advance(MINUTE);
    said();
    switches.replace(["prices"].into_iter(), &[]).unwrap();
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
