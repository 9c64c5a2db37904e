//! The profiles against what the real peers did: fixtures printed by the small drivers in `tests/peers`.

use std::time::Duration;

use tidegate_core::rate::{GuavaBursty, GuavaWarming, XTime};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Receipt, Replace, State, Tick, Transition};

#[test]
fn x_time_equals_the_real_one() {
    let mut run: Option<(Quota, State)> = None;
    let (mut held, mut burst, mut lines): (Vec<Option<Receipt>>, u64, usize) = (Vec::new(), 0, 0);
    for line in include_str!("fixtures/x_time.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["new", limit, of] = words[..] {
            burst = of.parse().unwrap();
            let quota = Quota::from(XTime::new(limit.parse().unwrap(), burst).unwrap());
            let state = quota.fresh(Tick::EPOCH);
            (run, held) = (Some((quota, state)), Vec::new());
            continue;
        }
        let [op, at, number, "->", ok, wait, tokens] = words[..] else { panic!("{line}") };
        let (quota, state) = run.take().unwrap();
        let now = Tick::from_nanos(at.parse().unwrap());
        let (quota, state, answer) = match op {
            "allow" | "reserve" => {
                let cost = Cost::new(number.parse().unwrap()).unwrap();
                let max_wait = if op == "allow" { Duration::ZERO } else { Duration::MAX };
                let (state, answer, receipt) = match quota.decide(&state, Ask::within(now, cost, max_wait)) {
                    Transition::Allowed { wait, next, receipt } => {
                        (next, (true, wait.as_nanos()), Some(receipt))
                    }
                    Transition::Denied { .. } => (state, (false, 0), None),
                };
                if op == "reserve" {
                    held.push(receipt);
                }
                (quota, state, answer)
            }
            "cancel" => {
                let receipt = held[number.parse::<usize>().unwrap()];
                let state =
                    receipt.map_or_else(|| state.clone(), |receipt| quota.cancel(&state, now, &receipt));
                (quota, state, (true, 0))
            }
            "limit" => {
                let new = Quota::from(XTime::new(number.parse().unwrap(), burst).unwrap());
                let state = new.carry(&quota, &state, now, Replace::AsIs);
                (new, state, (true, 0))
            }
            _ => panic!("{line}"),
        };
        assert_eq!(answer, (ok == "true", wait.parse().unwrap()), "{line}");
        // The peer spends the burst of a limit of zero and then reports its tokens, which say nothing about it.
        let tokens: f64 = tokens.parse().unwrap();
        if !matches!(&quota, Quota::XTime(limit) if *limit == XTime::new(0.0, burst).unwrap()) {
            assert_eq!(quota.standing(&state, now).remaining, tokens as u64, "{line}");
        }
        run = Some((quota, state));
        lines += 1;
    }
    assert!(lines > 700, "{lines} lines compared");
}

#[test]
fn guava_equals_the_real_one() {
    let start = Tick::from_secs(1_000);
    let mut run: Option<(Quota, State)> = None;
    let mut lines = 0;
    for line in include_str!("fixtures/guava.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<f64>().unwrap();
        let at = |word: &str| start.after(Duration::from_micros(word.parse().unwrap()));
        let started = match words[..] {
            ["bursty", rate] => Some(Quota::from(GuavaBursty::new(number(rate), 1.0).unwrap())),
            ["warming", rate, warm_up, cold] => {
                let warm_up = Duration::from_micros(warm_up.parse().unwrap());
                Some(Quota::from(GuavaWarming::new(number(rate), warm_up, number(cold)).unwrap()))
            }
            _ => None,
        };
        if let Some(quota) = started {
            let state = quota.fresh(start);
            run = Some((quota, state));
            continue;
        }
        let (quota, state) = run.take().unwrap();
        run = Some(match words[..] {
            ["try", now, n, timeout, "->", ok, wait] => {
                let (cost, max_wait) = (Cost::new(n.parse().unwrap()).unwrap(), timeout.parse().unwrap());
                let ask = Ask::within(at(now), cost, Duration::from_micros(max_wait));
                let (answer, state) = match quota.decide(&state, ask) {
                    Transition::Allowed { wait, next, .. } => ((true, wait.as_micros()), next),
                    Transition::Denied { retry } => {
                        let again = Ask { now: ask.now.after(retry.after().unwrap()), ..ask };
                        assert!(matches!(quota.decide(&state, again), Transition::Allowed { .. }), "{line}");
                        ((false, 0), state)
                    }
                };
                assert_eq!(answer, (ok == "true", wait.parse().unwrap()), "{line}");
                (quota, state)
            }
            ["rate", now, rate] => {
                let new = match &quota {
                    Quota::GuavaBursty(_) => Quota::from(GuavaBursty::new(number(rate), 1.0).unwrap()),
                    Quota::GuavaWarming(old) => Quota::from(old.with_rate(number(rate)).unwrap()),
                    other => panic!("{other:?}"),
                };
                let state = new.carry(&quota, &state, at(now), Replace::AsIs);
                (new, state)
            }
            _ => panic!("{line}"),
        });
        lines += 1;
    }
    assert!(lines > 800, "{lines} lines compared");
}
