//! Tests of the lists of keys, some against an exact count.

use tidegate::Tick;

use super::kept::Listed;
use super::*;
use crate::board::Board;

const MINUTE: Duration = Duration::from_secs(60);

fn seen(policy: u16, verdict: Verdict, key: u64, cost: u32) -> Seen {
    Seen { policy, verdict, near: false, canary: false, key, cost, at: Tick::EPOCH }
}

fn keys(busy: &[Busy]) -> Vec<(u64, u64)> {
    busy.iter().map(|busy| (busy.key, busy.count)).collect()
}

#[test]
fn keys_are_found_by_refusals_nearness_and_rate() {
    let mut busiest = Busiest::new(6_000);
    for key in 0..20_000_u64 {
        busiest.note(&seen(1, Verdict::Denied, 1_000 + key, 1));
        if key.is_multiple_of(10) {
            busiest.note(&seen(1, Verdict::Denied, 7, 1));
            busiest.note(&Seen { near: true, ..seen(2, Verdict::Allowed, 8, 50) });
        }
    }
    busiest.end_second(6_010);
    let denied = busiest.read(By::Denied, MINUTE, None, 1);
    assert_eq!(denied[0].key, 7);
    assert!(denied[0].count >= 2_000 && denied[0].count - denied[0].error <= 2_000);
    assert_eq!(keys(&busiest.read(By::Near, MINUTE, Some(2), 9)), [(8, 2_000)]);
    let rate = busiest.read(By::Rate, MINUTE, None, 9);
    assert_eq!(keys(&rate), [(8, 100_000)]);
    assert!(busiest.read(By::Near, MINUTE, Some(1), 9).is_empty());
    let (first, share) = busiest.most_refused(1).unwrap();
    assert!(first.key == 7 && share > 0.05 && share < 0.1, "{share}");
}

#[test]
fn past_minutes_and_hours_are_joined_by_window() {
    let begin = 7_200 * 1_000;
    let mut busiest = Busiest::new(begin);
    for second in 0..3 * 3_600 {
        let key = second / 3_600;
        busiest.note(&seen(1, Verdict::Denied, key, 1));
        busiest.end_second(begin + second + 1);
    }
    let hour = Duration::from_secs(3_600);
    assert_eq!(keys(&busiest.read(By::Denied, 24 * hour, None, 9)), [(0, 3_600), (1, 3_600), (2, 3_600)]);
    assert_eq!(keys(&busiest.read(By::Denied, 15 * MINUTE, None, 9)), [(2, 900)]);
    assert_eq!(keys(&busiest.read(By::Denied, MINUTE, None, 9)), [(2, 60)]);
    assert_eq!((busiest.minutes.len(), busiest.hours.len()), (15, 3));
    // A clock that is set back, or far ahead, keeps nothing of another time.
    busiest.end_second(begin);
    assert!(busiest.read(By::Denied, 24 * hour, None, 9).is_empty());
    busiest.end_second(u64::MAX);
    busiest.end_second(0);
    assert!(busiest.minutes.len() <= 1 && busiest.hours.len() <= 1);
}

#[test]
fn the_hottest_key_is_of_ten_seconds() {
    let mut busiest = Busiest::new(0);
    for now in 1..=60 {
        if now <= 20 {
            (0..25).for_each(|_| busiest.note(&seen(1, Verdict::Allowed, 7, 2)));
            (0..1_000).for_each(|key| busiest.note(&seen(1, Verdict::Allowed, 100 + key, 1)));
        }
        busiest.note(&seen(1, Verdict::Denied, 9, 2));
        busiest.end_second(now);
        let (key, rate) = busiest.hottest(1).unzip();
        match now {
            5 => assert!(key == Some(7) && rate.unwrap() <= 25.0, "{key:?} {rate:?}"),
            10..=20 => {
                assert!(key == Some(7) && (40.0..=50.0).contains(&rate.unwrap()), "{now} {rate:?}");
            }
            30.. => assert_eq!(key, None),
            _ => {}
        }
    }
    assert_eq!(busiest.hottest(2), None);
}

#[test]
fn the_last_minute_is_known_of_a_key() {
    let begin = 7_200 * 1_000;
    let mut busiest = Busiest::new(begin);
    let mut minute = |number: u64, verdict: Verdict| {
        for second in number * 60..number * 60 + 60 {
            busiest.note(&seen(1, verdict, 7, 2));
            busiest.note(&seen(1, Verdict::Allowed, 8, 1));
            busiest.end_second(begin + second + 1);
        }
        assert_eq!(busiest.last_minute(), Some((begin + number * 60, begin + number * 60 + 60)));
        let mut last = busiest.keys_of_last_minute(9);
        last.sort_unstable_by_key(|one| one.key);
        last
    };
    let of = |key: u64, refused: f64, admitted: f64| KeyMinute { policy: 1, key, refused, admitted };
    assert_eq!(minute(0, Verdict::Allowed), [of(7, 0.0, 120.0), of(8, 0.0, 60.0)]);
    assert_eq!(minute(1, Verdict::Denied), [of(7, 60.0, 0.0), of(8, 0.0, 60.0)]);
}

#[test]
fn names_are_wanted_until_they_are_known() {
    let mut busiest = Busiest::new(0);
    busiest.note(&seen(1, Verdict::Denied, 7, 1));
    assert_eq!(busiest.end_second(1), [(1, 7)]);
    assert!(busiest.end_second(2).is_empty(), "nothing happened");
    let named = Named { name: "client.ip=203.0.113.9".into(), digest: "#1".into() };
    busiest.learn(1, 7, named.clone());
    busiest.note(&seen(1, Verdict::Denied, 7, 1));
    assert!(busiest.end_second(3).is_empty());
    assert_eq!(busiest.read(By::Denied, MINUTE, None, 1)[0].name, Some(named.clone()));
    assert_eq!((busiest.name_of(1, 7), busiest.name_of(2, 7)), (Some(named), None));
    (0..2_000).for_each(|key| busiest.note(&seen((key % 64) as u16, Verdict::Denied, key, 1)));
    assert_eq!(busiest.end_second(4).len(), WANTED);
}

#[test]
fn a_flood_of_new_keys_leaves_no_other_list_without_names() {
    let mut busiest = Busiest::new(0);
    for policy in 0..10 {
        for key in 0..2_000 {
            busiest.note(&seen(policy, Verdict::Denied, key, 1));
            busiest.note(&Seen { near: true, ..seen(policy, Verdict::Allowed, key, 1) });
        }
    }
    for _ in 0..50 {
        busiest.note(&seen(10, Verdict::Denied, 7, 1));
        busiest.note(&seen(9, Verdict::Denied, 8, 1));
    }
    let wanted = busiest.end_second(1);
    assert_eq!(wanted.len(), WANTED);
    assert!(wanted[..33].contains(&(10, 7)) && wanted[..33].contains(&(9, 8)), "{wanted:?}");
}

#[test]
fn many_passes_elsewhere_do_not_hide_a_policy_that_refuses() {
    let mut busiest = Busiest::new(0);
    for minute in 1..=2 {
        for policy in 0..100 {
            (0..100).for_each(|_| busiest.note(&seen(policy, Verdict::Allowed, 1, 1)));
        }
        busiest.note(&seen(200, Verdict::Denied, 7, 1));
        busiest.end_second(60 * minute);
    }
    assert_eq!(keys(&busiest.read(By::Denied, MINUTE, Some(200), 1)), [(7, 1)]);
    assert_eq!(busiest.places.len(), PLACES);
}

#[test]
fn names_are_bounded_and_the_oldest_go_first() {
    let mut names = Names::default();
    let named = |name: &str| Named::new(name, "#0123456789abcdef");
    names.insert(1, 0, named(&"ä".repeat(10_000)), 0);
    assert_eq!(names.of(1, 0).unwrap().name.len(), NAME);
    for key in 1..100_000 {
        names.insert(1, key, named("client.ip=203.0.113.9"), key / 1_000);
        names.use_name(1, 1, key / 1_000);
        assert!(names.bytes <= NAME_BYTES);
    }
    assert!(names.of(1, 99_999).is_some() && names.of(1, 1).is_some(), "new, and used");
    assert!(names.of(1, 2).is_none());
    assert_eq!(names.bytes, names.names.values().map(Entry::bytes).sum::<usize>());
}

/// The bytes that the type's comment states, for as many policies and keys as there may be.
#[test]
fn memory_is_bounded() {
    let mut busiest = Busiest::new(0);
    let mut now = 0;
    for minute in 0..20_u64 {
        for key in 0..600_u64 {
            for policy in 0..100 {
                // Each policy has a place in some minute.
                let policy = if minute == 19 { 1_000 + policy } else { policy };
                busiest.note(&seen(policy, Verdict::Denied, key, 1));
                busiest.note(&Seen { near: true, ..seen(policy, Verdict::Allowed, key, 1) });
            }
        }
        now += 60;
        busiest.end_second(now);
    }
    assert_eq!((busiest.places.len(), busiest.hour.len()), (PLACES, PLACES * 3));
    assert!(busiest.places.iter().all(|place| place.policy >= 1_000), "those that are active now");
    let live: usize = busiest
        .places
        .iter()
        .flat_map(|place| place.sketches.iter().chain([&place.fast]))
        .chain(busiest.hour.values())
        .map(Sketch::bytes)
        .sum();
    assert!(live <= 7_000_000, "{live}");
    let past: usize =
        busiest.minutes.iter().flat_map(|past| &past.lists).map(|list| size_of_val(&*list.counters)).sum();
    assert!((20_000_000..24_000_000).contains(&past), "{past}");
    busiest.end_second(3_600);
    let hour: usize = busiest.hours[0].lists.iter().map(|list| size_of_val(&*list.counters)).sum();
    assert!(24 * hour <= 5_000_000, "{hour}");
}

const DAY: Duration = Duration::from_secs(86_400);

const BEGIN: u64 = 7_200 * 1_000;

/// The bytes that a text may have.
const MOST: usize = 2 << 20;

fn learn(busiest: &mut Busiest, policy: u16, key: u64, who: &str) {
    busiest.learn(policy, key, Named::new(who, &format!("#{who}")));
}

fn names(listed: &[Listed]) -> Vec<(&str, &str, f64)> {
    let mut names = Vec::new();
    for Listed { policy, name, count, .. } in listed {
        names.push((policy.as_deref().unwrap(), name.as_ref().map_or("?", |named| &*named.name), *count));
    }
    names
}

#[test]
fn hours_of_an_earlier_process_are_joined_by_policy_and_digest_and_age_out() {
    let (mut board, mut busiest) = (Board::new(BEGIN), Busiest::new(BEGIN));
    let (login, gone) = (board.policy("login", None), board.policy("gone", None));
    for (key, who) in [(7, "ann"), (8, "\"bob\"\n")] {
        learn(&mut busiest, login, key, who);
    }
    learn(&mut busiest, gone, 7, "ann");
    // Ann is refused in the first hour, Bob in the second, which has not ended; nobody knows who the third is.
    for second in 0..5_400 {
        busiest.note(&seen(login, Verdict::Denied, 7 + second / 3_600, 1));
        busiest.note(&seen(login, Verdict::Allowed, 9, 1));
        busiest.note(&seen(gone, Verdict::Allowed, 7, 2));
        busiest.end_second(BEGIN + second + 1);
    }
    let text = busiest.hours_text(&board, MOST);
    assert!(!text.contains("?") && text.lines().count() == 4, "{text}");

    // The next process numbers policies and keys in another way.
    let start = BEGIN + 6_000;
    let (mut board, mut busiest) = (Board::new(start), Busiest::new(start));
    board.policy("other", None);
    let login = board.policy("login", None);
    busiest.learn_hours(&text);
    learn(&mut busiest, login, 70, "ann");
    let denied = |busiest: &Busiest, window: Duration| busiest.listed(By::Denied, window, None, 9, &board);
    let bob = ("login", "\"bob\"\n", 1_800.0);
    assert_eq!(names(&denied(&busiest, DAY)), [("login", "ann", 3_600.0), bob]);
    for second in 0..100 {
        busiest.note(&seen(login, Verdict::Denied, 70, 1));
        busiest.note(&seen(login, Verdict::Denied, 71, 1));
        busiest.end_second(start + second + 1);
    }
    let listed = denied(&busiest, DAY);
    assert_eq!(names(&listed), [("login", "ann", 3_700.0), bob, ("login", "?", 100.0)]);
    assert_eq!(listed[0].per_second, 3_700.0 / 6_100.0);
    assert_eq!(names(&denied(&busiest, 15 * MINUTE))[0], ("login", "ann", 100.0), "of this process alone");
    assert_eq!(busiest.listed(By::Denied, DAY, None, 1, &board).len(), 1);
    let rate = busiest.listed(By::Rate, DAY, Some("gone"), 9, &board);
    assert_eq!(names(&rate), [("gone", "ann", 10_800.0)], "a policy that is no longer there");
    assert!(busiest.has_found("gone") && !busiest.has_found("other"));
    assert!(busiest.listed(By::Rate, DAY, Some("other"), 9, &board).is_empty());

    // Two parts of an hour become one.
    let mut third = Busiest::new(start + 200);
    third.learn_hours(&busiest.hours_text(&board, MOST));
    third.learn_hours(&third.hours_text(&board, MOST));
    assert_eq!(names(&denied(&third, DAY)), [("login", "ann", 3_700.0), bob]);
    assert_eq!(third.hours_text(&board, MOST).lines().count(), 5);

    // The first hour goes a day after its end, then the second; also out of the text.
    third.end_second(BEGIN + 3_600 + 86_400);
    assert_eq!(names(&denied(&third, DAY)), [bob, ("login", "ann", 100.0)]);
    third.end_second(BEGIN + 3_600 + 86_460);
    assert_eq!(third.hours_text(&board, MOST).lines().count(), 3);
    third.end_second(start + 86_400 + 160);
    assert!(denied(&third, DAY).is_empty() && third.hours_text(&board, MOST).is_empty());
}

#[test]
fn the_text_of_hours_is_bounded_and_has_the_first_of_each_list() {
    let (mut board, mut busiest) = (Board::new(BEGIN), Busiest::new(BEGIN));
    let policies: Vec<u16> = (0..10).map(|number| board.policy(&format!("policy-{number}"), None)).collect();
    for policy in policies {
        for key in 0..60 {
            learn(&mut busiest, policy, key, &format!("{key}-{}", "\u{1}".repeat(200)));
            (0..60 - key).for_each(|_| busiest.note(&seen(policy, Verdict::Denied, key, 1)));
        }
    }
    busiest.end_second(BEGIN + 60);
    assert_eq!(busiest.hours_text(&board, MOST).lines().count(), 600);
    let text = busiest.hours_text(&board, 100_000);
    assert!((95_000..=100_000).contains(&text.len()), "{}", text.len());
    let mut next = Busiest::new(BEGIN + 120);
    next.learn_hours(&text);
    let listed = next.listed(By::Denied, DAY, None, 999, &board);
    assert_eq!(listed.len(), text.lines().count());
    let first = listed.iter().filter(|one| one.count == 60.0).count();
    assert_eq!(first, 10, "of each policy");
    assert!(busiest.hours_text(&board, 0).is_empty());
}

#[test]
fn what_is_not_a_text_of_hours_is_left_out() {
    let board = Board::new(BEGIN);
    let mut busiest = Busiest::new(BEGIN);
    let good = format!(r##"[{BEGIN},{},"login","denied","ann","#1",5,1]"##, BEGIN + 60);
    let ahead = good.replace(&BEGIN.to_string(), &u64::MAX.to_string());
    busiest.learn_hours(&format!("{{}}\n[1,2]\n{good}\n{}\n{ahead}\n\n", good.replace("denied", "size")));
    let listed = busiest.listed(By::Denied, DAY, None, 9, &board);
    assert_eq!((names(&listed), listed[0].error), (vec![("login", "ann", 5.0)], 1.0));
    busiest.end_second(u64::MAX);
    assert!(busiest.listed(By::Denied, DAY, None, 9, &board).is_empty());
}
