use proptest::prelude::*;

use super::*;

fn partition(weight: u32, guaranteed: u8, lends: u8) -> Partition {
    Partition::default().weight(weight).unwrap().guaranteed(guaranteed).unwrap().lends(lends).unwrap()
}

fn ms(millis: u64) -> Tick {
    Tick::from_nanos(millis * 1_000_000)
}

#[test]
fn what_is_not_lent_is_free_at_once() {
    let mut places = Partitions::new(10);
    let batch = places.add(partition(1, 0, 100), Tick::EPOCH).unwrap();
    let users = places.add(partition(1, 50, 40), Tick::EPOCH).unwrap();
    assert_eq!(places.own(users), 5);
    let mut borrowed = 0;
    while places.has_room(batch, 1) {
        assert!(!places.enter(batch, 1, Tick::EPOCH));
        borrowed += 1;
    }
    assert_eq!(borrowed, 7, "three of five are not lent");
    for _ in 0..3 {
        assert!(places.has_room(users, 1) && places.enter(users, 1, Tick::EPOCH));
    }
    assert!(!places.has_room(users, 1), "two are lent");
    places.leave(batch, 1, false, ms(1));
    assert_eq!(places.next([(batch, 1), (users, 1)].into_iter(), ms(1)), Some(users));
}

#[test]
fn guarantees_add_up_to_no_more_than_the_limit_whatever_it_is() {
    let mut places = Partitions::new(1);
    let thirds = [33, 33, 34].map(|percent| places.add(partition(1, percent, 0), Tick::EPOCH).unwrap());
    assert!(places.add(partition(1, 1, 0), Tick::EPOCH).is_err());
    for limit in [1, 2, 3, 7, 10, 65_536, u64::MAX] {
        places.change(limit);
        let own = thirds.map(|number| places.own(number));
        assert_eq!(own.iter().sum::<u64>(), limit, "{own:?}");
    }
    places.forget(thirds[0]);
    assert!(places.add(partition(1, 33, 0), Tick::EPOCH).is_ok(), "what it had is free again");
}

#[test]
fn whoever_idled_does_not_catch_up() {
    let mut places = Partitions::new(1);
    let [one, other] = [0, 1].map(|_| places.add(Partition::default(), Tick::EPOCH).unwrap());
    for turn in 0..100 {
        places.enter(one, 1, ms(turn * 10));
        places.leave(one, 1, false, ms(turn * 10 + 10));
    }
    let mut turns = Vec::new();
    places.wait(other, ms(1000));
    for turn in 100..108 {
        let next = places.next([(one, 1), (other, 1)].into_iter(), ms(turn * 10)).unwrap();
        places.enter(next, 1, ms(turn * 10));
        places.leave(next, 1, false, ms(turn * 10 + 10));
        turns.push(next == one);
    }
    assert_eq!(turns.iter().filter(|turn| **turn).count(), 4, "{turns:?}");
}

#[test]
fn slow_calls_do_not_take_more_than_their_part() {
    let mut world = World::new(4, &[(1, 90), (1, 3)]);
    world.run(200_000);
    let [slow, fast] = world.received[..] else { panic!() };
    let share = slow as f64 / (slow + fast) as f64;
    assert!((0.49..0.51).contains(&share), "{share}");
}

#[test]
fn knobs_out_of_range_are_named() {
    assert!(Partition::default().weight(0).is_err() && Partition::default().weight(1_000_001).is_err());
    let told = Partition::default().guaranteed(101).unwrap_err().to_string();
    assert_eq!(size_of::<Option<Member>>(), 80);
    assert_eq!(told, "guaranteed 101 is more than all of it; use 0 to 100 percent");
}

/// Tenants that all have more work than there are places, at every moment.
struct World {
    places: Partitions,
    now: u64,
    /// By tenant: weight, and how long its work takes at the longest, in milliseconds.
    tenants: Vec<(u32, u64)>,
    inside: Vec<(u64, usize, u64)>,
    /// Place-time in nanoseconds by tenant, entry costs included.
    received: Vec<u128>,
    seed: u64,
    limit: u64,
}

impl World {
    fn new(limit: u64, tenants: &[(u32, u64)]) -> Self {
        let mut places = Partitions::new(limit);
        for (weight, _) in tenants {
            places.add(partition(*weight, 0, 100), Tick::EPOCH).unwrap();
        }
        let (tenants, received) = (tenants.to_vec(), vec![0; tenants.len()]);
        Self { places, now: 0, tenants, inside: Vec::new(), received, seed: 1, limit }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % below
    }

    fn fill(&mut self) {
        let all = 0..self.tenants.len();
        while let Some(next) = self.places.next(all.clone().map(|number| (number, 1)), ms(self.now)) {
            if !self.places.has_room(next, 1) {
                break;
            }
            self.places.enter(next, 1, ms(self.now));
            self.received[next] += u128::from(ENTRY_COST);
            let hold = 1 + self.draw(self.tenants[next].1);
            self.inside.push((self.now + hold, next, self.now));
        }
        assert_eq!(self.inside.len() as u64, self.limit, "work-conserving, and never above the limit");
    }

    fn run(&mut self, until: u64) {
        self.fill();
        while self.now < until {
            let soonest = (0..self.inside.len()).min_by_key(|at| self.inside[*at].0).unwrap();
            let (end, tenant, began) = self.inside.swap_remove(soonest);
            self.now = end;
            self.places.leave(tenant, 1, false, ms(end));
            self.received[tenant] += u128::from((end - began) * 1_000_000);
            self.fill();
        }
    }

    /// Service by weight; work inside counts for the time it has run so far.
    fn by_weight(&self) -> Vec<i128> {
        let mut received = self.received.clone();
        for (_, tenant, began) in &self.inside {
            received[*tenant] += u128::from((self.now - began) * 1_000_000);
        }
        let weights = self.tenants.iter().map(|(weight, _)| u128::from(*weight));
        received.iter().zip(weights).map(|(all, weight)| (all / weight) as i128).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For spans of any length, from any moment on.
    #[test]
    fn tenants_that_wait_are_served_by_weight_within_the_bound(
        limit in 1..20_u64,
        tenants in prop::collection::vec((1..9_u32, 1..200_u64), 2..6),
    ) {
        let mut world = World::new(limit, &tenants);
        let longest = tenants.iter().map(|(_, longest)| *longest).max().unwrap();
        let bound = 2 * world.places.bound(Duration::from_millis(longest)) as i128;
        let mut moments: Vec<Vec<i128>> = Vec::new();
        for step in 1..40 {
            world.run(step * 500);
            let now = world.by_weight();
            for earlier in &moments {
                let gained: Vec<i128> = now.iter().zip(earlier).map(|(now, then)| now - then).collect();
                let apart = gained.iter().max().unwrap() - gained.iter().min().unwrap();
                prop_assert!(apart <= bound, "{} ns apart, bound {}", apart, bound);
            }
            moments.push(now);
        }
    }

    /// For any entries and exits, with limits that move.
    #[test]
    fn the_limit_is_kept_and_own_places_are_there(
        steps in prop::collection::vec((0..5_usize, 1..4_u64, 0..3_u8, 1..12_u64), 1..200),
    ) {
        let terms = [partition(1, 30, 50), partition(2, 20, 0), partition(3, 0, 100), partition(1, 10, 100)];
        let mut places = Partitions::new(10);
        let numbers = terms.map(|terms| places.add(terms, Tick::EPOCH).unwrap());
        let (mut limit, mut inside) = (10, Vec::new());
        for (at, (which, wanted, what, other)) in steps.into_iter().enumerate() {
            let now = ms(at as u64);
            let in_use: u64 = numbers.iter().map(|number| places.in_use(*number)).sum();
            prop_assert_eq!(in_use, inside.iter().map(|(_, wanted, _)| *wanted).sum::<u64>());
            match what {
                0 if which < 4 && places.has_room(which, wanted) => {
                    prop_assert!(in_use + wanted <= limit);
                    inside.push((which, wanted, places.enter(which, wanted, now)));
                }
                1 if !inside.is_empty() => {
                    let (which, wanted, own) = inside.swap_remove(other as usize % inside.len());
                    places.leave(which, wanted, own, now);
                }
                // Nobody else can take the places that partition 1 does not lend. A lowered limit has to drain first.
                _ if which == 4 && inside.is_empty() => {
                    limit = other;
                    places.change(limit);
                }
                _ => {}
            }
            let not_lent = places.own(1).saturating_sub(places.in_use(1));
            prop_assert!(not_lent == 0 || places.has_room(1, not_lent));
        }
    }
}
