//! The byte forms of every format so far, checked against fixtures: all later versions read what one version wrote, as
//! the same value.
//!
//! Each line of a fixture is a limit with a state and its standing at one tick, or a receipt with its numbers; bytes
//! are hexadecimal. A new algorithm adds lines, and existing lines are never changed. A new format adds a file, and the
//! files of older formats are still read.

use std::time::Duration;

use tidegate_core::breaker::{CircuitBreaker, Force, Forced, Window};
use tidegate_core::bytes::{Bytes, DecodeError, FORMAT, Reader, Writer};
use tidegate_core::concurrency::AdaptiveConcurrency;
use tidegate_core::rate::{Bandwidth, CalendarUnit, ColdFactor, Refill, TokenBucket};
use tidegate_core::rate::{GuavaBursty, GuavaWarming, UberPacer, XTime};
use tidegate_core::{
    Algorithm, Ask, Cost, Finish, Guard, Outcome, Quota, QuotaError, Rate, Receipt, Replace, State, Tick,
    Transition,
};

/// Every format so far, oldest first.
const FIXTURES: [(u8, &str); 1] = [(1, include_str!("fixtures/format-1.txt"))];

#[test]
fn every_format_is_read_as_the_value_that_was_written() {
    for (format, fixture) in FIXTURES {
        let (fixed, lines) = (lines_of(fixture), written());
        let missing: Vec<&str> =
            lines.iter().map(|line| line.text.as_str()).filter(|line| !fixed.contains(line)).collect();
        // The newest fixture contains exactly what this version writes.
        if format == FORMAT && cfg!(feature = "tz") {
            assert!(missing.is_empty(), "the fixture should also have:\n{}", missing.join("\n"));
            assert_eq!(fixed.len(), lines.len(), "the fixture has lines that nothing writes");
        }
        for line in fixed {
            let fields: Vec<&str> = line.split(' ').collect();
            match fields[..] {
                ["receipt", name, history, hex, ..] => {
                    let receipt = read_receipt(&bytes(hex)).unwrap();
                    assert_eq!(fields[4..].join(" "), numbers(&receipt), "{line}");
                    assert_eq!(bytes(hex)[0], format, "{line}");
                    assert!(
                        lines.iter().any(|line| line.is(name, history) && line.receipts.contains(&receipt)),
                        "{line}"
                    );
                }
                [name, history, quota, state, ..] => {
                    assert_eq!((bytes(quota)[0], bytes(state)[0]), (format, format), "{line}");
                    let (quota, state) =
                        (Quota::decode(&bytes(quota)).unwrap(), State::decode(&bytes(state)).unwrap());
                    assert_eq!(fields[4..].join(" "), standing(&quota, &state), "{line}");
                    let now = lines.iter().find(|line| line.is(name, history) && line.quota == quota);
                    assert_eq!(now.map(|line| &line.state), Some(&state), "{line}");
                }
                _ => panic!("no line of a fixture: {line}"),
            }
        }
    }
}

#[test]
fn a_format_from_the_future_is_named() {
    let quota = Quota::per_second(7).burst(5).gcra().unwrap();
    let newer = FORMAT + 1;
    let told = format!("format version {newer} is not known; this build reads up to {FORMAT}");
    for mut form in [quota.encode(), used(&quota).state.encode()] {
        form[0] = newer;
        let errors = [Quota::decode(&form).unwrap_err(), State::decode(&form).unwrap_err()];
        assert_eq!(errors, [DecodeError::Version { version: newer }; 2]);
        assert_eq!(errors[0].to_string(), told);
        form[0] = 0;
        assert_eq!(State::decode(&form), Err(DecodeError::Version { version: 0 }), "there was no format 0");
    }
}

fn quotas() -> Result<Vec<Quota>, QuotaError> {
    let rate = Rate::new(7, Duration::from_secs(3))?;
    let ten_seconds = Window::Time { span: Duration::from_secs(10), buckets: 10 };
    Ok(vec![
        Quota::per_second(7).burst(5).gcra()?,
        Quota::per_minute(5).fixed_window()?,
        #[cfg(feature = "tz")]
        Quota::per_day(5).calendar_window(CalendarUnit::Day, "Asia/Shanghai")?,
        Quota::per_day(5).calendar_window(CalendarUnit::Month, "UTC")?,
        Quota::per_minute(5).sliding_window(6)?,
        Quota::per_minute(5).sliding_counter()?,
        Quota::per_minute(5).sliding_log()?,
        Quota::per_second(7).burst(5).token_bucket()?,
        TokenBucket::several([Bandwidth::new(rate, 5)?, Bandwidth::new(rate, 9)?.refill(Refill::Interval)])?
            .into(),
        Quota::per(7, Duration::from_secs(4)).burst(5).aligned_bucket()?,
        Quota::per_second(7).burst(5).leaky_bucket()?,
        Quota::per_second(7).burst(2).leaky_queue(5)?,
        Quota::per_second(7).warm_up(Duration::from_secs(4), ColdFactor::THREE)?,
        XTime::new(2.5, 5)?.into(),
        UberPacer::new(rate, 3)?.into(),
        GuavaBursty::new(2.5, 1.0)?.into(),
        GuavaWarming::new(2.5, Duration::from_secs(4), 3.0)?.into(),
        Quota::concurrency(6, Duration::from_secs(30))?,
        adaptive("hill-climb")?,
        adaptive("aimd")?,
        adaptive("vegas")?,
        adaptive("gradient")?,
        adaptive("min-latency")?,
        adaptive("bbr")?,
        CircuitBreaker::builder().build()?.into(),
        CircuitBreaker::resilience4j().window(Window::Calls(4)).min_calls(2).build()?.into(),
        CircuitBreaker::hystrix().window(ten_seconds).build()?.into(),
    ])
}

fn adaptive(law: &str) -> Result<Quota, QuotaError> {
    let law = law.parse().unwrap();
    Ok(AdaptiveConcurrency::new(law).ttl(Duration::from_secs(30))?.cpu(900).into())
}

/// A limit after some steps, with the receipts of its charges.
struct Written {
    name: String,
    history: &'static str,
    quota: Quota,
    state: State,
    receipts: Vec<Receipt>,
    text: String,
}

impl Written {
    fn new(history: &'static str, quota: &Quota, state: State, receipts: Vec<Receipt>) -> Self {
        let name = format!("{quota:?}").split('(').next().unwrap().to_owned();
        let text = format!(
            "{name} {history} {} {} {}",
            hex(&quota.encode()),
            hex(&state.encode()),
            standing(quota, &state)
        );
        Self { name, history, quota: quota.clone(), state, receipts, text }
    }

    fn is(&self, name: &str, history: &str) -> bool {
        self.name == name && self.history == history
    }
}

/// Returns what the fixture of this version contains: each limit in four states, and a receipt of each.
fn written() -> Vec<Written> {
    let mut all = Vec::new();
    for quota in quotas().unwrap() {
        let (used, settled) = (used(&quota), settled(&quota));
        let receipt = *settled.receipts.last().unwrap();
        let changed = quota.carry(&quota, &settled.state, tick(1), Replace::AsIs);
        let set_back = quota.set_back(&settled.state, tick(0).before(Duration::from_secs(3600)));
        all.extend([used, settled]);
        all.push(Written::new("changed", &quota, changed, Vec::new()));
        all.extend(set_back.map(|state| Written::new("set-back", &quota, state, Vec::new())));
        let mut form = Writer::new(0);
        receipt.write(&mut form);
        let name = all.last().unwrap().name.clone();
        let text = format!("receipt {name} settled {} {}", hex(&form.finish()), numbers(&receipt));
        let state = all.last().unwrap().state.clone();
        if let Quota::Breaker(breaker) = &quota {
            all.extend(breaker_histories(&quota, breaker));
        }
        if matches!(quota, Quota::Adaptive(_)) {
            all.push(learnt(&quota));
        }
        all.push(Written { name, history: "receipt", quota, state, receipts: vec![receipt], text });
    }
    all
}

/// A breaker that has counted, one that tripped, one that probes, one that is recovering, and one forced by a person.
fn breaker_histories(quota: &Quota, breaker: &CircuitBreaker) -> Vec<Written> {
    let mut state = quota.fresh(tick(0));
    let call = |state: &mut State, second, outcome| {
        let ask = Ask::allow(tick(second), Cost::ONE);
        let Transition::Allowed { next, receipt, .. } = quota.decide(state, ask) else { return };
        *state = quota.finish(&next, tick(second), &receipt, Finish { used: 1, outcome });
    };
    call(&mut state, 0, Outcome::Failure);
    let mut all = vec![Written::new("counted", quota, state.clone(), Vec::new())];
    (0..30).for_each(|_| call(&mut state, 1, Outcome::Failure));
    // Breakers that evaluate at intervals do so at this call.
    call(&mut state, 2, Outcome::Success);
    all.push(Written::new("failed", quota, state.clone(), Vec::new()));
    call(&mut state, 100, Outcome::Success);
    if let Transition::Allowed { next, .. } = quota.decide(&state, Ask::allow(tick(100), Cost::ONE)) {
        all.push(Written::new("tried", quota, next, Vec::new()));
    }
    (0..6).for_each(|_| call(&mut state, 101, Outcome::Success));
    all.push(Written::new("recovering", quota, state, Vec::new()));
    let mut forced = breaker.fresh(tick(0));
    let by_hand = Forced::new(Force::Open, Some(tick(9)), "moves to another room");
    breaker.force_in_place(&mut forced, tick(1), Some(by_hand), &mut |_| ());
    all.push(Written::new("forced", quota, State::Breaker(forced), Vec::new()));
    all
}

/// A limit that a law moves, after a hundred successful calls and one overload, with a call in flight.
fn learnt(quota: &Quota) -> Written {
    let mut state = quota.fresh(tick(0));
    for call in 0..=101u64 {
        let at = |millis| tick(0).after(Duration::from_millis(7 * call + millis));
        let Transition::Allowed { next, receipt, .. } = quota.decide(&state, Ask::allow(at(0), Cost::ONE))
        else {
            panic!("nobody is inside")
        };
        let outcome = if call < 100 { Outcome::Success } else { Outcome::Overloaded };
        state = match call {
            101 => next,
            _ => quota.finish(&next, at(5 + call % 3), &receipt, Finish { used: 1, outcome }),
        };
    }
    Written::new("learnt", quota, state, Vec::new())
}

fn tick(second: u64) -> Tick {
    Tick::from_secs(1_600_000_000 + second)
}

/// Charges, each at a second, of some units, with a longest wait in seconds. Refusals change nothing.
fn charged(quota: &Quota, charges: &[(u64, u64, u64)]) -> (State, Vec<Receipt>) {
    let (mut state, mut receipts) = (quota.fresh(tick(0)), Vec::new());
    for (second, cost, wait) in charges {
        let ask = Ask::within(tick(*second), Cost::new(*cost).unwrap(), Duration::from_secs(*wait));
        if let Transition::Allowed { next, receipt, .. } = quota.decide(&state, ask) {
            state = next;
            receipts.push(receipt);
        }
    }
    (state, receipts)
}

/// Three units at once, one a second later, and a reservation of two.
fn used(quota: &Quota) -> Written {
    let (state, receipts) = charged(quota, &[(0, 3, 0), (1, 1, 0), (1, 2, 60)]);
    Written::new("used", quota, state, receipts)
}

/// Several charges, of which two were undone, one used more than it was charged, and others wait: a state with every
/// field in use.
fn settled(quota: &Quota) -> Written {
    const YEAR: u64 = 366 * 86_400;
    let charges =
        [(0, 1, 0), (1, 1, 0), (1, 2, YEAR), (1, 1, YEAR), (1, 2, YEAR), (1, 2, YEAR), (1, 1, YEAR)];
    let (mut state, receipts) = charged(quota, &charges);
    for (nth, used) in [(1, 0), (2, 4), (3, 0)] {
        if let Some(receipt) = receipts.get(nth) {
            state = quota.settle(&state, tick(1), receipt, used);
        }
    }
    Written::new("settled", quota, state, receipts)
}

/// The standing in numbers: limit, remaining, debt, and nanoseconds until full.
fn standing(quota: &Quota, state: &State) -> String {
    let standing = quota.standing(state, tick(3));
    let reset = standing.reset_after.as_nanos();
    format!("{} {} {} {reset}", standing.limit, standing.remaining, standing.debt)
}

/// The numbers of a receipt: the tick of the charge, the tick to act, the units, and the four numbers of its algorithm.
fn numbers(receipt: &Receipt) -> String {
    let [a, b, c, d] = receipt.mark;
    let (at, act) = (receipt.at.as_nanos(), receipt.act.as_nanos());
    format!("{at} {act} {} {a} {b} {c} {d}", receipt.cost.units())
}

fn read_receipt(form: &[u8]) -> Result<Receipt, DecodeError> {
    let (_, mut from) = Reader::open(form)?;
    let receipt = Receipt::read(&mut from)?;
    from.close().map(|()| receipt)
}

/// The lines of a fixture that this build can read. Without time zones these are the lines that name none; a receipt
/// does not name its limit, so all receipts of fixed windows are left out.
fn lines_of(fixture: &str) -> Vec<&str> {
    let (zone, receipt) = (hex(b"Asia/"), "receipt FixedWindow");
    let read = |line: &&str| cfg!(feature = "tz") || !line.contains(&zone) && !line.starts_with(receipt);
    fixture.lines().filter(|line| !line.starts_with('#')).filter(read).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(pair).collect()
}
