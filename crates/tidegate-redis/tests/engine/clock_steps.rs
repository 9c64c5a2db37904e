//! A server whose clock is set: no key is refused for longer than a second because of it, and none is granted anything
//! twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::store::DecidedBy;
use tidegate_core::rate::CalendarUnit;
use tidegate_core::{Quota, QuotaError};

use crate::servers::{Server, allowed, connect, left, options, runtime, take};

/// 50 units a second, the burst spent: by the script, and by the library.
fn busy() -> [(&'static [u8], Arc<Quota>); 5] {
    let of = |quota: Result<Quota, QuotaError>| Arc::new(quota.unwrap());
    let rate = || Quota::per_second(50);
    [
        (b"gcra", of(rate().gcra())),
        (b"bucket", of(rate().token_bucket())),
        (b"log", of(rate().sliding_log())),
        (b"window", of(rate().fixed_window())),
        (b"sliding", of(rate().sliding_window(10))),
    ]
}

/// Regression: busy keys were refused for ten seconds, and nothing said so.
#[test]
fn a_clock_set_back_refuses_nobody_for_long() {
    for back in [3, 86_400] {
        let Some(server) = Server::start_with_clock() else { return };
        let runtime = runtime();
        let store = connect(&runtime, options(&server));
        let other = connect(&runtime, options(&server));
        for (key, quota) in busy() {
            assert!(allowed(&store, key, &quota, 100) >= 50, "{key:?}");
        }
        left(&other, b"gcra", &busy()[0].1);
        server.set_clock(-back);
        let (keys, stepped) = (busy(), now());
        let mut first = vec![None; keys.len()];
        let mut granted = vec![0; keys.len()];
        while stepped.elapsed() < Duration::from_secs(3) {
            for (at, (key, quota)) in keys.iter().enumerate() {
                let executed = take(&store, key, quota, 1).unwrap();
                assert_eq!(executed.by, DecidedBy::Engine);
                if executed.allowed {
                    first[at] = first[at].or(Some(stepped.elapsed()));
                    granted[at] += 1;
                }
            }
        }
        for ((first, granted), (key, _)) in first.iter().zip(&granted).zip(&keys) {
            let key = String::from_utf8_lossy(key);
            let first = first.unwrap_or_else(|| panic!("{key}: {back} s back, refused for 3 s"));
            // What was spent in a window comes back a second after it was spent; and that stands still for another.
            let of_a_window = ["window", "log", "sliding"].contains(&&*key);
            let most = Duration::from_millis(if of_a_window { 2250 } else { 1250 });
            assert!(first < most, "{key}: {back} s back, refused for {first:?}");
            let most = 50 * 3 + 51;
            assert!((50..=most).contains(granted), "{key}: {granted} units in 3 s after {back} s back");
        }
        assert_eq!(store.counts().clock_set_back, 1, "it is noticed once");
        left(&other, b"gcra", &busy()[0].1);
        // A node that asks after the clock has caught up has nothing to notice.
        assert_eq!(other.counts().clock_set_back, u64::from(back > 3), "by each node");
    }
}

/// The edges of the calendar stay where they are, so a limit per day neither stands still nor starts anew.
#[test]
fn a_calendar_window_keeps_what_was_spent_when_the_clock_is_set_back() {
    let Some(server) = Server::start_with_clock() else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let daily = Quota::per_day(100).calendar_window(CalendarUnit::Day, "UTC").unwrap();
    let daily = Arc::new(daily);
    assert_eq!(allowed(&store, b"a", &daily, 30), 30);
    for back in [5, 20] {
        server.set_clock(-back);
        assert_eq!(allowed(&store, b"a", &daily, 10), 10);
    }
    // Within 25 s after midnight the clock was set back to yesterday: then nothing is left until midnight.
    let left = left(&store, b"a", &daily);
    assert!(left == 50 || left == 0 || left == 60, "{left}");
}

/// A clock that goes to and fro makes keys refill no faster than it claims to have moved forward.
#[test]
fn a_clock_that_goes_to_and_fro_by_little_grants_nothing_more() {
    let Some(server) = Server::start_with_clock() else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let (quota, began) = (Arc::new(Quota::per_second(100).gcra().unwrap()), now());
    let mut granted = allowed(&store, b"a", &quota, 200);
    for offset in [0, -1].repeat(10) {
        server.set_clock(offset);
        granted += allowed(&store, b"a", &quota, 200);
    }
    // The clock was one second ahead at the end, at most.
    let most = 100 + 100 * (began.elapsed().as_secs() as usize + 2);
    assert!(granted <= most, "{granted} of {most}");
}

#[allow(clippy::disallowed_methods, reason = "the server runs in real time")]
fn now() -> Instant {
    Instant::now()
}
