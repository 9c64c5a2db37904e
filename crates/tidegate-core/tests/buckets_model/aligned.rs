//! Refills aligned to a wall clock that is set: every end of a period is walked one by one, in plain whole numbers.

use core::time::Duration;

use tidegate_core::rate::{Bandwidth, CalendarUnit, FixedWindow, Refill, TokenBucket};
use tidegate_core::time::WallAhead;
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, Replace, Retry, State, Tick, Transition};

use crate::buckets_model::steps;
use crate::random::Random;

/// A bandwidth whose count returns at the multiples of its period.
#[derive(Clone, Debug)]
struct Aligned {
    count: i128,
    period: i128,
    capacity: i128,
    tokens: i128,
    /// When the last refill was due; none in a bandwidth that was not used yet.
    due: Option<i128>,
    /// The ticks at which anything was refilled or could have been.
    ends: Vec<i128>,
}

impl Aligned {
    fn new(band: &Bandwidth, initial: u64) -> Self {
        Self {
            count: band.rate().count().into(),
            period: band.rate().period_nanos().into(),
            capacity: band.capacity().into(),
            tokens: initial.into(),
            due: None,
            ends: Vec::new(),
        }
    }

    /// The first tick after `at` at which the wall clock shows a multiple of the period.
    fn multiple(&self, at: i128, ahead: i128) -> i128 {
        at - (at + ahead).rem_euclid(self.period) + self.period
    }

    /// The next refill: the first multiple for which a period has passed since the last one was due, less a hundredth.
    fn next(&self, at: i128, ahead: i128) -> i128 {
        let mut end = self.multiple(at, ahead);
        while self.due.is_some_and(|due| end < due + self.period - self.period / 100) {
            end += self.period;
        }
        end
    }

    fn refill(&mut self, end: i128) {
        self.tokens = self.capacity.min(self.tokens + self.count);
        self.due = Some(self.due.map_or(end, |due| end.max(due + self.period)));
        self.ends.push(end);
    }

    fn advance(&mut self, from: i128, to: i128, ahead: i128) {
        self.due = self.due.or(Some(self.multiple(from, ahead) - self.period));
        let mut at = from;
        while self.next(at, ahead) <= to {
            at = self.next(at, ahead);
            self.refill(at);
        }
    }

    /// Ns from `at` until there are so many tokens.
    fn until(&self, tokens: i128, at: i128, ahead: i128) -> i128 {
        let (mut band, mut end) = (self.clone(), at);
        while band.tokens < tokens {
            end = band.next(end, ahead);
            band.refill(end);
        }
        end - at
    }
}

#[derive(Clone, Debug)]
struct Model {
    bands: Vec<Aligned>,
    last: i128,
    ahead: i128,
}

impl Model {
    /// Moves to a tick, or stays at that of the last change.
    fn to(&mut self, now: i128) -> i128 {
        let now = now.max(self.last);
        for band in &mut self.bands {
            band.advance(self.last, now, self.ahead);
        }
        self.last = now;
        now
    }

    fn charge(&mut self, now: i128, units: i128) -> i128 {
        let now = self.to(now);
        self.bands.iter_mut().for_each(|band| band.tokens -= units);
        self.bands.iter().map(|band| band.until(0, now, self.ahead)).max().unwrap()
    }

    /// Returns what is left, what is owed, and the ns until all are full.
    fn standing(&self, now: i128) -> (u64, u64, u128) {
        let mut model = self.clone();
        let now = model.to(now);
        let least = model.bands.iter().map(|band| band.tokens).min().unwrap();
        let full = model.bands.iter().map(|band| band.until(band.capacity, now, self.ahead)).max().unwrap();
        (least.max(0) as u64, (-least).max(0) as u64, full as u128)
    }

    fn capacity(&self) -> i128 {
        self.bands.iter().map(|band| band.capacity).min().unwrap()
    }
}

/// What happened to a key, to be played again with what was used.
#[derive(Clone, Debug)]
enum Event {
    Set { at: i128, ahead: i128 },
    Charged { at: i128, units: i128 },
}

struct History {
    quota: Quota,
    state: State,
    wall: WallAhead,
    model: Model,
    /// The model before the first of `events`.
    start: Model,
    events: Vec<Event>,
    open: Vec<(usize, Receipt)>,
    now: i128,
    /// Grants that waited for nothing, by their place in `events`.
    granted: Vec<usize>,
}

fn tick(ns: i128) -> Tick {
    Tick::from_nanos(u64::try_from(ns).unwrap())
}

fn limit(random: &mut Random, several: bool, below: bool) -> (Quota, Vec<Aligned>) {
    let base = random.pick(&[1, 7, 99, 100, 1_000, 3_600]);
    let band = |random: &mut Random| {
        let period = base * random.one_to(3);
        let rate = Rate::new(random.one_to(9), Duration::from_nanos(period)).unwrap();
        let capacity = random.one_to(20);
        let initial = if below { random.up_to(capacity) } else { capacity };
        let band = Bandwidth::new(rate, capacity).unwrap().refill(Refill::Aligned).initial(initial).unwrap();
        (band, Aligned::new(&band, initial))
    };
    let many = if several { random.one_to(3) } else { 1 };
    let (bands, models): (Vec<_>, Vec<_>) = (0..many).map(|_| band(random)).unzip();
    (TokenBucket::several(bands).unwrap().into(), models)
}

impl History {
    fn new(random: &mut Random, several: bool, below: bool) -> Self {
        let (quota, bands) = limit(random, several, below);
        let now = 1_700_000_000_000_000_000 + i128::from(random.up_to(10_000));
        let wall = WallAhead::default();
        quota.follow_wall(&wall);
        let model = Model { bands, last: now, ahead: 0 };
        Self {
            state: quota.fresh(tick(now)),
            quota,
            wall,
            start: model.clone(),
            model,
            events: Vec::new(),
            open: Vec::new(),
            now,
            granted: Vec::new(),
        }
    }

    fn period(&self) -> u64 {
        self.model.bands[0].period as u64
    }

    fn passes(&mut self, random: &mut Random) {
        let period = self.period();
        self.now += i128::from(match random.up_to(9) {
            0..=3 => 0,
            4 => 1,
            5 => random.up_to(period / 50 + 1),
            6 | 7 => random.up_to(period),
            8 => period,
            _ => random.up_to(6 * period),
        });
        if random.up_to(15) == 0 {
            self.now -= i128::from(random.up_to(period / 2));
        }
    }

    /// The wall clock is set: by a little, by a part of a period, or by several, forward or back.
    fn is_set(&mut self, random: &mut Random) {
        let period = self.period();
        let by = i128::from(match random.up_to(4) {
            0 => random.up_to(period / 100 + 1),
            1 => random.up_to(period / 50 + 1),
            2 | 3 => random.up_to(period),
            _ => random.up_to(9 * period),
        });
        self.model.ahead += if random.up_to(1) == 0 { by } else { -by };
        self.wall.set(i64::try_from(self.model.ahead).unwrap());
        // The key is told with its next change.
        self.events.push(Event::Set { at: self.model.last, ahead: self.model.ahead });
    }

    fn asks(&mut self, random: &mut Random, place: &str) {
        let capacity = self.model.capacity();
        let units = i128::from(random.one_to(capacity as u64 + 1));
        let period = self.period();
        let max_wait = random.pick(&[0, 0, 0, period / 2, 3 * period, u64::MAX]);
        let cost = Cost::new(units as u64).unwrap();
        let ask = Ask::within(tick(self.now), cost, Duration::from_nanos(max_wait));
        let mut taken = self.model.clone();
        let wait = taken.charge(self.now, units);
        let expected = match wait - i128::from(max_wait) {
            _ if units > capacity => Err(Retry::Never),
            late if late > 0 => Err(Retry::After(Duration::from_nanos(late as u64))),
            _ => Ok(Duration::from_nanos(wait as u64)),
        };
        match self.quota.decide(&self.state, ask) {
            Transition::Denied { retry } => {
                assert_eq!(Err(retry), expected, "{ask:?}, {place}");
                if let Retry::After(wait) = retry {
                    let again = |by: Duration| {
                        let now = tick(self.now.max(self.model.last)).after(by);
                        matches!(
                            self.quota.decide(&self.state, Ask { now, ..ask }),
                            Transition::Allowed { .. }
                        )
                    };
                    assert!(again(wait) && !again(wait - Duration::from_nanos(1)), "{ask:?}, {place}");
                }
            }
            Transition::Allowed { wait, next, receipt } => {
                assert_eq!(Ok(wait), expected, "{ask:?}, {place}");
                self.model = taken;
                self.state = next;
                self.open.push((self.events.len(), receipt));
                if wait.is_zero() {
                    self.granted.push(self.events.len());
                }
                self.events.push(Event::Charged { at: self.model.last, units });
            }
        }
    }

    /// What would be left if only what was used had been charged.
    fn truth(&self) -> Model {
        let mut model = self.start.clone();
        for event in &self.events {
            match *event {
                // As the key: its last change was by the clock before.
                Event::Set { at, ahead } => {
                    if at > model.last {
                        model.to(at);
                    }
                    model.ahead = ahead;
                }
                Event::Charged { at, units } => {
                    model.charge(at, units);
                }
            }
        }
        model
    }

    fn settles(&mut self, random: &mut Random, place: &str) {
        let Some(newest) = self.open.len().checked_sub(1) else { return };
        let nth = if random.up_to(1) == 0 { newest } else { random.up_to(newest as u64) as usize };
        let (event, receipt) = self.open.remove(nth);
        let units = i128::from(receipt.cost.units());
        let is_last = event + 1 == self.events.len();
        let used = random.pick(&[0, 0, units / 2, units, units + 3]);
        let before = self.model.standing(self.now);
        let settled = self.quota.settle(&self.state, tick(self.now), &receipt, used as u64);
        if used > units {
            self.events.push(Event::Charged { at: self.now.max(self.model.last), units: used - units });
            self.model.charge(self.now, used - units);
        } else if let Event::Charged { units, .. } = &mut self.events[event] {
            *units = used;
        }
        let changed = settled != self.state;
        self.state = settled;
        if used < units {
            let (remaining, debt, _) = self.model.standing(self.now);
            let least = i128::from(remaining) - i128::from(debt);
            let left = self.left();
            let mut truth = self.truth();
            // An earlier `now` counts as the last change, which may have been a settlement.
            truth.to(self.now.max(self.model.last));
            let most = truth.bands.iter().map(|band| band.tokens).min().unwrap();
            assert!(least <= left && left <= most, "{least}, {left}, {most} after {receipt:?}, {place}");
            // What is given back is the same for all bandwidths only if each of them took all of it.
            if self.model.bands.len() == 1 {
                if is_last && self.events.iter().all(|event| !matches!(event, Event::Set { .. })) {
                    // And maybe more, which was withheld for it.
                    assert!(left >= most.min(least + units - used), "the last one, {place}");
                }
                if changed {
                    self.model.to(self.now);
                }
                self.model.bands[0].tokens += left - least;
            }
        } else if used == units {
            assert_eq!(self.model.standing(self.now), before, "{place}");
        }
    }

    fn left(&self) -> i128 {
        let standing = self.quota.standing(&self.state, tick(self.now));
        i128::from(standing.remaining) - i128::from(standing.debt)
    }

    fn agrees(&self, place: &str) {
        let standing = self.quota.standing(&self.state, tick(self.now));
        let found = (standing.remaining, standing.debt, standing.reset_after.as_nanos());
        assert_eq!(found, self.model.standing(self.now), "{place}");
        assert_eq!(State::decode(&self.state.encode()).as_ref(), Ok(&self.state), "{place}");
        assert_eq!(Quota::decode(&self.quota.encode()).as_ref(), Ok(&self.quota), "{place}");
    }

    /// The ticks at which units were granted at once, and how many of them were used.
    fn acts(&self) -> Vec<(i128, i128)> {
        let act = |nth: &usize| match self.events[*nth] {
            Event::Charged { at, units } => (at, units),
            Event::Set { .. } => panic!("no grant"),
        };
        self.granted.iter().map(act).collect()
    }

    /// However the clock was set: refills take the time that their periods take, less a hundredth of one; and what was
    /// granted is the capacity and one count for each refill.
    fn keeps_the_time_that_passed(&self, place: &str) {
        let granted = self.acts();
        for band in &self.model.bands {
            // How far each refill is ahead of one a period: never further than any earlier one, less a hundredth.
            let mut latest = 0;
            for (nth, end) in (0i128..).zip(&band.ends) {
                let ahead = end - nth * band.period;
                assert!(ahead >= latest - band.period / 100, "refill {nth} at {end}, {place}");
                latest = latest.max(ahead);
            }
            for (first, (begin, _)) in granted.iter().enumerate() {
                let mut sum = 0;
                for (end, units) in &granted[first..] {
                    sum += units;
                    let periods = (end - begin + band.period / 100) / band.period + 1;
                    let most = band.capacity + band.count * periods;
                    assert!(sum <= most, "{sum} of {most} from {begin} to {end}, {place}");
                }
            }
        }
    }
}

/// Charges, reservations, debts and refusals while the wall clock is set at random.
#[test]
fn aligned_refills_equal_their_model_however_the_clock_is_set() {
    for seed in 0..steps(60_000) / 60 {
        let mut random = Random::new(seed + 100);
        let mut history = History::new(&mut random, seed % 2 == 1, seed % 3 == 0);
        for step in 0..60 {
            let place = format!("seed {seed} step {step}: {:?}", history.quota);
            history.passes(&mut random);
            match random.up_to(9) {
                0 => history.is_set(&mut random),
                // Of several bandwidths, a model does not say what each gets back.
                1 | 2 if history.model.bands.len() == 1 => history.settles(&mut random, &place),
                _ => history.asks(&mut random, &place),
            }
            history.agrees(&place);
        }
        history.keeps_the_time_that_passed(&format!("seed {seed}: {:?}", history.quota));
    }
}

/// The count changes while the clock is set: a period of the same length goes on, any other is the clock's.
#[test]
fn a_changed_limit_keeps_its_period_or_takes_the_clocks() {
    for seed in 0..steps(20_000) / 40 {
        let mut random = Random::new(seed + 9_000);
        let mut history = History::new(&mut random, false, false);
        for step in 0..40 {
            let place = format!("seed {seed} step {step}: {:?}", history.quota);
            history.passes(&mut random);
            match random.up_to(9) {
                0 => history.is_set(&mut random),
                1 => {
                    let (mut next, mut bands) = limit(&mut random, false, false);
                    if random.up_to(1) == 0 {
                        let rate =
                            Rate::new(random.one_to(9), Duration::from_nanos(history.period())).unwrap();
                        let band = Bandwidth::new(rate, random.one_to(20)).unwrap().refill(Refill::Aligned);
                        bands = vec![Aligned::new(&band, band.capacity())];
                        next = TokenBucket::new(band).into();
                    }
                    next.follow_wall(&history.wall);
                    history.state =
                        next.carry(&history.quota, &history.state, tick(history.now), Replace::AsIs);
                    history.model.to(history.now);
                    let old = &history.model.bands[0];
                    let (spent, debt) = ((old.capacity - old.tokens).min(old.capacity), (-old.tokens).max(0));
                    bands[0].tokens = bands[0].capacity - spent.min(bands[0].capacity) - debt;
                    bands[0].due = old.due.filter(|_| old.period == bands[0].period);
                    history.model.bands = bands;
                    history.quota = next;
                }
                _ => history.asks(&mut random, &place),
            }
            history.agrees(&place);
        }
    }
}

/// While the clock is not set, a full bucket is as good as none: forgotten whenever it is full, it answers the same.
#[test]
fn a_full_bucket_may_be_forgotten() {
    let mut forgotten = 0;
    for seed in 0..steps(20_000) / 40 {
        let mut random = Random::new(seed + 20_000);
        let mut history = History::new(&mut random, seed % 2 == 1, false);
        for step in 0..40 {
            let place = format!("seed {seed} step {step}: {:?}", history.quota);
            history.passes(&mut random);
            let full = history.quota.full_at(&history.state).unwrap();
            let (_, _, reset) = history.model.standing(history.now.max(history.model.last));
            if full <= tick(history.now) {
                forgotten += 1;
                history.state = history.quota.fresh(tick(history.now));
                history.model.to(history.now);
            }
            assert_eq!(full <= tick(history.now.max(history.model.last)), reset == 0, "{place}");
            history.asks(&mut random, &place);
            history.agrees(&place);
        }
        // By the clock, and not only by the time that passed.
        let granted = history.acts();
        for band in &history.model.bands {
            for (first, (begin, _)) in granted.iter().enumerate() {
                let mut sum = 0;
                for (end, units) in &granted[first..] {
                    sum += units;
                    let most = band.capacity + band.count * (end / band.period - begin / band.period);
                    assert!(sum <= most, "{sum} of {most} from {begin} to {end}, seed {seed}");
                }
            }
        }
    }
    assert!(forgotten > 100, "{forgotten}");
}

const MINUTE: u64 = 60_000_000_000;
/// 2023-11-14, 22:00.
const TEN_O_CLOCK: u64 = 1_700_000_000_000_000_000 - 800_000_000_000;

/// 100 at each full hour, and at most 250: a limit, its clock, and the state of one key.
struct Hourly {
    quota: Quota,
    wall: WallAhead,
    state: State,
}

impl Hourly {
    fn new() -> Self {
        let (quota, wall) = (Quota::per_hour(100).burst(250).aligned_bucket().unwrap(), WallAhead::default());
        quota.follow_wall(&wall);
        Self { state: quota.fresh(Tick::EPOCH), quota, wall }
    }

    /// Takes what is left at a minute after ten.
    fn takes(&mut self, minute: u64) -> u64 {
        let now = Tick::from_nanos(TEN_O_CLOCK + minute * MINUTE);
        let Some(cost) = Cost::new(self.quota.standing(&self.state, now).remaining) else { return 0 };
        let Transition::Allowed { next, .. } = self.quota.decide(&self.state, Ask::allow(now, cost)) else {
            panic!("it is left")
        };
        self.state = next;
        cost.units()
    }

    fn sets(&self, minutes: i64) {
        self.wall.set(minutes * MINUTE as i64);
    }
}

#[test]
fn a_hundred_at_each_full_hour() {
    let mut hourly = Hourly::new();
    let taken = [50, 59, 60, 61, 119, 120, 400].map(|minute| hourly.takes(minute));
    assert_eq!(taken, [250, 0, 100, 0, 0, 100, 250]);
}

/// A machine starts with its clock 20 minutes slow or fast, and a time service corrects it.
#[test]
fn ends_follow_a_wall_clock_that_is_corrected() {
    let mut slow = Hourly::new();
    assert_eq!([slow.takes(30), slow.takes(60)], [250, 100]);
    slow.sets(20);
    // 12:00 comes after 40 minutes, and is passed over.
    let taken = [61, 99, 100, 159, 160, 219, 220].map(|minute| slow.takes(minute));
    assert_eq!(taken, [0, 0, 0, 0, 100, 0, 100], "13:00 and 14:00 as the clock now shows them");

    let mut fast = Hourly::new();
    assert_eq!([fast.takes(30), fast.takes(60)], [250, 100]);
    fast.sets(-20);
    let taken = [61, 79, 80, 139, 140].map(|minute| fast.takes(minute));
    assert_eq!(taken, [0, 0, 0, 0, 100], "eleven o'clock comes a second time, and counts once");
}

/// Half a minute of an hour is corrected, forward and back again, and no end is passed over.
#[test]
fn small_corrections_pass_no_end_over() {
    let mut hourly = Hourly::new();
    assert_eq!([hourly.takes(30), hourly.takes(60)], [250, 100]);
    for hour in 1..=100 {
        hourly.wall.set(if hour % 2 == 1 { MINUTE as i64 / 2 } else { 0 });
        assert_eq!(hourly.takes(60 * hour + 59), 0, "hour {hour}");
        assert_eq!(hourly.takes(60 * hour + 60), 100, "hour {hour}");
    }
    // A clock that is set forward again and again gains nothing.
    let mut total = 0;
    for hour in 101..=200 {
        hourly.wall.set((hour - 100) * MINUTE as i64 / 2);
        total += hourly.takes(60 * hour as u64 + 60);
    }
    assert!((6_000..=10_000).contains(&total), "in 100 hours, of which the clock made 101: {total}");
}

/// A clone follows no wall clock until it is told, as a calendar window; both are equal.
#[test]
fn limits_that_differ_in_their_clock_are_equal() {
    let (hourly, calendar) =
        (Hourly::new(), Quota::from(FixedWindow::calendar(1, CalendarUnit::Hour, "epoch").unwrap()));
    hourly.sets(30);
    let copy = hourly.quota.clone();
    assert_eq!(copy, hourly.quota);
    let now = Tick::from_nanos(TEN_O_CLOCK);
    let reset = |quota: &Quota| {
        let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(now), Ask::allow(now, Cost::ONE))
        else {
            panic!("fresh")
        };
        quota.standing(&next, now).reset_after.as_nanos() as u64
    };
    calendar.follow_wall(&hourly.wall);
    assert_eq!(
        [reset(&copy), reset(&hourly.quota), reset(&calendar)],
        [60, 30, 30].map(|minute| minute * MINUTE)
    );
}
