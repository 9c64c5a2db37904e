//! The locks of a line, through all their interleavings.

use std::sync::Arc as Shared;

use loom::sync::Arc;
use tidegate_core::{Quota, Tick};

use super::*;
use crate::store::memory::limit::StoredLimit;
use crate::store::memory::name::Class;
use crate::sync::explore;

const CLASS: Class = Class(1);
const ANN: Name = Name::new(1 << 20, CLASS);
const BOB: Name = Name::new(2 << 20, CLASS);

fn limit(burst: u64) -> StoredLimit {
    let quota = Quota::per_hour(1).burst(burst).gcra().unwrap();
    let Quota::Gcra(gcra) = &quota else { unreachable!() };
    let form = GcraWord::new(gcra, Tick::EPOCH).unwrap();
    StoredLimit::new(CLASS, 0, &Shared::new(quota), &form)
}

fn reading(limit: &StoredLimit) -> Reading<'_> {
    Reading::at(limit.read(), Tick::from_secs(1)).unwrap()
}

/// A line with Ann in it. Reads every cell, so that loom creates it before the threads start.
fn line(at: usize) -> Arc<[Slot; WAYS]> {
    let slots = Arc::new(<[Slot; WAYS]>::default());
    let line = CacheLine::of(&slots);
    {
        let held = line.lock();
        (0..WAYS).for_each(|at| line.seize(at).rename(&held, Name::EMPTY));
        line.seize(at).rename(&held, ANN);
    }
    slots
}

/// As a table asks: on the fast path, and on the slow path where that does not decide.
fn ask(slots: &[Slot; WAYS], name: Name, by: &Reading<'_>) -> Option<WordOutcome> {
    let line = CacheLine::of(slots);
    match line.permit_or_read(name, by, 1) {
        Some(permitted @ WordOutcome::Permitted(_)) => Some(permitted),
        _ => line.take(name, |_| true, by, 1),
    }
}

/// Two threads ask for four units, and three are there.
#[test]
fn permits_are_neither_lost_nor_doubled() {
    explore(Some(3), || {
        let slots = line(0);
        let both = |slots: &[Slot; WAYS]| {
            let limit = limit(3);
            let permitted = |_| matches!(ask(slots, ANN, &reading(&limit)), Some(WordOutcome::Permitted(_)));
            (0..2).filter(|turn| permitted(*turn)).count()
        };
        let other = Arc::clone(&slots);
        let other = loom::thread::spawn(move || both(&other));
        let permits = both(&slots) + other.join().unwrap();
        assert_eq!(permits, 3);
    });
}

/// Prefaulting exchanges a word for itself, while another thread spends units of it.
#[test]
fn prefaulting_takes_nothing_back() {
    explore(None, || {
        let slots = line(0);
        let other = Arc::clone(&slots);
        let other = loom::thread::spawn(move || other.iter().chain(&*other).for_each(Slot::prefault));
        let limit = limit(2);
        let by = reading(&limit);
        let permitted = |_: &usize| matches!(ask(&slots, ANN, &by), Some(WordOutcome::Permitted(_)));
        assert_eq!((0..3).filter(permitted).count(), 2);
        other.join().unwrap();
        assert!(matches!(ask(&slots, ANN, &by), Some(WordOutcome::Refused(_))));
    });
}

/// A check finds its slot without seizing it, and seizes it afterwards. In between, the slot goes to another key, whose
/// word is equal to the one that was read.
#[test]
fn a_check_never_spends_of_the_key_that_got_its_slot() {
    for at in 0..2 {
        explore(None, move || {
            let limit = limit(5);
            let by = reading(&limit);
            let slots = line(at);
            let Some(WordOutcome::Permitted(word)) = ask(&slots, ANN, &by) else { unreachable!() };
            let other = {
                let slots = Arc::clone(&slots);
                loom::thread::spawn(move || {
                    let held = CacheLine::of(&slots).lock();
                    let Some(mut seized) = held.word(at).and_then(|seen| held.try_seize(at, seen)) else {
                        return false;
                    };
                    seized.rename(&held, BOB);
                    seized.word = word;
                    true
                })
            };
            let taken = ask(&slots, ANN, &by);
            let gone = other.join().unwrap();
            let line = CacheLine::of(&slots);
            let (held, seized) = (line.lock(), line.seize(at));
            assert_eq!(held.name(at), if gone { BOB } else { ANN });
            if gone {
                assert_eq!(seized.word, word, "{taken:?}");
            } else {
                assert_eq!(taken, Some(WordOutcome::Permitted(seized.word)), "not told to be elsewhere");
            }
        });
    }
}

/// Two threads seize two slots in ascending order, beside a third that seizes one: changes are all or nothing, and
/// there is no deadlock.
#[test]
fn two_slots_in_hand_are_changed_as_one() {
    explore(Some(2), || {
        let slots = line(0);
        let turn = |slots: &[Slot; WAYS]| {
            let (mut first, mut second) = (CacheLine::of(slots).seize(0), CacheLine::of(slots).seize(1));
            assert_eq!(first.word, second.word, "nobody is between the two");
            first.word += 1;
            second.word += 1;
        };
        let other = Arc::clone(&slots);
        let other = loom::thread::spawn(move || turn(&other));
        turn(&slots);
        other.join().unwrap();
        assert_eq!(CacheLine::of(&slots).seize(1).word, 2);
    });
}

/// Two threads add the same key at once: it gets one slot.
#[test]
fn a_key_that_two_bring_gets_one_slot() {
    explore(Some(3), || {
        let slots = line(0);
        let bring = |slots: &[Slot; WAYS]| {
            let held = CacheLine::of(slots).lock();
            if held.find(BOB, |_| true).is_none() {
                let word = held.word(1).unwrap();
                held.try_seize(1, word).unwrap().rename(&held, BOB);
                return 1;
            }
            0
        };
        let other = Arc::clone(&slots);
        let other = loom::thread::spawn(move || bring(&other));
        assert_eq!(bring(&slots) + other.join().unwrap(), 1);
    });
}
