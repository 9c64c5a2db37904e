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

/// Partitions whose work hangs leave places for all others, however many they are, and hold up nobody while they wait.
#[test]
fn below_a_dynamic_threshold_as_many_places_are_free_as_each_holds() {
    let mut places = Partitions::new(12);
    let hangs = Partition::default().dynamic_threshold();
    let [one, other, well] = [0, 1, 2].map(|_| places.add(hangs, Tick::EPOCH).unwrap());
    let fill = |places: &mut Partitions, number: usize| {
        while places.has_room(number, 1) {
            places.enter(number, 1, Tick::EPOCH);
        }
        places.in_use(number)
    };
    assert_eq!(fill(&mut places, one), 6, "half of the limit");
    assert_eq!(fill(&mut places, other), 3);
    let both = [(one, 1), (other, 1)].into_iter();
    assert_eq!(places.next(both, ms(1)), None, "three are free, and both hold more");
    assert_eq!(places.next([(one, 1), (well, 1)].into_iter(), ms(1)), Some(well));
    assert!(places.is_next((well, 1), [(one, 1), (other, 1)].into_iter(), ms(1)));
    assert_eq!(fill(&mut places, well), 2);
    places.leave(one, 6, false, ms(2));
    assert_eq!(places.next([(one, 8), (well, 1)].into_iter(), ms(2)), Some(well), "eight are not saved up");
    let mut own = Partitions::new(4);
    let guaranteed = own.add(partition(1, 100, 100).dynamic_threshold(), Tick::EPOCH).unwrap();
    assert_eq!(fill(&mut own, guaranteed), 4, "its own part is its own");
    let mut last = Partitions::new(1);
    let alone = last.add(hangs, Tick::EPOCH).unwrap();
    assert_eq!(fill(&mut last, alone), 1);
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
    assert_eq!(size_of::<Option<Member>>(), 64);
    assert_eq!(told, "guaranteed 101 is more than all of it; use 0 to 100 percent");
}

/// One tenant lends all of its part, and the rest has borrowed it. Its caller waits for that; the other tenant lends
/// nothing, so its part is free for it all the same.
#[test]
fn what_is_not_lent_is_free_also_while_another_waits_for_what_it_has_lent() {
    let mut places = Partitions::new(10);
    let [rest, lender, keeper] = [partition(1, 0, 100), partition(1, 50, 100), partition(1, 50, 0)]
        .map(|terms| places.add(terms, Tick::EPOCH).unwrap());
    for _ in 0..5 {
        places.enter(rest, 1, Tick::EPOCH);
    }
    assert!(!places.has_room(rest, 1) && !places.has_room(lender, 1));
    assert_eq!(places.next([(lender, 1), (rest, 1)].into_iter(), ms(1)), None);
    assert!(!places.is_next((lender, 1), [(rest, 1)].into_iter(), ms(1)));
    assert!(places.is_next((keeper, 5), [(lender, 1), (rest, 1)].into_iter(), ms(1)));
    assert!(!places.is_next((keeper, 6), [(lender, 1), (rest, 1)].into_iter(), ms(1)));
    assert_eq!(places.next([(lender, 1), (keeper, 5), (rest, 1)].into_iter(), ms(1)), Some(keeper));
    places.leave(rest, 1, false, ms(2));
    assert_eq!(places.next([(rest, 1), (lender, 1)].into_iter(), ms(2)), Some(lender));
    assert_eq!([rest, lender, keeper].map(|number| places.most(number)), [5, 5, 10]);
}

/// Places are saved up for a wide ask whose turn it is. Others take no part of them, but what they do not lend.
#[test]
fn a_wide_ask_is_not_starved_by_narrow_ones() {
    let mut places = Partitions::new(10);
    let [wide, narrow, keeper] = [partition(1, 0, 100), partition(1, 0, 100), partition(1, 20, 0)]
        .map(|terms| places.add(terms, Tick::EPOCH).unwrap());
    for _ in 0..6 {
        places.enter(narrow, 1, Tick::EPOCH);
    }
    places.wait(wide, ms(1));
    let waiting = || [(narrow, 1), (wide, 4)].into_iter();
    assert!(places.has_room(narrow, 1) && !places.has_room(wide, 4));
    assert_eq!(places.next(waiting(), ms(1)), None, "two are free, and are saved up");
    assert_eq!(places.next(waiting().chain([(keeper, 2)]), ms(1)), Some(keeper));
    places.enter(keeper, 2, ms(1));
    places.leave(narrow, 2, false, ms(2));
    assert_eq!(places.next(waiting(), ms(2)), Some(wide));
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

    /// Any tenants, against plain arithmetic: nobody who has room waits. A wide ask may save up places, but not those
    /// that another does not lend.
    #[test]
    fn nobody_waits_who_has_room_and_guarantees_are_there_once_the_borrowers_leave(
        limit in 1..20_u64,
        terms in prop::collection::vec((0..=25_u8, 0..=100_u8), 2..5),
        widest in 1..4_u64,
        steps in prop::collection::vec((0..4_usize, 1..4_u64, any::<bool>()), 1..120),
    ) {
        let mut places = Partitions::new(limit);
        let numbers: Vec<usize> = terms
            .iter()
            .map(|(guaranteed, lends)| places.add(partition(1, *guaranteed, *lends), Tick::EPOCH).unwrap())
            .collect();
        let own: Vec<u64> = numbers.iter().map(|number| places.own(*number)).collect();
        let unlent: Vec<u64> = (0..own.len()).map(|at| own[at] - own[at] * u64::from(terms[at].1) / 100).collect();
        let mut inside: Vec<(usize, u64, bool)> = Vec::new();
        let mut waiting: Vec<Option<u64>> = vec![None; numbers.len()];
        for (at, (who, wanted, arrives)) in steps.into_iter().enumerate() {
            let (who, wanted, now) = (who % numbers.len(), wanted.min(widest), ms(at as u64));
            if arrives && wanted <= places.most(numbers[who]) && waiting[who].is_none() {
                let others = (0..numbers.len()).filter_map(|other| Some((numbers[other], waiting[other]?)));
                let others: Vec<(usize, u64)> = others.collect();
                let is_next = places.is_next((numbers[who], wanted), others.iter().copied(), now);
                places.wait(numbers[who], now);
                waiting[who] = Some(wanted);
                let next = places.next(others.into_iter().chain([(numbers[who], wanted)]), now);
                prop_assert_eq!(is_next, next == Some(numbers[who]));
            } else if !arrives && !inside.is_empty() {
                let (number, places_held, own) = inside.swap_remove(wanted as usize % inside.len());
                places.leave(number, places_held, own, now);
            }
            let asks = |waiting: &[Option<u64>]| {
                let asks = (0..numbers.len()).filter_map(|who| Some((numbers[who], waiting[who]?)));
                asks.collect::<Vec<_>>()
            };
            while let Some(next) = places.next(asks(&waiting).into_iter(), now) {
                let who = numbers.iter().position(|number| *number == next).unwrap();
                let wanted = waiting[who].take().unwrap();
                inside.push((next, wanted, places.enter(next, wanted, now)));
            }
            let held = |who: usize| -> u64 {
                inside.iter().filter(|(number, ..)| *number == numbers[who]).map(|(_, held, _)| *held).sum()
            };
            let taken: u64 = (0..own.len()).map(held).sum();
            prop_assert!(taken <= limit);
            let nobody_borrows = inside.iter().all(|(.., own)| *own);
            for (who, wanted) in waiting.iter().enumerate() {
                let Some(wanted) = *wanted else { continue };
                let kept: u64 = (0..own.len())
                    .filter(|other| *other != who)
                    .map(|other| unlent[other].saturating_sub(held(other)))
                    .sum();
                prop_assert!(widest > 1 || taken + kept + wanted > limit, "{who} has room and waits");
                prop_assert!(held(who) + wanted > unlent[who], "{who} waits for what it does not lend");
                prop_assert!(!nobody_borrows || held(who) + wanted > own[who], "{who} waits for its own");
            }
        }
    }
}
