use super::*;
use crate::decision::Cost;
use crate::rate::timeline;

fn ms(ms: u64) -> Tick {
    Tick::from_nanos(ms * 1_000_000)
}

#[test]
fn a_timeline() {
    let limit = FixedWindow::rolling(Rate::new(3, Duration::from_secs(1)).unwrap());
    let rows = [
        (500, 1, 0, Ok(0), 2), // opens the window
        (900, 2, 0, Ok(0), 0),
        (900, 1, 0, Err(600), 0),
        (100, 1, 0, Err(600), 0), // a step back stands still at 900
        (1499, 1, 0, Err(1), 0),
        (1500, 2, 0, Ok(0), 1), // opens the next
        (1600, 2, 899, Err(1), 1),
        (1600, 2, 900, Ok(900), 0), // opens the one from 2500 ahead of time
        (1600, 1, 0, Err(900), 0),  // although 1 is left: nobody overtakes
        (2500, 1, 0, Ok(0), 0),
    ];
    timeline::holds(&limit, &rows);
}

#[test]
fn cancelling_the_opener_brings_the_window_before_back() {
    let limit = FixedWindow::rolling(Rate::new(5, Duration::from_secs(1)).unwrap());
    let ask = |cost| Ask::within(ms(0), Cost::new(cost).unwrap(), Duration::from_secs(60));
    let Transition::Allowed { next: three, .. } = limit.decide(&limit.fresh(ms(0)), ask(3)) else { panic!() };
    let Transition::Allowed { next: ahead, receipt, .. } = limit.decide(&three, ask(4)) else { panic!() };
    assert_eq!(receipt.act, ms(1000));
    assert_eq!(limit.standing(&ahead, ms(1)).remaining, 0);
    assert_eq!(limit.settle(&ahead, ms(0), &receipt, 0), three);
    let undone = limit.settle(&ahead, ms(1001), &receipt, 0);
    assert_eq!(limit.standing(&undone, ms(1001)), limit.standing(&limit.fresh(ms(1001)), ms(1001)));
}

#[test]
fn a_changed_limit_keeps_what_was_spent() {
    let per_minute = |count| FixedWindow::rolling(Rate::new(count, Duration::from_secs(60)).unwrap());
    let (old, new) = (per_minute(100), per_minute(50));
    let ask = Ask::allow(ms(0), Cost::new(40).unwrap());
    let Transition::Allowed { next: spent, .. } = old.decide(&old.fresh(ms(0)), ask) else { panic!() };
    let left = |new: &FixedWindow, how| {
        let standing = new.standing(&new.carry(&old, &spent, ms(10), how), ms(10));
        (standing.remaining, standing.reset_after.as_millis())
    };
    assert_eq!(left(&new, Replace::AsIs), (10, 59_990));
    assert_eq!(left(&new, Replace::Proportional), (30, 59_990));
    assert_eq!(left(&new, Replace::Reset), (50, 0));
    let hourly = FixedWindow::calendar(50, CalendarUnit::Hour, "UTC").unwrap();
    assert_eq!(left(&hourly, Replace::AsIs), (10, 3_600_000 - 10), "an hour to go");
    #[cfg(feature = "tz")]
    {
        let hourly = FixedWindow::calendar(50, CalendarUnit::Hour, "Asia/Kolkata").unwrap();
        assert_eq!(left(&hourly, Replace::AsIs), (10, 1_800_000 - 10), "05:30 there: half an hour to go");
    }
}

#[cfg(feature = "tz")]
#[test]
fn an_unknown_zone_is_named() {
    let error = FixedWindow::calendar(5, CalendarUnit::Day, "Asia/Shangai").unwrap_err();
    assert_eq!(error.to_string(), "time zone `Asia/Shangai` is not known; did you mean `Asia/Shanghai`?");
    let error = FixedWindow::calendar(5, CalendarUnit::Day, "Mars").unwrap_err();
    assert_eq!(
        error.to_string(),
        "time zone `Mars` is not known; use an IANA name such as `Europe/Berlin` or `UTC`"
    );
    let known = FixedWindow::calendar(5, CalendarUnit::Day, "asia/shanghai").unwrap();
    assert_eq!(known.calendar_parts(), Some((CalendarUnit::Day, "Asia/Shanghai")));
}

#[cfg(not(feature = "tz"))]
#[test]
fn a_zone_that_this_build_is_without_is_named() {
    let error = FixedWindow::calendar(5, CalendarUnit::Day, "Asia/Shanghai").unwrap_err();
    assert_eq!(
        error.to_string(),
        "time zone `Asia/Shanghai` needs the feature `tz`, which this build is without; use `UTC`"
    );
    let utc = FixedWindow::calendar(5, CalendarUnit::Day, "utc").unwrap();
    assert_eq!(utc.calendar_parts(), Some((CalendarUnit::Day, "UTC")));
}

fn charged(
    limit: &FixedWindow,
    state: &FixedWindowState,
    at: u64,
    units: u64,
) -> (FixedWindowState, Receipt) {
    let ask = Ask::within(ms(at), Cost::new(units).unwrap(), Duration::from_secs(60));
    let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!("any wait") };
    (next, receipt)
}

/// A caller that undid the first charge of a window used to have the full limit again before the later charges were a
/// window old: asking and undoing gained more than not asking.
#[test]
fn a_window_does_not_outlive_the_charge_that_opened_it() {
    let limit = FixedWindow::rolling(Rate::new(5, Duration::from_secs(1)).unwrap());
    let (one, first) = charged(&limit, &limit.fresh(ms(0)), 0, 1);
    let (two, second) = charged(&limit, &one, 900, 4);
    let anew = limit.settle(&two, ms(950), &first, 0);
    assert_eq!(limit.standing(&anew, ms(950)).remaining, 1);
    assert_eq!(limit.standing(&anew, ms(1900)).remaining, 1, "those of 900 count a whole window");
    assert_eq!(limit.standing(&anew, ms(1950)).remaining, 5);
    // The rest of its units act before the new beginning of the window, and are still found there.
    assert_eq!(limit.standing(&limit.settle(&anew, ms(1000), &second, 1), ms(1000)).remaining, 4);
    let nothing = limit.settle(&anew, ms(1000), &second, 0);
    assert_eq!(limit.standing(&nothing, ms(1000)), limit.standing(&limit.fresh(ms(1000)), ms(1000)));
    // If only a part is undone, the window stays where it was opened.
    let (two, first) = (charged(&limit, &charged(&limit, &limit.fresh(ms(0)), 0, 2).0, 900, 3).0, first);
    let part = limit.settle(&two, ms(950), &Receipt { cost: Cost::new(2).unwrap(), ..first }, 1);
    assert_eq!(limit.standing(&part, ms(950)).remaining, 1);
    assert_eq!(limit.standing(&part, ms(1000)).remaining, 5);
}

#[test]
fn an_undone_opener_moves_the_windows_that_follow_and_no_promise() {
    let limit = FixedWindow::rolling(Rate::new(2, Duration::from_secs(1)).unwrap());
    let (one, first) = charged(&limit, &limit.fresh(ms(0)), 0, 1);
    let (two, _) = charged(&limit, &one, 400, 1);
    let (ahead, promised) = charged(&limit, &two, 400, 1);
    assert_eq!(promised.act, ms(1000));
    let moved = limit.settle(&ahead, ms(500), &first, 0);
    assert_eq!(charged(&limit, &moved, 500, 1).1.act, ms(1500), "when the one that began anew ends");
    // When the one ahead is undone, the one before it is open again, where it stands now.
    let back = limit.settle(&moved, ms(600), &promised, 0);
    assert_eq!(limit.standing(&back, ms(600)).remaining, 1);
    assert_eq!(limit.standing(&back, ms(1500)).remaining, 2);
}

#[test]
fn windows_ahead_are_emptied_in_any_order() {
    let limit = FixedWindow::rolling(Rate::new(1, Duration::from_secs(1)).unwrap());
    let (a, _) = charged(&limit, &limit.fresh(ms(0)), 0, 1);
    let (b, second) = charged(&limit, &a, 0, 1);
    let (c, third) = charged(&limit, &b, 0, 1);
    assert_eq!((second.act, third.act), (ms(1000), ms(2000)));
    let only_third = limit.settle(&c, ms(10), &second, 0);
    assert_eq!(charged(&limit, &only_third, 10, 1).1.act, ms(3000), "nobody overtakes the third");
    assert_eq!(limit.settle(&only_third, ms(0), &third, 0).top(), a.top());
    // However far ahead, windows that are emptied leave nothing behind.
    let (mut state, mut receipts) = (c, vec![second, third]);
    for _ in 0..200 {
        let (next, receipt) = charged_far(&limit, &state);
        receipts.push(receipt);
        state = next;
    }
    for receipt in receipts.iter().rev() {
        state = limit.settle(&state, ms(20), receipt, 0);
    }
    assert_eq!((state.top(), state.before()), (a.top(), [].as_slice()));
}

fn charged_far(limit: &FixedWindow, state: &FixedWindowState) -> (FixedWindowState, Receipt) {
    let ask = Ask::within(ms(0), Cost::ONE, Duration::MAX);
    let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!("any wait") };
    (next, receipt)
}

#[test]
fn a_debt_stays_in_its_window() {
    let limit = FixedWindow::rolling(Rate::new(5, Duration::from_secs(1)).unwrap());
    let (one, first) = charged(&limit, &limit.fresh(ms(0)), 0, 4);
    let debt = limit.settle(&one, ms(500), &first, 9);
    let standing = limit.standing(&debt, ms(500));
    assert_eq!((standing.remaining, standing.debt, standing.reset_after.as_millis()), (0, 4, 500));
    assert_eq!(charged(&limit, &debt, 500, 5).1.act, ms(1000), "the window that follows is not filled");
    // If the excess is settled after the window has ended, it counts in a window of now.
    let late = limit.settle(&one, ms(3000), &first, 9);
    let standing = limit.standing(&late, ms(3000));
    assert_eq!((standing.remaining, standing.debt, standing.reset_after.as_millis()), (0, 0, 1000));
    let most = limit.settle(&one, ms(500), &first, u64::MAX);
    assert_eq!(limit.standing(&most, ms(500)).debt, Rate::MAX_COUNT - 1);
}
