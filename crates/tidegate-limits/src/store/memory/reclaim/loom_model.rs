//! A check that races with the freeing of its limit's number, through all interleavings.

use std::sync::Arc as Shared;

use loom::sync::Arc;
use tidegate_core::rate::GcraWord;
use tidegate_core::{Quota, Tick};

use crate::store::memory::cache_line::{CacheLine, Slot, WAYS};
use crate::store::memory::limit::StoredLimit;
use crate::store::memory::name::{Class, Name};
use crate::store::memory::reading::{Reading, WordOutcome};
use crate::sync::short_or_long;

use crate::sync::explore;

fn quota(burst: u64) -> (Shared<Quota>, GcraWord) {
    let quota = Quota::per_hour(1).burst(burst).gcra().unwrap();
    let Quota::Gcra(gcra) = &quota else { unreachable!() };
    let form = GcraWord::new(gcra, Tick::EPOCH).unwrap();
    (Shared::new(quota), form)
}

/// Ann has used up her limit of one. Her slot is emptied, the number is swept and given to a limit of three, and Ann
/// comes under that limit with one unit spent. A check that read the old limit never decides by it on the new word, and
/// vice versa.
#[test]
fn a_check_never_decides_by_a_limit_that_lost_its_number() {
    explore(short_or_long(Some(1), Some(2)), || {
        let class = Class::new(9).unwrap();
        let ann = Name::new(1 << 20, class);
        let ((small, small_form), (large, large_form)) = (quota(1), quota(3));
        let slots = Arc::new(<[Slot; WAYS]>::default());
        let entry = Arc::new(StoredLimit::new(class, 0, &small, &small_form));
        let tick = Tick::from_secs(1);
        let spent = move |form: &GcraWord| form.take(0, form.scaled(tick).unwrap(), 1).unwrap();
        {
            let held = CacheLine::of(&slots).lock();
            (0..WAYS).for_each(|at| CacheLine::of(&slots).seize(at).rename(&held, Name::EMPTY));
            let mut seized = CacheLine::of(&slots).seize(0);
            seized.rename(&held, ann);
            seized.word = spent(&small_form);
        }
        // Reads each number, so that loom creates it before the threads start.
        let before = entry.read();
        assert!(before.holds() && before.owner() == 0 && before.is_of(&small) && before.form().burst() == 1);
        let reclaim = {
            let (slots, entry, large) = (Arc::clone(&slots), Arc::clone(&entry), Shared::clone(&large));
            loom::thread::spawn(move || {
                let line = CacheLine::of(&slots);
                {
                    let held = line.lock();
                    let mut seized = line.seize(0);
                    seized.rename(&held, Name::EMPTY);
                    seized.word = 0;
                }
                // The sweep: the number is retired, searched for, and freed if no slot carries it.
                entry.turn();
                if (0..WAYS).any(|at| line.lock().name(at).class() == class) {
                    return false;
                }
                entry.free();
                entry.give(0, &large, &large_form);
                let held = line.lock();
                let mut seized = line.seize(0);
                seized.rename(&held, ann);
                seized.word = spent(&large_form);
                true
            })
        };
        let limit = entry.read();
        let is_large = limit.form().burst() == 3;
        let line = CacheLine::of(&slots);
        let taken = Reading::at(limit, tick).and_then(|by| {
            line.permit_or_read(ann, &by, 1)
                .filter(|taken| matches!(taken, WordOutcome::Permitted(_)))
                .or_else(|| line.take(ann, |_| true, &by, 1))
        });
        // A new key, as the table adds it: with the line locked.
        let admitted = {
            let held = line.lock();
            let place = held.find(ann, |_| true).is_none() && limit.admits();
            if place {
                line.seize(1).rename(&held, Name::new(2 << 20, class));
            }
            place
        };
        let given = reclaim.join().unwrap();
        match taken {
            Some(WordOutcome::Permitted(word)) => {
                assert!(given && is_large, "the small limit was used up");
                assert_eq!(line.seize(0).word, word);
            }
            Some(WordOutcome::Refused(word)) => assert!(!is_large && word == spent(&small_form)),
            Some(WordOutcome::Undecided) | None => {}
        }
        if admitted && !is_large {
            assert!(!given, "a number that a slot carries is not given up");
        }
    });
}
