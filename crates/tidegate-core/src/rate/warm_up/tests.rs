use super::*;
use crate::decision::Cost;

fn limit() -> WarmUp {
    let rate = Rate::new(5, Duration::from_secs(1)).unwrap();
    WarmUp::new(rate, Duration::from_secs(3), ColdFactor::THREE).unwrap()
}

#[test]
fn a_timeline() {
    let limit = limit();
    let mut state = limit.fresh(Tick::EPOCH);
    // (ms, cost, longest wait in ms, microseconds of wait or refused for this long)
    for (at, cost, max_wait, expected) in [
        (0, 1, 0, Ok(0)),
        (0, 1, 0, Err(573_334)), // half a unit down a slope of 7.5 units from 600 ms to 200 ms
        (100, 1, 473, Err(334)),
        (100, 1, 474, Ok(473_334)),
        (90, 1, 0, Err(993_334)), // a step back stands still at 100
        (60_000, 5, 0, Ok(0)),    // cold again; five units along the slope cost 7/3 s
        (60_000, 1, 0, Err(2_333_334)),
        (62_400, 1, 0, Ok(0)),
    ] {
        let ask = Ask::within(
            Tick::from_nanos(at * 1_000_000),
            Cost::new(cost).unwrap(),
            Duration::from_millis(max_wait),
        );
        let micros = |span: Duration| span.as_nanos().div_ceil(1000);
        let found = match limit.decide(&state, ask) {
            Transition::Allowed { wait, next, .. } => {
                state = next;
                Ok(micros(wait))
            }
            Transition::Denied { retry } => Err(micros(retry.after().unwrap())),
        };
        assert_eq!(found, expected, "at {at}");
    }
    assert_eq!(limit.decide(&state, Ask::allow(Tick::MAX, Cost::new(6).unwrap())), Transition::NEVER);
}

#[test]
fn a_whole_warm_up_takes_the_period() {
    let limit = limit();
    // From completely cold to the foot of the slope it takes 7.5 units at this rate; two rounds of them show the whole slope.
    let double =
        WarmUp::new(Rate::new(10, Duration::from_secs(1)).unwrap(), limit.period(), limit.cold).unwrap();
    let double = double.burst(15).unwrap();
    let ask = Ask::allow(Tick::EPOCH, Cost::new(15).unwrap());
    let Transition::Allowed { next, .. } = double.decide(&double.fresh(Tick::EPOCH), ask) else {
        panic!("free")
    };
    assert_eq!(next.next, Moment { ns: 3_000_000_000, part: 0 });
}

fn reserve(limit: &WarmUp, state: &WarmUpState, now: Tick, units: u64) -> (WarmUpState, Receipt) {
    let ask = Ask::within(now, Cost::new(units).unwrap(), Duration::from_secs(60));
    let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
        panic!("within a minute")
    };
    (next, receipt)
}

#[test]
fn a_charge_is_settled_exactly_once_nobody_stands_behind_it() {
    let limit = limit();
    let (a, first) = reserve(&limit, &limit.fresh(Tick::EPOCH), Tick::EPOCH, 1);
    let (b, second) = reserve(&limit, &a, Tick::EPOCH, 4);
    let (c, third) = reserve(&limit, &b, Tick::EPOCH, 1);
    assert_eq!(limit.settle(&c, Tick::EPOCH, &third, 0), b);
    let noted = limit.settle(&c, Tick::EPOCH, &second, 0);
    assert_eq!((noted.next, noted.cold), (c.next, c.cold), "the third relies on it");
    assert_eq!(limit.settle(&noted, Tick::EPOCH, &second, 0), noted, "a charge is settled once");
    assert_eq!(limit.settle(&noted, Tick::EPOCH, &third, 0), a, "both come back");
    let used = limit.settle(&c, Tick::EPOCH, &second, 3);
    assert_eq!(limit.settle(&used, Tick::EPOCH, &third, 0), reserve(&limit, &a, Tick::EPOCH, 3).0);
    assert_eq!(limit.settle(&c, Tick::from_secs(9), &second, 0), c, "it is paid off");
    assert_eq!(limit.settle(&b, Tick::EPOCH, &second, 3), reserve(&limit, &a, Tick::EPOCH, 3).0);
    // Long after the work acted, and the last charge first.
    let later = Tick::from_secs(2);
    let undone = limit.settle(&limit.settle(&b, later, &second, 0), later, &first, 0);
    let never = limit.fresh(Tick::EPOCH);
    assert_eq!(limit.standing(&undone, later), limit.standing(&never, later));
    assert_eq!(limit.rested(&undone, later), limit.rested(&never, later));
}

#[test]
fn what_turns_out_dearer_is_waited_off() {
    let limit = limit();
    let (spent, receipt) = reserve(&limit, &limit.fresh(Tick::EPOCH), Tick::EPOCH, 1);
    let more = limit.settle(&spent, Tick::EPOCH, &receipt, 6);
    assert_eq!((more.next, more.cold), limit.charged(limit.rested(&spent, Tick::EPOCH), 5));
    let standing = limit.standing(&more, Tick::EPOCH);
    assert!(standing.debt > 6 && standing.remaining == 0, "a cold unit costs up to three: {standing:?}");
    let endless = limit.settle(&spent, Tick::EPOCH, &receipt, u64::MAX);
    assert_eq!(limit.standing(&endless, Tick::EPOCH).debt, Tick::MAX.as_nanos().div_ceil(200_000_000));
    assert_eq!(limit.settle(&endless, Tick::MAX, &receipt, 0), endless);
}

#[test]
fn a_receipt_from_before_a_change_gives_nothing_back() {
    let (limit, now) = (limit(), Tick::from_secs(1));
    let (spent, before) = reserve(&limit, &limit.fresh(now), now, 2);
    let reset = limit.carry(&limit, &spent, now, Replace::Reset);
    let (again, _) = reserve(&limit, &reset, now, 2);
    assert_eq!((again.next, again.cold), (spent.next, spent.cold), "nothing but the change tells them apart");
    assert_eq!(limit.settle(&again, now, &before, 0), again);
    assert!(limit.full_at(&reset).unwrap().as_nanos() > spent.next.ns);
}

/// Sentinel's slope for a count of 10, 10 s and a factor of 3: it begins at int(10·10)/(3 − 1) = 50 tokens, ends at
/// 50 + int(2·10·10/(1 + 3)) = 100, and rises by (3 − 1)/10/50 = 0.004 s from token to token. A token costs 1/10 s at its
/// foot, so 1/10 + 50·0.004 = 0.3 s when cold. The price of a unit here is the mean along that line.
#[test]
fn the_slope_is_sentinels() {
    let rate = Rate::new(10, Duration::from_secs(1)).unwrap();
    let limit = WarmUp::new(rate, Duration::from_secs(10), ColdFactor::THREE).unwrap();
    let (mut state, mut now, mut total) = (limit.fresh(Tick::EPOCH), Tick::EPOCH, Duration::ZERO);
    for token in (41..=100).rev() {
        let ask = Ask::within(now, Cost::ONE, Duration::MAX);
        let Transition::Allowed { next, .. } = limit.decide(&state, ask) else { panic!("any wait will do") };
        let price = limit.standing(&next, now).reset_after;
        // In microseconds: 100 ms, and 4 ms for each token between the foot and the middle of this one.
        let above = 2 * i64::from(token) - 1 - 100;
        let expected = 100_000 + 2_000 * above.max(0);
        assert_eq!(price.as_nanos().div_ceil(1_000) as i64, expected, "token {token}");
        total += price;
        (state, now) = (next, now.after(price));
        if token == 51 {
            assert_eq!(total.as_millis(), 10_000, "warm after 50 tokens, in the warm-up period");
        }
    }
}

/// What an earlier version wrote after it had settled a charge with others behind it, which it did not note.
#[test]
fn a_state_without_noted_charges_is_read() {
    let old = "010900ca3a1486573416e4e514bc9c25a1e3865734160000000097244992240fc190000000000000000000";
    let bytes: Vec<u8> =
        (0..old.len() / 2).map(|at| u8::from_str_radix(&old[2 * at..2 * at + 2], 16).unwrap()).collect();
    let state = crate::State::decode(&bytes).unwrap();
    assert!(matches!(&state, crate::State::WarmUp(state) if state.past.is_none()));
    assert_eq!(state.encode(), bytes);
}
