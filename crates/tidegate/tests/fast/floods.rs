//! Millions of new keys, and keys chosen to collide in a line of the table.

use std::collections::HashSet;

use tidegate::clock::ManualClock;
use tidegate::limiter::QuotaBuilder;
use tidegate::store::Occupancy;
use tidegate::{KeyedLimiter, Quota};

use super::{Random, cost, steps};

/// Sends fifty times the capacity in new keys, one unit each, after keys that have used up their limit. Returns how
/// many of the used-up keys were allowed too early, how many there were, and the counts of the table.
fn flood(quota: QuotaBuilder, used_up: u64, percent: u64) -> (u64, u64, Occupancy) {
    let capacity = steps(2000);
    let keys = KeyedLimiter::new(quota, capacity as usize).unwrap().with_clock(ManualClock::default());
    let debtors = capacity * percent / 100;
    let debtor = |number: u64| format!("debtor {number}");
    for number in 0..debtors {
        assert!(keys.allow_n(debtor(number), cost(used_up)).unwrap().is_allowed());
    }
    for number in 0..50 * capacity {
        assert!(keys.allow(number.to_le_bytes()).is_allowed(), "a new key starts full");
    }
    let occupancy = keys.occupancy();
    assert!(occupancy.used <= occupancy.capacity);
    assert!(occupancy.evicted >= 48 * capacity, "somebody had to go: {occupancy:?}");
    let early = (0..debtors).filter(|number| keys.peek(debtor(*number)).is_allowed()).count() as u64;
    (early, debtors, occupancy)
}

/// A debtor is evicted only from two lines full of debtors, so none is while at most a tenth of the capacity is
/// debtors.
#[test]
fn a_flood_frees_nobody_who_is_over_the_limit_while_a_tenth_of_the_capacity_is() {
    for percent in [1, 10] {
        let (early, debtors, occupancy) = flood(Quota::per_hour(5), 5, percent);
        assert_eq!((early, occupancy.evicted_over_limit), (0, 0), "{percent} %, {debtors}: {occupancy:?}");
    }
}

/// When a good part of the capacity is over its limit, lines fill up with debtors, and debtors in such lines are
/// evicted too. Each of these evictions is counted.
#[test]
fn whoever_is_freed_by_a_flood_is_counted() {
    for percent in [30, 60, 90] {
        let (early, debtors, occupancy) = flood(Quota::per_hour(5), 5, percent);
        println!("{percent} %: {early} of {debtors} freed; {occupancy:?}");
        assert!(early <= occupancy.evicted_over_limit, "{percent} %: {early} of {debtors}: {occupancy:?}");
    }
}

/// Under a limit of one unit, every new key is over its limit at once. Then the key with the shortest time left is
/// evicted, which is the oldest, and the count shows these evictions.
#[test]
fn in_a_flood_of_keys_that_are_all_over_their_limit_the_nearest_to_its_time_goes() {
    let (early, debtors, occupancy) = flood(Quota::per_hour(1), 1, 10);
    assert_eq!(occupancy.evicted_over_limit, occupancy.evicted);
    assert!(early <= occupancy.evicted_over_limit, "{early} of {debtors}: {occupancy:?}");
    let clock = ManualClock::default();
    let keys = KeyedLimiter::new(Quota::per_hour(1), 1).unwrap().with_clock(clock.clone());
    let mut made = 0u64;
    while keys.occupancy().used < keys.occupancy().capacity {
        assert!(keys.allow(made.to_le_bytes()).is_allowed());
        clock.advance(std::time::Duration::from_secs(1));
        made += 1;
    }
    assert!(keys.allow("one more").is_allowed());
    assert_eq!((keys.occupancy().evicted, keys.occupancy().evicted_over_limit), (1, 1));
    assert!(keys.peek(0u64.to_le_bytes()).is_allowed(), "the first went");
    assert!((1..made).all(|key| !keys.peek(key.to_le_bytes()).is_allowed()), "nobody else did");
}

/// Fills a table to its nominal capacity. Returns the numbers of the evicted keys.
fn crowded(key: &dyn Fn(u64) -> Vec<u8>) -> HashSet<u64> {
    let capacity = steps(10_000);
    let keys =
        KeyedLimiter::new(Quota::per_hour(5), capacity as usize).unwrap().with_clock(ManualClock::default());
    for number in 0..capacity {
        assert!(keys.allow(key(number)).is_allowed());
    }
    let gone: HashSet<u64> =
        (0..capacity).filter(|number| keys.peek(key(*number)).remaining() == 5).collect();
    assert_eq!(gone.len() as u64, keys.occupancy().evicted);
    gone
}

fn chance(number: u64) -> Vec<u8> {
    let mut random = Random::seeded(number + 1);
    (0..3).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect()
}

/// The name of a pattern, and its key for each number.
type Pattern<'a> = (&'a str, &'a dyn Fn(u64) -> Vec<u8>);

/// Sequences, keys that agree in their low or high bits, keys of zeros with different lengths, common prefixes and
/// suffixes: keys that crowd a table without a seed. They spread like random keys, of which one in two hundred is
/// evicted.
#[test]
fn keys_made_to_meet_spread_like_keys_by_chance() {
    let capacity = steps(10_000) as usize;
    let patterns: [Pattern<'_>; 9] = [
        ("chance", &chance),
        ("in sequence", &|n| n.to_le_bytes().to_vec()),
        ("low bits alike", &|n| (n << 40).to_le_bytes().to_vec()),
        ("high bits alike", &|n| (!0 << 32 | n).to_le_bytes().to_vec()),
        ("multiples of the golden ratio", &|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes().to_vec()),
        ("zeros of many lengths", &|n| {
            vec![0; n as usize % 4096].into_iter().chain([(n / 4096) as u8]).collect()
        }),
        ("a long prefix", &|n| format!("{}{n}", "tenant/eu-west/customer/".repeat(4)).into_bytes()),
        ("a long suffix", &|n| format!("{n}{}", "/api/v1/resource".repeat(4)).into_bytes()),
        ("addresses", &|n| [10, (n >> 16) as u8, (n >> 8) as u8, n as u8].to_vec()),
    ];
    for (name, key) in patterns {
        let gone = crowded(key).len();
        assert!(gone < capacity / 100, "{name}: {gone} of {capacity} were given up");
    }
}

/// Keys that crowd one process do not crowd the next: no more of them collide again than by chance.
#[test]
fn keys_that_crowd_one_store_do_not_crowd_another() {
    let key = |n: u64| n.to_le_bytes().to_vec();
    let (one, other) = (crowded(&key), crowded(&key));
    assert!(!one.is_empty() && !other.is_empty());
    let both = one.intersection(&other).count();
    assert!(both <= 3 + one.len() / 20, "{both} of {} and {}", one.len(), other.len());
}
