//! Random callers that come and go, in all orders, priorities and tenants: never too many inside, and in the end all is
//! free.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::bulkhead::{Permit, QueueOrder, Tenants};
use tidegate::clock::{Clock, ManualClock};
use tidegate::concurrency::codel::Codel;
use tidegate::concurrency::{Aimd, Partition};
use tidegate::policy::{KeepFor, Kept};
use tidegate::priority::{Criticality, Priority};
use tidegate::{Bulkhead, Outcome, Tick};

use super::Waiter;

/// The longest wait of any caller, and the shorter one that some callers set.
const LONGEST: Duration = Duration::from_secs(5);
const SHORTER: Duration = Duration::from_millis(200);

/// The next step: what happens, how many places, at which priority, and which caller or tenant.
type Step = (u8, u8, u8, u8);

fn bulkhead(kind: u8, room: usize, clock: &ManualClock) -> Bulkhead {
    let order =
        [QueueOrder::Fifo, QueueOrder::Lifo, QueueOrder::Adaptive(Codel::default())][usize::from(kind % 3)];
    let fixed = Bulkhead::new(3).unwrap();
    let bulkhead = match kind / 3 % 4 {
        0 => fixed,
        1 => fixed.with_keep_for(KeepFor::default().with(Criticality::Critical, Kept::Units(1))).unwrap(),
        2 => {
            let own = Partition::default().guaranteed(40).unwrap();
            let kept = own.lends(0).unwrap();
            let tenants = Tenants::default().named([0], own).unwrap().named([1], kept).unwrap();
            fixed.with_tenants(tenants.each(Partition::default(), 2).unwrap())
        }
        _ => Bulkhead::adaptive(Aimd::default()),
    };
    bulkhead.with_clock(clock.clone()).with_room(room).with_order(order).with_longest_wait(LONGEST)
}

#[derive(Default)]
struct World {
    permits: Vec<Permit>,
    /// Permits of other bulkheads that no longer exist.
    orphans: Vec<Permit>,
    /// Each with the tick until which it waits.
    waiters: Vec<(Tick, Waiter)>,
}

impl World {
    fn step(&mut self, bulkhead: &Bulkhead, clock: &ManualClock, (what, amount, how, who): Step) {
        let places = u64::from(amount % 3) + 1;
        let priority = Priority::of(Criticality::ALL[usize::from(how % 4)]).in_cohort(how % 3).unwrap();
        let pick = |len: usize| (len > 0).then(|| usize::from(who) % len.max(1));
        match what {
            0 => self.permits.extend(bulkhead.enter_n(places).priority(priority).of([who % 5]).now()),
            1..=3 => {
                let entry = bulkhead.enter_n(places).priority(priority).of([who % 5]);
                let (entry, longest) =
                    if amount > 9 { (entry.within(SHORTER), SHORTER) } else { (entry, LONGEST) };
                let mut waiter = Waiter::new(entry);
                match waiter.poll() {
                    std::task::Poll::Ready(answer) => self.permits.extend(answer),
                    std::task::Poll::Pending => self.waiters.push((clock.now().after(longest), waiter)),
                }
            }
            4 => {
                let Some(at) = pick(self.waiters.len()) else { return };
                if let std::task::Poll::Ready(answer) = self.waiters[at].1.poll() {
                    self.permits.extend(answer);
                    drop(self.waiters.swap_remove(at));
                }
            }
            5 => drop(pick(self.waiters.len()).map(|at| self.waiters.swap_remove(at))),
            6 => drop(pick(self.permits.len()).map(|at| self.permits.swap_remove(at))),
            7 => {
                let outcome = [Outcome::Success, Outcome::Overloaded, Outcome::Ignored][usize::from(how % 3)];
                let Some(at) = pick(self.permits.len()) else { return };
                self.permits.swap_remove(at).leave(outcome);
            }
            8 => {
                let other = Bulkhead::new(3).unwrap();
                let found = other.standing();
                assert_eq!((found.remaining, found.limit), (3, 3), "a new bulkhead is empty");
                self.orphans.extend(other.enter_n(places).now());
                let _ = Waiter::new(other.enter_n(3_u64)).poll();
            }
            9 => drop(pick(self.orphans.len()).map(|at| self.orphans.swap_remove(at))),
            10 => drop(bulkhead.change(u64::from(amount % 5) + 1)),
            11 => clock.advance(Duration::from_millis(u64::from(amount) * 10)),
            _ => self.wait(clock, Duration::from_millis(u64::from(amount) * 400)),
        }
    }

    /// Lets time pass. A waiter whose longest wait is over is woken by its timer, and then has its answer.
    fn wait(&mut self, clock: &ManualClock, span: Duration) {
        clock.advance(span);
        let over = |(until, _): &mut (Tick, Waiter)| *until <= clock.now();
        for (until, mut waiter) in self.waiters.extract_if(.., over) {
            assert!(waiter.was_woken(), "it waits beyond {until:?}");
            match waiter.poll() {
                std::task::Poll::Ready(answer) => self.permits.extend(answer),
                std::task::Poll::Pending => panic!("it waits beyond {until:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_place_is_lost_or_given_twice(
        kind in 0..12_u8,
        room in 0..6_usize,
        steps in prop::collection::vec((0..13_u8, 0..20_u8, any::<u8>(), any::<u8>()), 1..120),
    ) {
        let clock = ManualClock::at(Tick::from_secs(100));
        let bulkhead = bulkhead(kind, room, &clock);
        let mut world = World::default();
        for step in steps {
            let before = bulkhead.standing();
            world.step(&bulkhead, &clock, step);
            let now = bulkhead.standing();
            let taken = now.limit - now.remaining + now.debt;
            let held: u64 = world.permits.iter().map(Permit::places).sum();
            prop_assert!(held <= taken, "{held} held, {taken} taken");
            prop_assert!(now.debt == 0 || now.limit < before.limit || now.debt <= before.debt, "{now:?} after {step:?}");
            prop_assert!(bulkhead.waiting() <= room && bulkhead.waiting() <= world.waiters.len());
            prop_assert!(taken > 0 || bulkhead.waiting() == 0, "all is free, and somebody waits");
        }
        // A waiter that was given a place and never fetched it still holds it.
        world.permits.clear();
        world.waiters.clear();
        let standing = bulkhead.standing();
        prop_assert_eq!((standing.remaining, standing.debt, bulkhead.waiting()), (standing.limit, 0, 0));
        prop_assert_eq!(clock.sleepers(), 0);
        prop_assert!(bulkhead.enter().priority(Criticality::CriticalPlus).now().is_ok());
    }
}
