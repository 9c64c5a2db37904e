use super::*;
use crate::clock::ManualClock;

const AGE: Duration = Duration::from_secs(10);

fn store<T: Clone>(most_keys: usize) -> (LastAnswers<String, T>, ManualClock) {
    let clock = ManualClock::default();
    let kept = LastAnswers::new(most_keys, AGE).expect("a number of keys in range");
    (kept.with_clock(clock.clone()), clock)
}

#[test]
fn an_answer_is_shown_under_its_own_key_until_it_is_too_old() {
    let (kept, clock) = store(10);
    kept.keep("ann".into(), 1);
    clock.advance(Duration::from_secs(6));
    kept.clone().keep("bob".into(), 2);
    clock.advance(Duration::from_secs(4));
    assert_eq!(kept.last("ann"), Some((1, AGE)), "exactly as old as it may be");
    assert_eq!(kept.last("bob"), Some((2, Duration::from_secs(4))));
    assert_eq!(kept.last("eve"), None);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(kept.last("ann"), None);
    assert_eq!((kept.last("bob").map(|(answer, _)| answer), kept.held()), (Some(2), 1));
}

#[test]
fn a_new_answer_replaces_the_last_and_counts_from_its_own_time() {
    let (kept, clock) = store(10);
    kept.keep("ann".into(), 1);
    clock.advance(AGE);
    kept.keep("ann".into(), 2);
    clock.advance(AGE);
    assert_eq!((kept.last("ann"), kept.held()), (Some((2, AGE)), 1));
}

#[test]
fn an_error_is_replaced_and_never_kept() {
    let (kept, _) = store(10);
    assert_eq!(kept.or_last("ann".into(), Err("down")), Err("down"));
    assert_eq!(kept.held(), 0);
    assert_eq!(kept.or_last("ann".into(), Ok::<_, &str>(1)), Ok(Answered::Real(1)));
    let shown = kept.or_last("ann".into(), Err("down"));
    assert_eq!(shown, Ok(Answered::Fallback { value: 1, reason: "down" }));
    kept.forget("ann");
    assert_eq!(kept.or_last("ann".into(), Err("down")), Err("down"));
}

/// The oldest goes, whether it was read or not; stored again, it is no longer the oldest.
#[test]
fn a_full_store_evicts_the_answer_that_was_stored_longest_ago() {
    let (kept, _) = store(3);
    for key in ["a", "b", "c", "a", "d"] {
        let _ = kept.last("b");
        kept.keep(key.into(), ());
    }
    let held = ["a", "b", "c", "d"].map(|key| kept.last(key).is_some());
    assert_eq!(held, [true, false, true, true]);
    for number in 0..1000 {
        kept.keep(number.to_string(), ());
        assert_eq!((kept.held(), kept.table.lock().by_turn.len()), (3, 3));
    }
}

#[test]
fn weighed_answers_evict_the_oldest_until_they_weigh_no_more_than_they_may() {
    let (kept, clock) = store::<String>(100);
    let kept = kept.weighing(10, |key, answer| (key.len() + answer.len()) as u64);
    for (key, length) in [("a", 2), ("b", 2), ("c", 2)] {
        kept.keep(key.into(), "x".repeat(length));
    }
    assert_eq!((kept.held(), kept.weight()), (3, 9));
    kept.clone().keep("a".into(), "xxx".into());
    assert_eq!((kept.held(), kept.weight()), (3, 10), "what it replaces weighs nothing");
    kept.keep("d".into(), "xxxx".into());
    let held = ["a", "b", "c", "d"].map(|key| kept.last(key).is_some());
    assert_eq!((held, kept.weight()), ([true, false, false, true], 9), "the two oldest made room for it");
    kept.keep("e".into(), "x".repeat(9));
    assert_eq!((kept.held(), kept.weight(), kept.last("e").is_some()), (1, 10, true), "all others");
    kept.keep("e".into(), "x".repeat(10));
    assert_eq!((kept.last("e"), kept.weight()), (None, 0), "too heavy, and what it replaces is outdated");
    kept.keep("f".into(), String::new());
    clock.advance(AGE * 2);
    assert_eq!((kept.last("f"), kept.weight()), (None, 0), "too old");
    kept.keep("g".into(), String::new());
    kept.forget("g");
    assert_eq!((kept.held(), kept.weight()), (0, 0));
}

#[test]
fn answers_that_are_too_old_leave_as_others_are_stored() {
    let (kept, clock) = store(1000);
    (0..100).for_each(|number| kept.keep(number.to_string(), ()));
    clock.advance(AGE + Duration::from_nanos(1));
    for _ in 0..60 {
        kept.keep("now".into(), ());
    }
    assert_eq!((kept.held(), kept.table.lock().by_turn.len()), (1, 1));
}

#[test]
fn a_number_of_keys_out_of_range_is_named() {
    let most = LastAnswers::<u32, u32>::MAX_KEYS;
    assert!(LastAnswers::<u32, u32>::new(most, AGE).is_ok());
    for out_of_range in [0, most + 1] {
        let error = LastAnswers::<u32, u32>::new(out_of_range, AGE).unwrap_err().to_string();
        assert_eq!(error, format!("most_keys {out_of_range} is not a number of keys; use 1 to 16777216"));
    }
}

/// Dropping or cloning an answer runs its type's own code, which may use the store: under the lock it deadlocked.
#[test]
fn an_answer_may_use_what_keeps_it_while_it_is_copied_and_dropped() {
    struct Asks(Option<LastAnswers<String, Asks>>);

    impl Asks {
        fn ask(&self) {
            if let Some(kept) = &self.0 {
                let _ = kept.held();
            }
        }
    }

    impl Clone for Asks {
        fn clone(&self) -> Self {
            self.ask();
            Self(None)
        }
    }

    impl Drop for Asks {
        fn drop(&mut self) {
            self.ask();
        }
    }

    let (kept, clock) = store(1);
    let asking = || Asks(Some(kept.clone()));
    kept.keep("a".into(), asking());
    assert!(kept.last("a").is_some());
    kept.keep("a".into(), asking());
    kept.keep("b".into(), asking());
    kept.forget("b");
    kept.keep("b".into(), asking());
    clock.advance(AGE * 2);
    assert!(kept.last("b").is_none());
    assert_eq!(kept.held(), 0);
}
