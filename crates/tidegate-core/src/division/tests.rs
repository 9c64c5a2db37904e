//! Tests with holders that take all they can, over a network with delays, judged by [`Envelope`].

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::Rate;
use crate::envelope::Envelope;

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_secs(15);
/// The time that the division adds to a bucket's life for its way to the holder.
const GRACE: Duration = Duration::from_secs(1);

/// A proxy that grants what its bucket has, and is given another bucket now and then.
struct Proxy {
    id: HolderId,
    /// Messages to the proxy: the tick of arrival, and the bucket; `None` renews the current one.
    coming: VecDeque<(Tick, Option<Bucket>)>,
    /// Messages from the proxy: the tick of arrival, and the units that it was asked for.
    going: VecDeque<(Tick, u64)>,
    bucket: Bucket,
    until: Tick,
    /// The content of its bucket, in scaled units: one unit is the period.
    level: u128,
    at: Tick,
    asked: u64,
    /// Whether it reports.
    alive: bool,
}

impl Proxy {
    fn new(id: HolderId, at: Tick) -> Self {
        let (coming, going) = (VecDeque::new(), VecDeque::from([(at, 1)]));
        Self { id, coming, going, bucket: Bucket::default(), until: at, level: 0, at, asked: 0, alive: true }
    }

    /// Processes the messages that have arrived by `now`, and grants up to `most` units.
    fn grant(&mut self, most: u64, period: u64, now: Tick) -> u64 {
        while let Some((arrived, told)) = self.coming.pop_front_if(|(arrived, _)| *arrived <= now) {
            self.fill(period, arrived);
            if let Some(bucket) = told {
                self.bucket = bucket;
                self.level = u128::from(bucket.burst) * u128::from(period);
            }
            self.until = arrived.after(TTL);
        }
        self.fill(period, now);
        self.asked += most;
        if now >= self.until {
            return 0;
        }
        let granted = most.min((self.level / u128::from(period)) as u64);
        self.level -= u128::from(granted) * u128::from(period);
        granted
    }

    fn fill(&mut self, period: u64, to: Tick) {
        let passed = u128::from(to.as_nanos().saturating_sub(self.at.as_nanos()));
        let full = u128::from(self.bucket.burst) * u128::from(period);
        self.level = (self.level + u128::from(self.bucket.rate) * passed).min(full);
        self.at = self.at.max(to);
    }
}

/// Handles a report as a server does; returns the answer to the holder, if there is one.
fn answer(division: &mut Division, id: HolderId, asked: u64, now: Tick) -> Option<Option<Bucket>> {
    let until = now.after(TTL).after(GRACE);
    division.report(id, asked, now);
    let has = division.holders[id.0].as_ref().unwrap().bucket;
    match division.offer(id, now) {
        Some(bucket) if has.is_worth_replacing(bucket) => {
            assert!(division.grant(id, bucket, until, now), "{bucket:?}");
            Some(Some(bucket))
        }
        _ => division.renew(id, until, now).then_some(None),
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Join,
    Vanish(usize),
    Leave(usize),
    /// This many milliseconds pass.
    Pass(u64),
    /// A request of this proxy takes this many units, if that is more than before.
    Dearer(usize, u64),
    /// This proxy is asked for this many units, and grants what it can.
    Ask(usize, u64),
    /// This proxy reports; its message and the answer take these numbers of milliseconds.
    Report(usize, u64, u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => Just(Event::Join),
        1 => (0..8_usize).prop_map(Event::Vanish),
        1 => (0..8_usize).prop_map(Event::Leave),
        1 => (0..8_usize, 1..60_u64).prop_map(|(of, least)| Event::Dearer(of, least)),
        8 => (1..4_000_u64).prop_map(Event::Pass),
        12 => (0..8_usize, prop_oneof![Just(1_u64), 1..50_u64, Just(u64::from(u32::MAX))])
            .prop_map(|(of, units)| Event::Ask(of, units)),
        12 => (0..8_usize, 0..1000_u64, 0..1000_u64).prop_map(|(of, to, from)| Event::Report(of, to, from)),
    ]
}

proptest! {
    #[test]
    fn all_holders_together_stay_within_the_limit(
        rate in 1..2000_u64,
        seconds in 1..100_u64,
        burst in 1..300_u64,
        leasts in proptest::collection::vec(prop_oneof![3 => Just(1_u64), 1 => 1..40_u64], 20),
        events in proptest::collection::vec(event(), 1..400),
    ) {
        let period = Duration::from_secs(seconds);
        let mut now = Tick::from_secs(1000);
        let mut division = Division::new(rate, period, burst, burst, now);
        let mut judge = Envelope::new(Rate::new(rate, period).unwrap(), burst).unwrap();
        let (mut proxies, mut joined, mut brought) = (Vec::<Proxy>::new(), 0, 0);
        for event in events {
            let at = |of: usize, many: usize| if many == 0 { 0 } else { of % many };
            let many = proxies.len();
            match event {
                Event::Join if joined < 20 => {
                    proxies.push(Proxy::new(division.join(leasts[joined], now), now));
                    brought += leasts[joined];
                    joined += 1;
                }
                Event::Join => {}
                Event::Vanish(of) => if let Some(proxy) = proxies.get_mut(at(of, many)) { proxy.alive = false },
                Event::Leave(of) => if let Some(proxy) = proxies.get_mut(at(of, many)) && proxy.alive {
                    proxy.alive = false;
                    division.leave(proxy.id);
                },
                Event::Dearer(of, least) => if let Some(proxy) = proxies.get(at(of, many)) && proxy.alive {
                    let has = division.holders[proxy.id.0].as_ref().unwrap().least;
                    division.raise_least(proxy.id, least, now);
                    brought += least.saturating_sub(has);
                },
                Event::Pass(ms) => now = now.after(Duration::from_millis(ms)),
                Event::Ask(of, units) => if let Some(proxy) = proxies.get_mut(at(of, many)) {
                    let granted = proxy.grant(units, nanos(period), now);
                    if granted > 0 {
                        judge.ask(now, granted, true);
                    }
                },
                Event::Report(of, to, _) => if let Some(proxy) = proxies.get_mut(at(of, many)) && proxy.alive {
                    let first = proxy.going.back().map_or(now, |(at, _)| *at).max(now.after(Duration::from_nanos(to * MS)));
                    proxy.going.push_back((first, std::mem::take(&mut proxy.asked)));
                },
            }
            // Messages are answered in the order of their arrival, and the answer takes up to a second.
            for proxy in proxies.iter_mut().filter(|proxy| proxy.alive) {
                while let Some((_, asked)) = proxy.going.pop_front_if(|(arrived, _)| *arrived <= now) {
                    if let Some(told) = answer(&mut division, proxy.id, asked, now) {
                        let late = if let Event::Report(_, _, from) = event { from } else { 300 };
                        let arrives = now.after(Duration::from_nanos(late * MS));
                        let arrives = proxy.coming.back().map_or(arrives, |(at, _)| arrives.max(*at));
                        proxy.coming.push_back((arrives, told));
                    }
                }
            }
            prop_assert!(division.given <= rate);
        }
        prop_assert!(judge.excess() <= brought, "{} units too many by {joined} holders", judge.excess());
    }
}

/// Reports for all holders every five seconds; returns their final rates.
fn settle(division: &mut Division, asked: &[(HolderId, u64)], from: u64, rounds: u64) -> Vec<u64> {
    for round in 0..rounds {
        for (at, (id, asked)) in asked.iter().enumerate() {
            let now = Tick::from_nanos((from + round * 5) * 1000 * MS + at as u64 * MS);
            answer(division, *id, *asked, now);
        }
    }
    asked.iter().map(|(id, _)| division.holders[id.0].as_ref().unwrap().bucket.rate).collect()
}

#[test]
fn one_holder_has_all_but_what_is_kept_for_the_next() {
    let now = Tick::from_secs(100);
    let mut division = Division::new(1600, Duration::from_secs(1), 160, 160, now);
    let id = division.join(1, now);
    assert_eq!(answer(&mut division, id, 1, now), Some(Some(Bucket { rate: 1500, burst: 150 })));
    assert_eq!(settle(&mut division, &[(id, 0)], 101, 20), [1500], "nobody else wants it");
}

#[test]
fn parts_follow_what_is_asked_for_and_shrink_before_they_grow() {
    let now = Tick::from_secs(100);
    let mut division = Division::new(1600, Duration::from_secs(1), 160, 160, now);
    let (one, two) = (division.join(1, now), division.join(1, now));
    answer(&mut division, one, 1, now);
    answer(&mut division, two, 1, now);
    let rates = settle(&mut division, &[(one, 2000), (two, 2000)], 105, 8);
    assert!(rates.iter().all(|rate| (700..=800).contains(rate)), "{rates:?}");
    // One falls silent: a few reports later, the other has most of the limit, and the silent one keeps a quarter of its half.
    let rates = settle(&mut division, &[(one, 0), (two, 8000)], 145, 20);
    assert!((150..350).contains(&rates[0]) && rates[1] > 1150, "{rates:?}");
    // A newcomer begins at once, and has a third after a while.
    let three = division.join(1, Tick::from_secs(245));
    let told = answer(&mut division, three, 1, Tick::from_secs(245));
    assert!(matches!(told, Some(Some(bucket)) if bucket.rate >= 12), "{told:?}");
    let rates = settle(&mut division, &[(one, 8000), (two, 8000), (three, 8000)], 250, 20);
    assert!(rates.iter().all(|rate| (430..=560).contains(rate)), "{rates:?}");
}

#[test]
fn a_part_is_free_after_the_next_report_but_one_or_when_it_ends() {
    let at = |seconds: u64| Tick::from_secs(100 + seconds);
    let mut division = Division::new(1000, Duration::from_secs(1), 1000, 1000, at(0));
    let (one, two) = (division.join(1, at(0)), division.join(1, at(0)));
    assert!(division.grant(one, Bucket { rate: 900, burst: 100 }, at(60), at(0)));
    assert!(division.grant(one, Bucket { rate: 100, burst: 100 }, at(61), at(1)));
    assert_eq!(division.given, 900, "nobody knows yet that the first one is not in use");
    assert!(!division.grant(two, Bucket { rate: 200, burst: 100 }, at(61), at(1)));
    division.report(one, 0, at(2));
    assert_eq!(division.given, 900, "that report may have been on its way");
    division.report(one, 0, at(3));
    assert_eq!(division.given, 100);
    assert!(division.grant(two, Bucket { rate: 200, burst: 100 }, at(30), at(3)));
    division.leave(two);
    division.advance(at(29));
    assert_eq!(division.given, 300, "whoever has left may go on until its bucket ends");
    division.advance(at(30));
    assert_eq!(division.given, 100);
    division.advance(at(61));
    assert_eq!(division.given, 0);
    division.leave(one);
    assert!(division.holders() == 0);
}

#[test]
fn more_holders_than_units_have_one_each() {
    let now = Tick::from_secs(100);
    let mut division = Division::new(100_000, Duration::from_secs(100_000), 1, 1, now);
    let all: Vec<HolderId> = (0..1000).map(|_| division.join(1, now)).collect();
    for id in all {
        let told = answer(&mut division, id, 1, now);
        assert!(matches!(told, Some(Some(Bucket { burst: 1, .. }))), "{told:?}");
    }
    assert!(division.given <= 100_000);
}
