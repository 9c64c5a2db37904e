//! Peaks, denied keys, and which keys are forgotten when the room is used up.

use super::*;

#[test]
fn the_peak_is_the_most_in_one_window() {
    let mut peaks = Peaks::new(Duration::from_secs(1), 10);
    // Six at 0.0 s and six at 0.5 s lie within one second; windows of whole calendar seconds would hold both too.
    for (tenths, amount) in [(0, 6), (5, 6), (14, 5), (30, 11), (31, 2)] {
        let _ = peaks.see(b"a", Tick::from_nanos(tenths * 100_000_000), amount);
    }
    let top = peaks.top(1, |key| key.peak);
    assert_eq!((top[0].peak, top[0].total), (13, 30));
    assert_eq!(top[0].peak_at, Tick::from_nanos(3_100_000_000));
}

#[test]
fn whole_second_stamps_give_exact_peaks_per_second() {
    let mut peaks = Peaks::new(Duration::from_secs(1), 10);
    for (second, amount) in [(10, 3), (11, 4), (12, 2)] {
        let _ = peaks.see(b"a", Tick::from_secs(second), amount);
    }
    assert_eq!(peaks.falling(), [4]);
}

#[test]
fn heavy_keys_stay_when_the_room_is_used_up() {
    let mut peaks = Peaks::new(Duration::from_secs(1), 100);
    for round in 0..100u64 {
        for light in 0..100u64 {
            let _ = peaks.see(format!("light-{round}-{light}").as_bytes(), Tick::from_secs(round), 1);
            peaks.see(b"heavy", Tick::from_secs(round), 1).deny(Tick::from_secs(round), 1);
        }
    }
    assert!(!peaks.is_exact() && peaks.hot.len() <= 100);
    let top = &peaks.top(1, |key| key.total)[0];
    assert_eq!((top.key.as_str(), top.total, top.missed, top.denied), ("heavy", 10_000, 0, 10_000));
    let Distinct::About(about) = peaks.distinct() else { panic!("{:?}", peaks.distinct()) };
    assert!(about.abs_diff(10_001) < 1_000, "{about}");
}

#[test]
fn the_ranking_holds_every_key_and_who_was_denied() {
    let mut peaks = Peaks::new(Duration::from_secs(1), 10);
    for (key, amount, denied) in [("a", 3, true), ("b", 9, false), ("c", 3, false), ("d", 3, true)] {
        let mut seen = peaks.see(key.as_bytes(), Tick::from_secs(1), amount);
        if denied {
            seen.deny(Tick::from_secs(1), amount);
            seen.know();
        }
    }
    let ranking = peaks.ranking();
    let ranked: Vec<_> = ranking.iter().map(|ranked| (ranked.key, ranked.peak, ranked.denied)).collect();
    assert_eq!(ranked, [(&b"b"[..], 9, 0), (b"a", 3, 1), (b"d", 3, 1), (b"c", 3, 0)]);
    assert!(ranking[1].signed_in && !ranking[3].signed_in);
}

#[test]
fn keys_hit_are_listed_with_their_paths_when_asked_for() {
    let ask = |mut peaks: Peaks| {
        for number in 0..50u64 {
            let mut seen = peaks.see(b"scraper", Tick::from_secs(number), 2);
            seen.detail(Some(&format!("/items/{number}")));
            seen.deny(Tick::from_secs(number), 2);
            peaks.see(b"calm", Tick::from_secs(number), 1).detail(None);
        }
        peaks.see(b"once", Tick::from_secs(60), 1).deny(Tick::from_secs(60), 1);
        peaks
    };
    let peaks = ask(Peaks::new(Duration::from_secs(1), 10).with_details());
    let hit = peaks.hit(10, |_| true);
    let keys: Vec<_> = hit.iter().map(|hit| (hit.peak.key.as_str(), hit.peak.denied)).collect();
    assert_eq!(keys, [("scraper", 50), ("once", 1)]);
    assert_eq!((hit[0].requests, hit[0].peak.total), (Some(50), 100));
    let path = PathCount { path: "/items/*".to_owned(), requests: 50, is_exact: true };
    assert_eq!(hit[0].paths, [path]);
    assert_eq!(peaks.hit(1, |key| key != b"scraper")[0].peak.key, "once");
    assert_eq!(peaks.about(b"calm").unwrap().requests, Some(50));
    assert_eq!(peaks.about(b"nobody"), None);
    let plain = ask(Peaks::new(Duration::from_secs(1), 10));
    assert_eq!((plain.hit(1, |_| true)[0].requests, plain.hit(1, |_| true)[0].paths.len()), (None, 0));
}

#[test]
fn details_stay_with_their_key_when_the_room_is_used_up() {
    let mut peaks = Peaks::new(Duration::from_secs(1), 10).with_details();
    for round in 0..100u64 {
        peaks.see(format!("light-{round}").as_bytes(), Tick::from_secs(round), 1).detail(Some("/light"));
        let mut seen = peaks.see(b"heavy", Tick::from_secs(round), 1);
        seen.detail(Some("/heavy"));
        seen.deny(Tick::from_secs(round), 1);
    }
    let hit = &peaks.hit(5, |_| true)[0];
    assert_eq!((hit.requests, hit.paths[0].path.as_str(), hit.is_floor()), (Some(100), "/heavy", false));
    assert!(!peaks.is_exact());
}
