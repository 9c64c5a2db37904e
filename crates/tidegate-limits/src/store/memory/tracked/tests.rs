use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::{Cost, Decision, Finish, Outcome, Quota, Receipt, Tick};

use super::*;
use crate::store::conformance::{Random, quotas};
use crate::store::{Charge, Ending, Op, PlainStore, RestoreError};

const NOW: Duration = Duration::ZERO;

/// The pieces that were handed out and stored, as an engine would store them.
#[derive(Default)]
struct Journal {
    pieces: Vec<Vec<u8>>,
    round_began: usize,
}

impl Journal {
    fn keep(&mut self, recorder: &mut Recorder) {
        while let Some(piece) = recorder.changes(|| NOW) {
            self.pieces.push(piece);
        }
        let part = recorder.lines(10, 1000, || NOW);
        self.pieces.extend(part.piece);
        if part.ends {
            self.pieces.drain(..self.round_began);
            self.round_began = self.pieces.len();
        }
        recorder.kept();
    }

    fn read(&self, store: &TrackedStore, now: Tick) -> Result<Recorder, RestoreError> {
        let mut recorder = store.recorder();
        self.pieces.iter().rev().try_for_each(|piece| recorder.restore(piece, now))?;
        recorder.all_restored();
        Ok(recorder)
    }
}

fn make(full_keys: bool, seed: &Seed) -> TrackedStore {
    let make = if full_keys { TrackedStore::with_full_keys_and_seed } else { TrackedStore::with_seed };
    make(64, seed).expect("room for few keys")
}

/// The comparable part of an answer. The marks of receipts are left out: those of a key that was full again and was
/// forgotten start over.
fn comparable(settled: &Settled) -> (bool, Duration, Vec<(Decision, Option<Cost>)>) {
    let lines = settled.lines.iter().map(|line| (line.decision, line.receipt.map(|receipt| receipt.cost)));
    (settled.allowed, settled.wait, lines.collect())
}

/// A store that is now and then discarded and restored from what was handed out so far, compared with a plain map that
/// never is.
#[test]
fn a_store_that_was_taken_back_answers_as_one_that_was_never_gone() {
    for (full_keys, round) in
        [false, true].into_iter().flat_map(|full| (1..=6).map(move |round| (full, round)))
    {
        let (seed, quotas, mut random) = (Seed::random(), quotas(), Random::seeded(round));
        let (mut store, plain) = (make(full_keys, &seed), PlainStore::default());
        let (mut journal, mut recorder) = (Journal::default(), store.recorder());
        let (mut now, mut made) = (Tick::from_secs(1000), Vec::new());
        for turn in 0..3000 {
            now = now.after(Duration::from_millis(random.below(400)));
            let keys = [random.below(20), 20 + random.below(20)].map(|key| [key as u8]);
            // Each key has the same limit most of the time.
            let quota = |key: u8| match random.below(20) {
                0 => &quotas[(key as usize + 1) % quotas.len()],
                _ => &quotas[key as usize % quotas.len()],
            };
            let limits = keys.map(|[key]| key).map(quota);
            let both: Vec<Charge<'_>> =
                keys.iter().zip(limits).map(|(key, quota)| Charge::new(key, quota, Cost::ONE)).collect();
            let charges = &both[..1 + random.below(2) as usize];
            let (op, charges) = match random.below(12) {
                0 => (Op::Reset, charges),
                1 => (Op::Peek, charges),
                2 | 3 if !made.is_empty() => {
                    let (key, quota, receipts): ([u8; 1], Arc<Quota>, [Receipt; 2]) =
                        made.swap_remove(random.below(made.len() as u64) as usize);
                    let finish = Finish { used: random.below(3), outcome: Outcome::Success };
                    let charges = [Charge::new(&key, &quota, Cost::ONE)];
                    let [ours, theirs] = receipts.map(|receipt| [Ending::new(receipt, finish)]);
                    let answer = store.blocking_settle(&Step::new(now, Op::Finish(&ours), &charges));
                    let expected = plain.blocking_settle(&Step::new(now, Op::Finish(&theirs), &charges));
                    assert_eq!(
                        comparable(&answer.unwrap()),
                        comparable(&expected.unwrap()),
                        "round {round}, turn {turn}"
                    );
                    continue;
                }
                _ => (Op::Take, charges),
            };
            let step = Step::new(now, op, charges);
            let answer = store.blocking_settle(&step).unwrap();
            let expected = plain.blocking_settle(&step).unwrap();
            assert_eq!(comparable(&answer), comparable(&expected), "round {round}, turn {turn}");
            if matches!(op, Op::Take) && made.len() < 30 {
                let lines = answer.lines.iter().zip(&expected.lines);
                for (charge, (ours, theirs)) in charges.iter().zip(lines) {
                    let both = ours.receipt.zip(theirs.receipt).map(|(ours, theirs)| [ours, theirs]);
                    made.extend(both.map(|both| ([charge.key[0]], Arc::clone(charge.quota), both)));
                }
            }
            match random.below(60) {
                0..4 => journal.keep(&mut recorder),
                4 => {
                    // Handed out but not stored: handed out again later.
                    while recorder.changes(|| NOW).is_some() {}
                    let _ = recorder.lines(2, 100, || NOW);
                    recorder.lost();
                    journal.round_began = journal.pieces.len();
                }
                5 => {
                    journal.keep(&mut recorder);
                    store = make(full_keys, &seed);
                    recorder = journal.read(&store, now).unwrap();
                    assert!(!recorder.has_changes(), "what was read is kept already");
                    journal.round_began = journal.pieces.len();
                }
                _ => {}
            }
        }
        assert!(journal.pieces.len() < 200, "rounds through the table keep the journal short");
    }
}

#[test]
fn nothing_is_missed_of_what_threads_charge_meanwhile() {
    let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(1_000_000).gcra().unwrap()));
    let store = TrackedStore::with_seed(64, &seed).unwrap();
    let (mut journal, mut recorder, stop) = (Journal::default(), store.recorder(), AtomicBool::new(false));
    let now = Tick::from_secs(1000);
    let left = |store: &TrackedStore, key: u8| {
        let key = [key];
        let charges = [Charge::new(&key, &day, Cost::ONE)];
        let peeked = store.blocking_settle(&Step::new(now, Op::Peek, &charges)).unwrap();
        peeked.lines[0].decision.standing.remaining
    };
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (store, day, stop) = (&store, &day, &stop);
            scope.spawn(move || {
                let mut random = Random::seeded(thread + 1);
                while !stop.load(Ordering::Relaxed) {
                    let key = [random.below(40) as u8];
                    let charges = [Charge::new(&key, day, Cost::ONE)];
                    store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap();
                }
            });
        }
        for _ in 0..300 {
            journal.keep(&mut recorder);
        }
        stop.store(true, Ordering::Relaxed);
    });
    journal.keep(&mut recorder);
    let next = TrackedStore::with_seed(64, &seed).unwrap();
    journal.read(&next, now).unwrap();
    for key in 0..40 {
        assert_eq!(left(&next, key), left(&store, key), "key {key}");
    }
}

#[test]
fn what_is_full_again_soon_is_left_out() {
    let seed = Seed::random();
    let store = TrackedStore::with_seed(64, &seed).unwrap();
    let mut recorder = store.recorder();
    let quotas =
        [Quota::per_second(100).gcra(), Quota::per_hour(100).gcra()].map(|quota| Arc::new(quota.unwrap()));
    let charge = |key: &[u8], quota| {
        let charges = [Charge::new(key, quota, Cost::ONE)];
        store.blocking_settle(&Step::new(Tick::from_secs(1000), Op::Take, &charges)).unwrap();
    };
    charge(b"short", &quotas[0]);
    assert_eq!(recorder.changes(|| Duration::from_millis(200)), None, "full in ten milliseconds");
    recorder.kept();
    charge(b"short", &quotas[0]);
    charge(b"long", &quotas[1]);
    let piece = recorder.changes(|| Duration::from_millis(200)).unwrap();
    assert!(piece.len() < 110, "one key: {} bytes", piece.len());
    recorder.kept();
    assert!(!recorder.has_changes());
}

#[test]
fn states_of_a_clock_that_was_fast_are_as_empty_as_they_were() {
    let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(10).gcra().unwrap()));
    let (fast, right) = (Tick::from_secs(40_000_000), Tick::from_secs(1_000_000));
    let charges = [Charge::new(b"ann", &day, Cost::new(10).unwrap())];
    let allowed = |store: &TrackedStore, now| {
        store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed
    };
    let store = TrackedStore::with_seed(64, &seed).unwrap();
    assert!(allowed(&store, fast));
    let piece = store.recorder().changes(|| NOW).unwrap();
    let next = TrackedStore::with_seed(64, &seed).unwrap();
    next.recorder().restore(&piece, right).unwrap();
    assert!(!allowed(&next, right), "granted once is granted");
    assert!(!allowed(&next, right.after(Duration::from_secs(86_000))));
    assert!(allowed(&next, right.after(Duration::from_secs(86_420))), "and time goes on from now");
}

#[test]
fn bytes_of_another_store_and_altered_ones_are_refused() {
    let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(10).gcra().unwrap()));
    let store = TrackedStore::with_seed(64, &seed).unwrap();
    let charges = [Charge::new(b"ann", &day, Cost::ONE)];
    store.blocking_settle(&Step::new(Tick::from_secs(1000), Op::Take, &charges)).unwrap();
    let mut piece = store.recorder().changes(|| NOW).unwrap();
    let now = Tick::from_secs(1000);
    for other in [TrackedStore::with_seed(640, &seed), TrackedStore::with_full_keys_and_seed(64, &seed)] {
        assert_eq!(other.unwrap().recorder().restore(&piece, now), Err(RestoreError::Form));
    }
    for bit in 0..piece.len() * 8 {
        piece[bit / 8] ^= 1 << (bit % 8);
        let next = TrackedStore::with_seed(64, &seed).unwrap();
        assert_eq!(next.recorder().restore(&piece, now), Err(RestoreError::Damaged { piece: 0 }));
        piece[bit / 8] ^= 1 << (bit % 8);
    }
    for length in 0..piece.len() {
        let next = TrackedStore::with_seed(64, &seed).unwrap();
        assert!(next.recorder().restore(&piece[..length], now).is_err());
    }
}

#[test]
fn a_store_of_another_size_takes_over() {
    let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(10).gcra().unwrap()));
    let now = Tick::from_secs(1000);
    let (store, larger) =
        (TrackedStore::with_seed(64, &seed).unwrap(), TrackedStore::with_seed(6400, &seed).unwrap());
    let keys: Vec<[u8; 1]> = (0..40).map(|key| [key]).collect();
    for key in &keys {
        let charges = [Charge::new(key, &day, Cost::new(10).unwrap())];
        assert!(store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed);
    }
    let mut recorder = larger.recorder();
    recorder.take_over(&store).unwrap();
    assert!(recorder.has_changes());
    for key in &keys {
        let charges = [Charge::new(key, &day, Cost::ONE)];
        assert!(!larger.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed);
    }
    let other = TrackedStore::with_seed(64, &Seed::random()).unwrap();
    assert_eq!(recorder.take_over(&other), Err(RestoreError::Seed));
}
