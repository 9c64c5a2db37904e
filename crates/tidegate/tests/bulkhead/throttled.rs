//! A bulkhead with a short queue and a throttle in front, and both together with a law: [`Bulkhead::self_tuning`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tidegate::bulkhead::{Enter, Permit};
use tidegate::clock::{Clock, ManualClock};
use tidegate::concurrency::throttle::{Arrival, Pid, Room, Shedding, Sre, Throttle};
use tidegate::concurrency::{Bounds, Vegas};
use tidegate::limiter::Retry;
use tidegate::priority::Criticality;
use tidegate::{Bulkhead, Outcome, Tick, priority};

use super::{Waiter, ready};

/// A throttle that refuses the lowest level, and records what it learns.
#[derive(Clone, Debug, Default)]
pub(super) struct Hears(Arc<Mutex<Vec<Heard>>>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Heard {
    Arrived(Criticality),
    Ended(Duration, Outcome),
    Stood(Room),
}

impl Throttle for Hears {
    type State = ();

    fn start(&self, _: Tick) {}

    fn admit(&self, (): &mut (), arrival: &Arrival) -> bool {
        self.hear(Heard::Arrived(arrival.priority.level()));
        arrival.priority.level() != Criticality::Sheddable
    }

    fn learn(&self, (): &mut (), _: Tick, latency: Duration, outcome: Outcome) {
        self.hear(Heard::Ended(latency, outcome));
    }

    fn sense(&self, (): &mut (), _: Tick, room: Room) {
        self.hear(Heard::Stood(room));
    }

    fn refused_share(&self, (): &(), _: Tick) -> u32 {
        7
    }
}

impl Hears {
    fn hear(&self, heard: Heard) {
        self.0.lock().unwrap().push(heard);
    }

    fn take(&self) -> Vec<Heard> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A service of 16 processors which all calls inside share, in steps of a millisecond. Callers wait for half a second.
pub(super) struct SixteenProcessors {
    clock: ManualClock,
    draws: u64,
    line: Vec<(Call, Waiter)>,
    inside: Vec<(Call, Permit)>,
    offered: [u32; 2],
    good: [u32; 2],
}

#[derive(Clone, Copy)]
struct Call {
    kind: usize,
    /// The work that is left, in milliseconds of one processor.
    work: f64,
    until: Tick,
}

impl SixteenProcessors {
    pub(super) fn new(clock: &ManualClock) -> Self {
        let (line, inside) = (Vec::new(), Vec::new());
        Self { clock: clock.clone(), draws: 1, line, inside, offered: [0; 2], good: [0; 2] }
    }

    fn draw(&mut self) -> f64 {
        self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.draws >> 33) as f64 / (1_u64 << 31) as f64
    }

    /// Lets calls of `work` milliseconds come, `calls` in the mean.
    pub(super) fn arrive(&mut self, calls: f64, work: u32, kind: usize, enter: impl Fn() -> Enter) {
        let more = f64::from(u8::from(self.draw() < calls.fract()));
        for _ in 0..(calls.trunc() + more) as u32 {
            let until = self.clock.now().after(Duration::from_millis(500));
            self.offered[kind] += 1;
            self.line.push((Call { kind, work: work.into(), until }, Waiter::new(enter().until(until))));
        }
    }

    pub(super) fn millisecond(&mut self) {
        for (call, mut waiter) in std::mem::take(&mut self.line) {
            match waiter.poll() {
                Poll::Pending => self.line.push((call, waiter)),
                Poll::Ready(answer) => self.inside.extend(answer.ok().map(|permit| (call, permit))),
            }
        }
        self.clock.advance(Duration::from_millis(1));
        let each = (16.0 / self.inside.len() as f64).min(1.0);
        for (mut call, permit) in std::mem::take(&mut self.inside) {
            call.work -= each;
            if call.work > 0.0 {
                self.inside.push((call, permit));
            } else {
                self.good[call.kind] += u32::from(self.clock.now() <= call.until);
                permit.leave(Outcome::Success);
            }
        }
    }

    /// Returns which share of the calls of a kind was answered in time; of those that are here now, all count as not.
    pub(super) fn good(&self, kind: usize) -> f64 {
        f64::from(self.good[kind]) / f64::from(self.offered[kind])
    }

    /// Forgets what came until now.
    fn begin(&mut self) {
        (self.offered, self.good) = ([0; 2], [0; 2]);
    }
}

/// Long work that is less important filled the places whenever important callers left one idle for a moment, or the limit
/// rose, and held them when the next ones came: these got 0.81 of what they asked for.
#[test]
fn long_unimportant_work_does_not_starve_short_important_work() {
    let clock = ManualClock::default();
    let bulkhead = Bulkhead::self_tuning().with_clock(clock.clone());
    let mut service = SixteenProcessors::new(&clock);
    // Important calls need 0.53 of the processors, unimportant ones 1.47 times all of them.
    let important = |service: &mut SixteenProcessors| service.arrive(0.848, 10, 0, || bulkhead.enter());
    let unimportant = || bulkhead.enter().priority(Criticality::Sheddable);
    for _ in 0..1_000 {
        important(&mut service);
        service.millisecond();
    }
    service.begin();
    for _ in 0..20_000 {
        important(&mut service);
        service.arrive(0.1176, 200, 1, unimportant);
        service.millisecond();
    }
    let (critical, sheddable) = (service.good(0), service.good(1));
    assert!(critical >= 0.999 && sheddable > 0.1, "{critical} and {sheddable}");
}

/// What an important level used is kept for it for a while, and not longer; where all callers are of one level, nothing is.
#[test]
fn places_that_important_callers_used_of_late_are_kept_for_them() {
    let clock = ManualClock::default();
    let bulkhead = Bulkhead::new(10).unwrap().with_throttle(Hears::default()).with_clock(clock.clone());
    let low = || bulkhead.enter().priority(Criticality::SheddablePlus);
    let inside: Vec<Permit> = (0..4).map(|_| bulkhead.try_enter().unwrap()).collect();
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(1));
        drop(low().now().unwrap());
    }
    drop(inside);
    let some: Vec<Permit> = std::iter::from_fn(|| low().now().ok()).collect();
    assert_eq!(some.len(), 6, "four are kept");
    let important: [Permit; 4] = std::array::from_fn(|_| bulkhead.try_enter().unwrap());
    drop((some, important));
    clock.advance(Duration::from_secs(600));
    drop(low().now().unwrap());
    let all: Vec<Permit> = std::iter::from_fn(|| low().now().ok()).collect();
    assert_eq!(all.len(), 10, "after ten minutes none is");
}

/// Under a law an important caller finds free what less important ones hold, and nobody who waits counts. A fixed limit is
/// never exceeded.
#[test]
fn less_important_work_keeps_no_important_caller_out_under_a_law() {
    let fixed = Bulkhead::new(3).unwrap().with_throttle(Hears::default());
    let low = || fixed.enter().priority(Criticality::SheddablePlus);
    let held: Vec<Permit> = std::iter::from_fn(|| low().now().ok()).collect();
    assert!(held.len() == 3 && fixed.try_enter().is_err());

    let law = Vegas::default().bounds(Bounds::new(3, 3).unwrap());
    let bulkhead = Bulkhead::adaptive(law).with_throttle(Hears::default()).with_clock(ManualClock::default());
    let low = || bulkhead.enter().priority(Criticality::SheddablePlus);
    let mut held: Vec<Permit> = (0..3).map(|_| low().now().unwrap()).collect();
    assert!(low().now().is_err());
    let mut waits = Waiter::new(low());
    assert!(waits.poll().is_pending());
    let mut important: Vec<Permit> = std::iter::from_fn(|| bulkhead.try_enter().ok()).collect();
    assert_eq!((important.len(), bulkhead.standing().debt), (3, 3), "as many as the limit, and no more");
    held.pop();
    assert!(bulkhead.try_enter().is_err() && waits.poll().is_pending(), "five of three are taken");
    held.clear();
    // Nobody holds less important places now, whoever comes, waits or gives up.
    let mut awaits = Waiter::new(bulkhead.enter());
    assert!(awaits.poll().is_pending());
    assert!(Waiter::new(low()).poll().is_pending() && awaits.poll().is_pending());
    drop(waits);
    assert!(low().now().is_err() && awaits.poll().is_pending() && bulkhead.try_enter().is_err());
    important.pop();
    assert!(ready(awaits.poll()).is_ok());
    drop(important);
    let all: Vec<Permit> = std::iter::from_fn(|| bulkhead.try_enter().ok()).collect();
    assert_eq!(all.len(), 3);
}

const CRITICAL: Heard = Heard::Arrived(Criticality::Critical);
const AWAY: Heard = Heard::Ended(Duration::ZERO, Outcome::Overloaded);

fn bulkhead(places: u64) -> (Bulkhead, Hears, ManualClock) {
    let (hears, clock) = (Hears::default(), ManualClock::default());
    let bulkhead = Bulkhead::new(places)
        .unwrap()
        .with_short_queue()
        .with_throttle(hears.clone())
        .with_clock(clock.clone());
    (bulkhead, hears, clock)
}

#[test]
fn a_throttle_hears_of_each_arrival_once_and_how_it_ended() {
    let (bulkhead, hears, clock) = bulkhead(1);
    assert_eq!(bulkhead.refused_share(), 7);
    let inside = bulkhead.try_enter().unwrap();
    assert_eq!(hears.take(), [CRITICAL]);
    assert!(bulkhead.try_enter().is_err());
    assert!(bulkhead.enter().now().is_err());
    assert_eq!(hears.take(), [CRITICAL, AWAY, CRITICAL, AWAY]);

    let mut waiter = Waiter::new(bulkhead.enter());
    assert!(waiter.poll().is_pending() && waiter.poll().is_pending());
    clock.advance(Duration::from_millis(2));
    inside.leave(Outcome::Success);
    let full = Heard::Stood(Room { free: 0, waiting: 0 });
    assert_eq!(hears.take(), [CRITICAL, Heard::Ended(Duration::from_millis(2), Outcome::Success), full]);
    let waited = ready(waiter.poll()).unwrap();
    clock.advance(Duration::from_millis(3));
    waited.leave(Outcome::Failure);
    let (with_its_wait, empty) = (Duration::from_millis(5), Heard::Stood(Room { free: 1, waiting: 0 }));
    assert_eq!(hears.take(), [Heard::Ended(with_its_wait, Outcome::Failure), empty]);

    let dropped = bulkhead.try_enter().unwrap();
    clock.advance(Duration::from_millis(1));
    drop(dropped);
    let ignored = Heard::Ended(Duration::from_millis(1), Outcome::Ignored);
    assert_eq!(hears.take(), [CRITICAL, ignored, empty], "a permit that is only dropped");
}

/// Cancelled work has been admitted and shows nothing bad about the service, so it does not make a throttle refuse.
#[test]
fn permits_that_are_only_dropped_do_not_make_a_throttle_refuse() {
    let clock = ManualClock::default();
    let kinds = [
        Bulkhead::new(10).unwrap().with_throttle(Sre::default()),
        Bulkhead::new(10).unwrap().with_throttle(Pid::default()),
        Bulkhead::self_tuning(),
    ];
    for bulkhead in kinds.map(|bulkhead| bulkhead.with_clock(clock.clone())) {
        for _ in 0..1000 {
            drop(bulkhead.try_enter().unwrap());
            clock.advance(Duration::from_millis(4));
        }
        assert_eq!(bulkhead.refused_share(), 0, "{bulkhead:?}");
    }
}

/// A law learns nothing from work whose outcome is unknown, also if a throttle is told of it.
#[test]
fn a_law_behind_a_throttle_learns_nothing_from_permits_that_are_only_dropped() {
    let clock = ManualClock::default();
    let law = Vegas::default();
    let bulkhead =
        Bulkhead::adaptive(law).with_throttle(Sre::default().least_requests(100)).with_clock(clock.clone());
    let work = |outcome| {
        let all: Vec<Permit> = std::iter::from_fn(|| bulkhead.try_enter().ok()).collect();
        clock.advance(Duration::from_millis(10));
        all.into_iter().for_each(|permit| permit.leave(outcome));
    };
    (0..5).for_each(|_| work(Outcome::Ignored));
    assert_eq!(bulkhead.standing().limit, 20, "as at the start");
    (0..5).for_each(|_| work(Outcome::Success));
    assert!(bulkhead.standing().limit > 20);
}

#[test]
fn whoever_a_throttle_refuses_takes_no_place_and_waits_for_none() {
    let (bulkhead, hears, _) = bulkhead(1);
    let low = || bulkhead.enter().priority(Criticality::Sheddable);
    assert_eq!(low().now().unwrap_err().retry(), Retry::Unknown);
    assert_eq!(ready(Waiter::new(low()).poll()).unwrap_err().retry(), Retry::Unknown);
    assert_eq!((bulkhead.standing().remaining, bulkhead.waiting()), (1, 0));
    let (low, free) = (Heard::Arrived(Criticality::Sheddable), Heard::Stood(Room { free: 1, waiting: 0 }));
    assert_eq!(hears.take(), [low, free, low, free], "and is not turned away by the line");
}

/// Regression: a throttle heard of free places only when admitted work ended. After a heavy overload and an hour of rest it
/// refused as before, dozens of callers for an empty bulkhead.
#[test]
fn after_a_rest_free_places_are_given_out() {
    let clock = ManualClock::default();
    let bulkhead = Bulkhead::new(1).unwrap().with_throttle(Shedding::default()).with_clock(clock.clone());
    let inside = bulkhead.try_enter().unwrap();
    for _ in 0..20_000 {
        assert!(bulkhead.try_enter().is_err());
        clock.advance(Duration::from_millis(1));
    }
    inside.leave(Outcome::Success);
    assert!(bulkhead.refused_share() > 900_000, "{}", bulkhead.refused_share());
    clock.advance(Duration::from_secs(3600));
    let refused = (0..100).filter(|_| {
        clock.advance(Duration::from_secs(1));
        bulkhead.try_enter().is_err()
    });
    assert!((1..=8).contains(&refused.count()), "and none once the share is zero");
}

#[test]
fn a_throttle_hears_the_priority_that_is_carried() {
    let (bulkhead, hears, _) = bulkhead(1);
    priority::carry(Criticality::Sheddable, || {
        assert!(bulkhead.try_enter().is_err());
        assert!(bulkhead.enter().now().is_err());
        assert!(ready(Waiter::new(bulkhead.enter()).poll()).is_err());
        assert!(bulkhead.enter().priority(Criticality::Critical).now().is_ok());
    });
    let low = Heard::Arrived(Criticality::Sheddable);
    let arrived: Vec<Heard> =
        hears.take().into_iter().filter(|heard| matches!(heard, Heard::Arrived(_))).collect();
    assert_eq!(arrived, [low, low, low, CRITICAL]);
}

#[test]
fn an_entry_that_was_tried_first_arrives_once() {
    let (bulkhead, hears, _) = bulkhead(1);
    let inside = bulkhead.enter().try_now().unwrap();
    let mut entry = bulkhead.enter();
    assert!(entry.try_now().is_none() && entry.try_now().is_none());
    let mut waiter = Waiter::new(entry);
    assert!(waiter.poll().is_pending());
    assert_eq!(hears.take(), [CRITICAL; 2]);
    drop(inside);
    drop(ready(waiter.poll()).unwrap());
    hears.take();
    let mut given_up = bulkhead.enter();
    let inside = bulkhead.try_enter().unwrap();
    assert!(given_up.try_now().is_none());
    drop(given_up);
    assert_eq!(hears.take(), [CRITICAL, CRITICAL, AWAY]);
    drop(inside);
    let mut low = bulkhead.enter().priority(Criticality::Sheddable);
    assert!(low.try_now().is_none());
    assert_eq!(ready(Waiter::new(low).poll()).unwrap_err().retry(), Retry::Unknown, "refused once for all");
}

#[test]
fn those_who_leave_a_line_without_a_place_are_turned_away() {
    let (bulkhead, hears, clock) = bulkhead(1);
    let _inside = bulkhead.try_enter().unwrap();
    let mut waiter = Waiter::new(bulkhead.enter());
    assert!(waiter.poll().is_pending());
    hears.take();
    drop(waiter);
    assert_eq!(hears.take(), [AWAY], "a caller who hung up");
    let [mut oldest, mut newest] = [Waiter::new(bulkhead.enter()), Waiter::new(bulkhead.enter())];
    assert!(oldest.poll().is_pending() && newest.poll().is_pending());
    assert!(ready(oldest.poll()).is_err(), "no more wait than there are places");
    clock.advance(Duration::from_millis(5));
    assert!(ready(newest.poll()).is_err(), "nobody has left yet, so the wait is the least");
    assert_eq!(hears.take(), [CRITICAL, CRITICAL, AWAY, AWAY]);
}

#[test]
fn whoever_asks_for_too_much_is_not_the_throttles_affair() {
    let (bulkhead, hears, _) = bulkhead(2);
    assert_eq!(bulkhead.enter_n(3).now().unwrap_err().retry(), Retry::Never);
    assert_eq!(bulkhead.enter_n(3).now().unwrap_err().retry(), Retry::Never);
    assert_eq!(hears.take(), []);
}

#[test]
fn a_short_queue_waits_for_half_of_what_work_takes() {
    let clock = ManualClock::default();
    let bulkhead = Bulkhead::new(2).unwrap().with_short_queue().with_clock(clock.clone());
    let work = |millis| {
        let permit = bulkhead.try_enter().unwrap();
        clock.advance(Duration::from_millis(millis));
        permit.leave(Outcome::Success);
    };
    work(80);
    let _inside = bulkhead.enter_n(2).now().unwrap();
    let mut waiter = Waiter::new(bulkhead.enter());
    assert!(waiter.poll().is_pending());
    clock.advance(Duration::from_millis(39));
    assert!(waiter.poll().is_pending());
    clock.advance(Duration::from_millis(1));
    assert!(ready(waiter.poll()).is_err());
}

/// One place becomes free each millisecond, and four callers come for it: soon the least important are refused on
/// arrival. With fewer callers than places, the throttle opens again.
#[test]
fn the_line_has_the_throttle_shed_the_least_important_and_free_places_open_it() {
    let clock = ManualClock::default();
    let bulkhead = Bulkhead::new(20)
        .unwrap()
        .with_short_queue()
        .with_throttle(Shedding::default())
        .with_clock(clock.clone());
    let (mut inside, mut line, mut served) = (VecDeque::new(), Vec::new(), [0; 2]);
    let mut millisecond = |callers: usize| {
        line.extend((0..callers).map(|caller| {
            let level = [Criticality::Sheddable, Criticality::Critical][caller % 2];
            (caller % 2, Waiter::new(bulkhead.enter().priority(level)))
        }));
        line.retain_mut(|(level, waiter): &mut (usize, Waiter)| match waiter.poll() {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                if let Ok(permit) = answer {
                    served[*level] += 1;
                    inside.push_back(permit);
                }
                false
            }
        });
        clock.advance(Duration::from_millis(1));
        inside.pop_front().into_iter().for_each(|permit: Permit| permit.leave(Outcome::Success));
        served
    };
    let [low, high] = (0..4000).map(|_| millisecond(4)).last().unwrap();
    let share = bulkhead.refused_share();
    assert!(
        (450_000..=750_000).contains(&share),
        "{share} of a million: a fifth more than a quarter is let in"
    );
    assert!(high > 3 * low, "{low} of the lower level, {high} of the higher");
    for turn in 0..200 {
        millisecond(turn % 2);
    }
    assert_eq!(bulkhead.refused_share(), 0);
}

#[test]
fn steps_of_construction_keep_the_throttle_and_start_it_again() {
    let api = Bulkhead::new(1).unwrap().with_throttle(Shedding::default());
    let _inside = api.try_enter().unwrap();
    let api = api.with_room(3).with_clock(ManualClock::default());
    assert_eq!((api.refused_share(), api.standing().remaining), (0, 1));
}
