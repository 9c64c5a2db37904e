//! Compares the window algorithms with slow models that keep every act, decision by decision, over random quotas and
//! traffic.
//!
//! Each takes a quarter of a million steps by default; `TIDEGATE_MODEL_STEPS=5000000 cargo test --release` takes more.

mod counter;
mod crowd;
mod driver;
mod fixed;
mod hostile;
mod model;
use crate::random;
mod sliding;

use std::time::Duration;

use tidegate_core::rate::{CalendarUnit, FixedWindow, SlidingCounter, SlidingLog, SlidingWindow};
use tidegate_core::{Quota, Rate, State, Tick};

use driver::{Subject, drive};
use model::Wide;
use random::Random;

/// Zones that change their clocks in different ways; only UTC in a build without time zones.
const ZONES: &[&str] = if cfg!(feature = "tz") {
    &["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata"]
} else {
    &["UTC"]
};

/// A rate from one in 146 years to a billion a second; small counts and common periods more often.
fn random_rate(random: &mut Random, most: u64, near: Option<Rate>) -> Rate {
    let count = match random.below(4) {
        0 | 1 => 1 + random.below(12.min(most)),
        2 => random.one_to(most),
        _ => most - random.below(most.min(3)),
    };
    let period = match random.below(8) {
        0 | 1 => random.span(1 << 62),
        2 => Duration::from_nanos(1 + random.below(40)),
        3 => Rate::MAX_PERIOD,
        4 => Duration::from_secs(100 * 365 * 86_400),
        _ => Duration::from_secs(random.pick(&[1, 10, 60, 3600, 86_400])),
    };
    let period = near.filter(|_| random.one_in(2)).map_or(period, Rate::period);
    Rate::new(count, period).unwrap()
}

fn rate_of(quota: &Quota) -> Option<Rate> {
    match quota {
        Quota::SlidingWindow(law) => Some(law.rate()),
        Quota::SlidingCounter(law) => Some(law.rate()),
        Quota::SlidingLog(law) => Some(law.rate()),
        _ => None,
    }
}

/// No span of one window sees more than the limit.
fn never_more_in_any_span(limit: u64, window: Duration, acts: &[(Wide, Wide)]) {
    let (mut oldest, mut sum) = (0, 0);
    for (act, units) in acts {
        sum += units;
        while acts[oldest].0 + window.as_nanos() <= *act {
            sum -= acts[oldest].1;
            oldest += 1;
        }
        assert!(sum <= Wide::from(limit), "{sum} of {limit} in {window:?}: {acts:?}");
    }
}

/// No window that begins at a multiple of its length sees more than the limit.
fn never_more_in_windows(limit: u64, acts: &[(Wide, Wide)], window: impl Fn(Wide) -> Wide) {
    for acts in acts.chunk_by(|a, b| window(a.0) == window(b.0)) {
        let sum: Wide = acts.iter().map(|(_, units)| units).sum();
        assert!(sum <= Wide::from(limit), "{sum} of {limit}: {acts:?}");
    }
}

/// A table holds one state per key, so a large state costs memory for every key.
#[test]
fn states_stay_small() {
    assert!(size_of::<State>() <= 48);
}

#[test]
fn rolling_windows_equal_their_model() {
    let subject = Subject {
        quota: |random, _| FixedWindow::rolling(random_rate(random, Rate::MAX_COUNT, None)).into(),
        model: fixed_model,
        law: |quota, acts| {
            let Quota::FixedWindow(law) = quota else { unreachable!() };
            // A span of one window's length touches at most two windows.
            never_more_in_any_span(2 * law.limit(), law.period(), acts);
        },
    };
    drive(&subject, 1);
}

#[test]
fn calendar_windows_equal_their_model() {
    let subject = Subject {
        quota: |random, _| {
            let rate = random_rate(random, Rate::MAX_COUNT, None);
            if random.one_in(8) {
                return FixedWindow::rolling(rate).into();
            }
            let zone = random.pick(ZONES);
            FixedWindow::calendar(rate.count(), random.pick(&CalendarUnit::ALL), zone).unwrap().into()
        },
        model: fixed_model,
        law: |quota, acts| {
            let Quota::FixedWindow(law) = quota else { unreachable!() };
            if law.calendar_parts().is_some() {
                let window = |act| law.window_at(Tick::from_nanos(act as u64)).0.as_nanos().into();
                never_more_in_windows(law.limit(), acts, window);
            }
        },
    };
    drive(&subject, 2);
}

fn fixed_model(quota: &Quota, now: Tick) -> Box<dyn model::Model> {
    let Quota::FixedWindow(law) = quota else { unreachable!() };
    Box::new(fixed::FixedModel::new(law.clone(), now))
}

#[test]
fn sliding_windows_equal_their_model() {
    let subject = Subject {
        quota: |random, near| {
            let rate = random_rate(random, Rate::MAX_COUNT, near.and_then(rate_of));
            let most = rate.period_nanos().min(1024);
            let few = 1 + random.below(12.min(most));
            let buckets = if random.one_in(4) { random.one_to(most) } else { few };
            let same = near.filter(|_| random.one_in(2)).and_then(|near| match near {
                Quota::SlidingWindow(law) => Some(law.buckets()),
                _ => None,
            });
            SlidingWindow::new(rate, same.filter(|same| *same <= most).unwrap_or(buckets)).unwrap().into()
        },
        model: |quota, now| Box::new(sliding::SlidingModel::new(quota, now)),
        law: |quota, acts| {
            let rate = rate_of(quota).unwrap();
            never_more_in_any_span(rate.count(), rate.period(), acts);
        },
    };
    drive(&subject, 3);
}

#[test]
fn sliding_logs_equal_their_model() {
    let subject = Subject {
        quota: |random, near| {
            let rate = random_rate(random, 1 << 14, near.and_then(rate_of));
            SlidingLog::new(rate).unwrap().into()
        },
        model: |quota, now| Box::new(sliding::SlidingModel::new(quota, now)),
        law: |quota, acts| {
            let rate = rate_of(quota).unwrap();
            never_more_in_any_span(rate.count(), rate.period(), acts);
        },
    };
    drive(&subject, 4);
}

#[test]
fn sliding_counters_equal_their_model() {
    let subject = Subject {
        quota: |random, near| {
            SlidingCounter::new(random_rate(random, Rate::MAX_COUNT, near.and_then(rate_of))).into()
        },
        model: |quota, now| Box::new(counter::CounterModel::new(quota, now)),
        law: |quota, acts| {
            let rate = rate_of(quota).unwrap();
            never_more_in_windows(rate.count(), acts, |act| act / rate.period().as_nanos());
            never_more_in_any_span(2 * rate.count(), rate.period(), acts);
        },
    };
    drive(&subject, 5);
}
