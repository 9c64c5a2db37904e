//! A store around another one loses nothing of what that one says or is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::clock::ManualClock;
use tidegate::cluster::Part;
use tidegate::store::{
    Caps, Executed, Execution, Fallback, Home, Leased, Occupancy, PlainStore, Regional, Step, Store,
    Successor,
};

/// A store that differs from all defaults, and counts the keys that are announced.
#[derive(Debug, Default)]
struct Odd {
    plain: PlainStore,
    fetched: Arc<AtomicUsize>,
}

impl Store for Odd {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        self.plain.execute_into(step, out)
    }

    fn fetch(&self, keys: &[&[u8]]) {
        self.fetched.fetch_add(keys.len(), Ordering::Relaxed);
    }

    fn occupancy(&self) -> Occupancy {
        self.plain.occupancy()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.one_tag = true;
        caps
    }

    fn home(&self) -> Home {
        Home::Process { store: 71 }
    }

    fn home_of(&self, by_fallback: bool) -> Home {
        Home::Process { store: if by_fallback { 72 } else { 71 } }
    }

    fn exchanges(&self) -> u64 {
        73
    }

    fn clock_set_back(&self) -> u64 {
        74
    }

    fn losses(&self) -> u64 {
        75
    }
}

/// Regression: a shared store (`Arc`), which is how gates share one, announced no keys to the store inside, so that
/// nothing was prefetched; leases and regions told no exchanges.
#[test]
fn what_a_wrapper_does_not_change_is_that_of_the_store_inside() {
    type Wrap = fn(Odd) -> Box<dyn Store>;
    let wraps: [(&str, Wrap); 6] = [
        ("shared", |odd| Box::new(Arc::new(odd))),
        ("shared twice", |odd| Box::new(Arc::new(Arc::new(odd) as Arc<dyn Store>))),
        ("regional", |odd| Box::new(Regional::around(odd, Part::even(2)))),
        ("leased", |odd| Box::new(Leased::around(odd, ManualClock::default()).background(drop).build())),
        ("successor", |odd| Box::new(Successor::new(Arc::new(odd), Arc::new(PlainStore::default())))),
        ("fallback", |odd| Box::new(Fallback::around(odd, ManualClock::default()).build())),
    ];
    for (name, wrap) in wraps {
        let odd = Odd::default();
        let fetched = Arc::clone(&odd.fetched);
        let store = wrap(odd);
        store.fetch(&[b"one", b"two"]);
        assert_eq!(fetched.load(Ordering::Relaxed), 2, "{name}");
        assert!(store.caps().one_tag, "{name}");
        assert_eq!((store.home(), store.exchanges()), (Home::Process { store: 71 }, 73), "{name}");
        assert_eq!((store.clock_set_back(), store.losses()), (74, 75), "{name}");
        // What the fallback has charged itself is in its own table.
        assert_eq!(store.home_of(true) == Home::Process { store: 72 }, name != "fallback", "{name}");
        assert_eq!(store.home_of(false), Home::Process { store: 71 }, "{name}");
    }
}
