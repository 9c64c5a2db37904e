//! An exported table may hold any bytes with a valid checksum: it is refused, or the restored table can decide and be
//! exported again.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tidegate::store::{Charge, MemoryStore, Op, Seed, Step, Store as _};
use tidegate::{Cost, Quota, Tick};
use twox_hash::XxHash64;

/// The bytes of a piece before its content: version, kind, part and number.
const HEAD: usize = 11;

static SEED: LazyLock<Seed> = LazyLock::new(|| Seed::from_bytes([7; 32]));

/// An export of one key, in its pieces. The first is not fuzzed, because it identifies the table's seed.
static PIECES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let store = MemoryStore::with_seed(64, &SEED).expect("room for few keys");
    let quota = Arc::new(Quota::per_hour(5).sliding_log().expect("constant parameters in range"));
    let charges = [Charge::new(b"key", &quota, Cost::ONE)];
    store.execute(&Step::new(Tick::from_secs(1), Op::Take, &charges)).expect("one key");
    store.export().expect("the seed is known").collect()
});

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = XxHash64::oneshot(0, &bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fuzz_target!(|input: (&[u8], u64, bool)| {
    let (content, count, keeps_head) = input;
    let [first, entries, last] = &PIECES[..] else { panic!("three pieces: {}", PIECES.len()) };
    let head = if keeps_head { &entries[..HEAD] } else { &[] };
    let entries = sealed([head, content].concat());
    // The total number of entries follows the head of the last piece.
    let mut last = last[..last.len() - 8].to_vec();
    last[HEAD..HEAD + 8].copy_from_slice(&(count % 64).to_le_bytes());
    let Ok(store) = MemoryStore::restore(64, &SEED, [first.clone(), entries, sealed(last)]) else { return };
    let quota = Arc::new(Quota::per_hour(5).sliding_log().expect("constant parameters in range"));
    let charges = [Charge::new(b"key", &quota, Cost::ONE)];
    let _ = store.execute(&Step::new(Tick::from_secs(2), Op::Take, &charges));
    assert!(store.occupancy().used <= store.occupancy().capacity);
    let pieces: Vec<Vec<u8>> = store.export().into_iter().flatten().collect();
    assert!(MemoryStore::restore(64, &SEED, pieces).is_ok(), "what was exported is restored");
});
