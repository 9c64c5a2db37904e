//! Hash-flooding attempts: keys that were chosen to meet in the same lines.
//!
//! An attacker has the code and can choose keys that collide in any table except the victim's, whose seed is drawn when
//! it is made. Keys that crowd one line there must not meet here, and no pattern of keys may crowd lines under any
//! seed.

use std::collections::{HashMap, HashSet};

use super::{Keep, Table, WAYS};

const KEYS: usize = 50_000;

/// More keys than a line has room for.
const CROWD: usize = WAYS + 1;

/// Returns how many of the keys share their first line with so many others that it is crowded, and whether any two have
/// the same fingerprint.
fn crowded<K: AsRef<[u8]>>(table: &Table, keys: &[K]) -> (usize, bool) {
    let mut lines: HashMap<usize, usize> = HashMap::new();
    let mut fingerprints = HashSet::new();
    for key in keys {
        let fingerprint = table.fingerprint(key.as_ref());
        *lines.entry(table.first(fingerprint)).or_default() += 1;
        fingerprints.insert(fingerprint.0);
    }
    let crowd = lines.values().filter(|count| **count >= CROWD).sum();
    (crowd, fingerprints.len() < keys.len())
}

/// Families of keys that a weak hash maps to similar values.
fn patterns() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let of = |make: &dyn Fn(usize) -> Vec<u8>| (0..KEYS).map(make).collect::<Vec<_>>();
    let beside = |at: usize, length: usize| {
        let mut key = vec![0; length];
        let place = at % (length - 3);
        // Three bytes of a number, somewhere among zeros.
        key[place..place + 3].copy_from_slice(&(at as u32 + 1).to_le_bytes()[..3]);
        key
    };
    vec![
        ("a counter", of(&|at| (at as u64).to_le_bytes().to_vec())),
        ("a counter in the upper half", of(&|at| ((at as u64) << 47).to_be_bytes().to_vec())),
        ("zeros of every length", (0..2000).map(|length| vec![0; length]).collect()),
        ("ones of every length", (0..2000).map(|length| vec![0xFF; length]).collect()),
        ("a number among 16 zeros", of(&|at| beside(at, 16))),
        ("a number among 17 zeros", of(&|at| beside(at, 17))),
        ("a number among 300 zeros", of(&|at| beside(at, 300))),
        ("one half twice", of(&|at| [(at as u64).to_le_bytes(); 2].concat())),
        ("eight bytes, four times", of(&|at| [(at as u64).to_le_bytes(); 4].concat())),
        ("after a long beginning", of(&|at| format!("{}:{at}", "tenant/".repeat(40)).into_bytes())),
        ("before a long end", of(&|at| format!("{at}:{}", "/tenant".repeat(40)).into_bytes())),
        ("addresses", of(&|at| format!("10.{}.{}.{}", at >> 16, at >> 8 & 255, at & 255).into_bytes())),
    ]
}

/// Of 50,000 keys that fall by chance on 183,334 lines, nine are in crowded lines; a hundred are so with odds of 1 in
/// 10¹⁴.
#[test]
fn no_pattern_of_keys_crowds_lines() {
    for _ in 0..crate::sync::short_or_long(1, 4) {
        let table = Table::new(10 * KEYS, Keep::Fingerprints).unwrap();
        for (name, keys) in patterns() {
            let keys: Vec<_> = keys.into_iter().collect::<HashSet<_>>().into_iter().collect();
            let (crowd, met) = crowded(&table, &keys);
            assert!(crowd < 100, "{name}: {crowd} keys in crowded lines");
            assert!(!met, "{name}: two keys of one fingerprint");
        }
    }
}

/// Keys that all lie in sixteen lines of an attacker's own table are spread over the victim's table: of 2,000 keys on
/// 3,667 lines, five are in crowded lines by chance, and sixty with odds of 1 in 10¹⁰.
#[test]
fn keys_that_crowd_one_table_are_strangers_in_another() {
    let (theirs, ours) =
        (Table::new(10_000, Keep::Fingerprints).unwrap(), Table::new(10_000, Keep::Fingerprints).unwrap());
    let number = |at: u64| format!("user:{at}");
    let chosen: Vec<String> = (0..)
        .map(number)
        .filter(|key| theirs.first(theirs.fingerprint(key.as_bytes())) < 16)
        .take(2000)
        .collect();
    assert_eq!(crowded(&theirs, &chosen).0, chosen.len(), "they crowd there");
    let (crowd, _) = crowded(&ours, &chosen);
    assert!(crowd < 60, "{crowd} of {} keys are in crowded lines here", chosen.len());
}
