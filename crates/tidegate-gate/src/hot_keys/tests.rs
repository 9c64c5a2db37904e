//! Tests of hot keys and of what an observer is told.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use tidegate_limits::observer::{AnyEvent, HotKeyFound};

#[test]
fn a_heavy_key_is_found_among_many_that_come_once() {
    let sketch: HotKeys = HotKeys::new(512).unwrap();
    for at in 0..20_000 {
        sketch.add(&*format!("once-{at}"), 1, Tick::EPOCH);
        if at % 20 == 0 {
            sketch.add("heavy", 1, Tick::EPOCH);
        }
    }
    let (largest, total) = sketch.largest(1);
    assert_eq!(total, 21_000);
    assert_eq!(largest[0].key, "heavy");
    assert!(largest[0].count >= 1000 && largest[0].least() <= 1000, "{largest:?}");
    assert!(largest[0].error <= total / 512);
    assert_eq!(sketch.largest(10_000).0.len(), 512, "memory is bounded");
}

#[test]
fn what_was_hot_fades() {
    let minute = Duration::from_secs(60);
    let sketch: HotKeys = HotKeys::new(4).unwrap().fading(minute);
    sketch.add("yesterday", 1000, Tick::EPOCH);
    assert_eq!(sketch.add("today", 100, Tick::from_secs(59)), Heat { least: 100, total: 1100 });
    assert_eq!(sketch.add("today", 0, Tick::from_secs(60)), Heat { least: 50, total: 550 });
    assert_eq!(sketch.add("today", 0, Tick::from_secs(50)), Heat { least: 50, total: 550 }, "a step back");
    assert_eq!(sketch.add("today", 0, Tick::from_secs(301)), Heat { least: 3, total: 34 });
    assert_eq!(sketch.add("today", 0, Tick::MAX), Heat { least: 0, total: 0 });
}

#[test]
fn a_clock_that_was_set_back_goes_on_fading() {
    let minute = Duration::from_secs(60);
    let sketch: HotKeys = HotKeys::new(4).unwrap().fading(minute);
    sketch.add("key", 8, Tick::from_secs(100_000));
    assert_eq!(sketch.add("key", 0, Tick::from_secs(100)).least, 8);
    assert_eq!(sketch.add("key", 0, Tick::from_secs(160)).least, 4);
}

/// Reading with an amount of 0 used to take the smallest counter from the key that had it.
#[test]
fn asking_takes_no_counter() {
    let sketch: HotKeys = HotKeys::new(1).unwrap();
    sketch.add("key", 5, Tick::EPOCH);
    assert_eq!(sketch.add("other", 0, Tick::EPOCH), Heat { least: 0, total: 5 });
    assert_eq!(sketch.largest(9).0, [Counted { key: "key".to_owned(), count: 5, error: 0 }]);
}

/// Keys of types other than text: numbers, pairs, shared text.
#[test]
fn keys_are_of_any_kind() {
    let (numbers, pairs) = (HotKeys::<u64>::new(2).unwrap(), HotKeys::<(u8, u8)>::new(2).unwrap());
    let shared = HotKeys::<Arc<str>>::new(2).unwrap();
    let text = Arc::<str>::from("key");
    assert_eq!(numbers.add(&7, 1, Tick::EPOCH).least, 1);
    assert_eq!(pairs.add(&(7, 8), 1, Tick::EPOCH).least, 1);
    assert_eq!(shared.add(&text, 1, Tick::EPOCH).least, 1);
}

#[test]
fn a_share_is_judged_once_there_is_enough_to_judge_by() {
    let heat = Heat { least: 6, total: 10 };
    assert!(heat.is_above(0.5, 10) && !heat.is_above(0.6, 10) && !heat.is_above(0.5, 11));
}

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<HotKeyFound>>);

impl Observer for Heard {
    fn on_hot_key(&self, found: &HotKeyFound) {
        self.0.lock().unwrap().push(*found);
    }
}

impl Heard {
    /// The keys that were told since the last call.
    fn take(&self) -> Vec<KeyDigest> {
        self.0.lock().unwrap().drain(..).map(|found| found.key).collect()
    }
}

fn sketch(counters: usize) -> (Arc<Heard>, HotKeys) {
    let heard = Arc::new(Heard::default());
    let sketch = HotKeys::new(counters).unwrap().fading(Duration::from_secs(60));
    (Arc::clone(&heard), sketch.with_observer(heard, 0.5, 100))
}

#[test]
fn a_key_is_told_once_when_it_crosses_the_share() {
    let (heard, sketch) = sketch(10);
    sketch.add("hot", 99, Tick::EPOCH);
    assert_eq!(heard.take(), [], "too few to judge by");
    let heat = sketch.add("hot", 1, Tick::from_secs(1));
    let found = heard.0.lock().unwrap().clone();
    let expected = HotKeyFound::new(Tick::from_secs(1), sketch.digest("hot"), heat.least, 100);
    assert_eq!(found, [expected]);
    heard.take();
    // Now around a half of the total, above and below by turns.
    sketch.add("other", 100, Tick::from_secs(1));
    for _ in 0..50 {
        sketch.add("hot", 1, Tick::from_secs(1));
        sketch.add("other", 1, Tick::from_secs(1));
    }
    assert!(!heard.take().contains(&sketch.digest("hot")), "it never cooled");
    assert_ne!(sketch.digest("hot"), sketch.digest("other"));
}

#[test]
fn a_key_that_has_cooled_is_told_again() {
    let (heard, sketch) = sketch(10);
    sketch.add("hot", 100, Tick::EPOCH);
    sketch.add("other", 350, Tick::EPOCH);
    assert_eq!(heard.take(), [sketch.digest("hot"), sketch.digest("other")]);
    sketch.add("hot", 0, Tick::EPOCH);
    sketch.add("hot", 1000, Tick::EPOCH);
    assert_eq!(heard.take(), [sketch.digest("hot")], "less than a quarter in between");
    // All traffic fades: after an hour of silence nothing is hot.
    let later = Tick::from_secs(3600);
    sketch.add("hot", 1, later);
    sketch.add("hot", 200, later);
    assert_eq!(heard.take(), [sketch.digest("hot")]);
}

/// A counter that another key takes over begins cold, and the key that it had is told anew.
#[test]
fn a_counter_that_is_taken_over_is_not_hot() {
    let (heard, sketch) = sketch(1);
    sketch.add("one", 100, Tick::EPOCH);
    assert_eq!(heard.take(), [sketch.digest("one")]);
    sketch.add("two", 1000, Tick::EPOCH);
    assert_eq!(heard.take(), [sketch.digest("two")], "1000 of 1100 are sure");
    sketch.add("one", 10_000, Tick::EPOCH);
    assert_eq!(heard.take(), [sketch.digest("one")]);
}

#[test]
fn an_observer_may_use_the_sketch_and_gets_the_name() {
    #[derive(Debug)]
    struct Asks(Arc<Mutex<Option<Arc<HotKeys>>>>, Arc<Mutex<Vec<String>>>);
    impl Observer for Asks {
        fn on_named(&self, name: &str, event: AnyEvent<'_>) {
            let AnyEvent::HotKey(found) = event else { return };
            let sketch = self.0.lock().unwrap().clone().unwrap();
            let (largest, _) = sketch.largest(1);
            assert_eq!(sketch.digest(&*largest[0].key), found.key);
            self.1.lock().unwrap().push(format!("{name}: {}", largest[0].key));
        }
    }
    let (place, heard) = (Arc::default(), Arc::default());
    let observer = Asks(Arc::clone(&place), Arc::clone(&heard)).named("tenants");
    let sketch = Arc::new(HotKeys::new(10).unwrap().with_observer(observer, 0.5, 1));
    *place.lock().unwrap() = Some(Arc::clone(&sketch));
    sketch.add("busy", 1, Tick::EPOCH);
    assert_eq!(*heard.lock().unwrap(), ["tenants: busy"]);
}

proptest! {
    /// Compared with an exact count per key: every true count lies within the error, every heavy key has a counter,
    /// and the errors keep their bound.
    #[test]
    fn true_counts_lie_within_the_error(keys in proptest::collection::vec((0..60_u8, 1..5_u64), 0..500), counters in 1..20_usize) {
        let sketch: HotKeys<String> = HotKeys::new(counters).unwrap();
        let mut plain: HashMap<String, u64> = HashMap::new();
        for (key, amount) in keys {
            // Squared, so that the low keys are the frequent ones.
            let key = (u16::from(key) * u16::from(key) / 60).to_string();
            let heat = sketch.add(&*key, amount, Tick::EPOCH);
            let count = plain.entry(key).or_default();
            *count += amount;
            prop_assert!(heat.least <= *count);
        }
        let (largest, total) = sketch.largest(usize::MAX);
        prop_assert_eq!(total, plain.values().sum::<u64>());
        for counted in &largest {
            let truly = plain[&counted.key];
            prop_assert!(counted.least() <= truly && truly <= counted.count);
            prop_assert!(counted.error <= total / counters as u64);
        }
        for (key, count) in plain {
            let listed = largest.iter().any(|counted| counted.key == key);
            prop_assert!(listed || count <= total / counters as u64);
        }
    }
}
