//! What leases give back: a limit is never fuller than if only the spent units had been drawn.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::{Precision, Reservation};
use tidegate::{Cost, Limiter, Quota};

use super::Random;

const BURST: u64 = 300;

/// A thread that holds a lease. It spends one unit for each message, and gives the rest back when it ends.
struct Holder {
    orders: Sender<()>,
    spent: Receiver<bool>,
    thread: JoinHandle<()>,
}

impl Holder {
    fn start(limiter: &Limiter) -> Self {
        let ((orders, told), (tell, spent)) = (channel::<()>(), channel());
        let limiter = limiter.clone();
        let thread =
            thread::spawn(
                move || {
                    while told.recv().is_ok() && tell.send(limiter.allow().is_allowed()).is_ok() {}
                },
            );
        Self { orders, spent, thread }
    }

    fn spend(&self) -> bool {
        self.orders.send(()).unwrap();
        self.spent.recv().unwrap()
    }

    fn end(self) {
        drop(self.orders);
        self.thread.join().unwrap();
    }
}

/// Returns what a limit of one unit a millisecond has left after these charges, each a time in milliseconds and its
/// units.
fn left(charged: &[(u64, u64)], now: u64) -> u64 {
    let arrival = charged.iter().fold(0, |arrival: u64, (at, units)| arrival.max(*at) + units);
    BURST.saturating_sub(arrival.saturating_sub(now))
}

fn limiter(clock: &ManualClock) -> Limiter {
    let quota = Quota::per_second(1000).burst(BURST);
    Limiter::new(quota).unwrap().with_clock(clock.clone()).with_precision(Precision::Leased)
}

#[test]
fn a_reservation_is_not_undone_twice_behind_leases_that_came_back() {
    let clock = ManualClock::default();
    let limiter = limiter(&clock);
    let holders: Vec<Holder> = (0..12).map(|_| Holder::start(&limiter)).collect();
    assert!(holders.iter().all(Holder::spend));
    let reserved = limiter.reserve(Cost::new(40).unwrap(), Duration::ZERO).unwrap();
    holders.into_iter().for_each(Holder::end);
    assert_eq!(limiter.standing().remaining, BURST - 12 - 40, "what was not spent is back");
    clock.advance(Duration::from_millis(52));
    assert!(limiter.allow_n(Cost::new(250).unwrap()).unwrap().is_allowed());
    reserved.cancel();
    assert_eq!(limiter.standing().remaining, BURST - 250, "time has returned it already");
}

#[test]
fn leases_reservations_and_charges_leave_no_more_than_was_not_spent() {
    let mut given_back = 0;
    for seed in 0..60 {
        let clock = ManualClock::default();
        let (limiter, mut random) = (limiter(&clock), Random::seeded(seed));
        let mut holders: Vec<Holder> = Vec::new();
        let mut reserved: Vec<(usize, Reservation)> = Vec::new();
        let mut charged: Vec<(u64, u64)> = Vec::new();
        for step in 0..120 {
            let now = u64::try_from(Duration::from_nanos(clock.now().as_nanos()).as_millis()).unwrap();
            match random.below(9) {
                0..2 => holders.push(Holder::start(&limiter)),
                2..5 if !holders.is_empty() => {
                    let one = random.below(holders.len() as u64) as usize;
                    if holders[one].spend() {
                        charged.push((now, 1));
                    }
                }
                5 if !holders.is_empty() => {
                    let one = random.below(holders.len() as u64) as usize;
                    let before = limiter.standing().remaining;
                    holders.swap_remove(one).end();
                    given_back += limiter.standing().remaining - before;
                }
                6 => {
                    let units = 1 + random.below(BURST / 2);
                    if let Ok(one) = limiter.reserve(Cost::new(units).unwrap(), Duration::ZERO) {
                        reserved.push((charged.len(), one));
                        charged.push((now, units));
                    }
                }
                7 if !reserved.is_empty() => {
                    let (place, one) = reserved.swap_remove(random.below(reserved.len() as u64) as usize);
                    one.cancel();
                    charged[place].1 = 0;
                }
                _ => clock.advance(Duration::from_millis(random.below(60))),
            }
            let now = u64::try_from(Duration::from_nanos(clock.now().as_nanos()).as_millis()).unwrap();
            let (there, most) = (limiter.standing().remaining, left(&charged, now));
            assert!(
                there <= most,
                "seed {seed}, step {step}: {there} left, {most} if only what was spent was drawn"
            );
        }
        holders.into_iter().for_each(Holder::end);
    }
    assert!(given_back > 1000, "{given_back} units came back");
}
