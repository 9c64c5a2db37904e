//! The judge accuses no server wrongly, and finds wrong answers.

use clap::Parser as _;
use tidegate::clock::ManualClock;
use tidegate::config::{Config, Format};
use tidegate::gate::Check;
use tidegate::{Gate, Tick};

use super::*;
use crate::args::{Cli, Verb};

const MS: u64 = 1_000_000;
/// A time of the year at no particular offset within any window.
const START: u64 = 1_790_000_000_123 * MS;

fn file(limit: &str, by: &str) -> Config {
    let text = format!("{{version: 1, policies: [{{name: p, by: [{by}], limit: {limit}}}]}}");
    Config::parse(&text, "p.yaml", Format::Yaml).unwrap().0
}

fn question(words: &[&str]) -> Question {
    let Verb::Bench(bench) = Cli::parse_from([&["tidegate", "bench", "http://gate"], words].concat()).verb
    else {
        unreachable!()
    };
    Question::read(&bench.asks, bench.judging.expect.as_ref(), 1).unwrap()
}

fn judge(config: &Config, question: &Question, slack: Duration) -> Judge {
    Judge::new(&Judged::of(config, question, "p.yaml").unwrap(), question, 16, slack).unwrap()
}

/// Returns a pseudo-random number.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Asks a server with these policies, which decides each ask at some time between sending and answer. Returns the
/// asks in the order of sending. `latency` is the longest latency in microseconds.
fn served(
    server: &Config,
    question: &Question,
    asks: u64,
    gap: u64,
    latency: u64,
    keys: u64,
    seed: u64,
) -> Vec<Ask> {
    let clock = ManualClock::at(Tick::from_nanos(START));
    let gate = Gate::in_memory(Arc::clone(&server.policies), 1_000).unwrap().with_clock(clock.clone());
    let mut state = seed;
    let mut spans: Vec<(u64, Ask)> = (0..asks)
        .map(|number| {
            let sent = START + number * gap + next(&mut state) % gap;
            let (out, back) = (next(&mut state) % latency * 1_000, next(&mut state) % latency * 1_000);
            let key = u32::try_from(next(&mut state) % keys).unwrap();
            (sent + out, Ask { key, sent, answered: sent + out + back, fate: Fate::Lost })
        })
        .collect();
    spans.sort_unstable_by_key(|(decided, _)| *decided);
    for (decided, ask) in &mut spans {
        clock.set(Tick::from_nanos(*decided));
        let request = question.descriptor(ask.key);
        let decision = gate.check(Check::of(&request).maybe_cost(question.cost())).now().unwrap();
        ask.fate = if decision.allowed { Fate::Allowed } else { Fate::Denied };
    }
    let mut asks: Vec<Ask> = spans.into_iter().map(|(_, ask)| ask).collect();
    asks.sort_unstable_by_key(|ask| ask.answered);
    asks
}

/// Judges asks in portions, as they end.
fn found(mut judge: Judge, asks: &[Ask]) -> WrongAnswers {
    for (at, portion) in asks.chunks(97).enumerate() {
        let later = &asks[(at * 97 + portion.len()).min(asks.len())..];
        let known_until = later.iter().map(|ask| ask.sent).min().unwrap_or(u64::MAX);
        judge.take(portion, known_until);
    }
    judge.take(&[], u64::MAX);
    judge.found()
}

/// All limits, with spans from short to much longer than a unit takes to return, and a server that follows its file.
#[test]
fn a_server_that_is_right_is_never_accused() {
    for limit in [
        "{rate: 100/s}",
        "{rate: 100/s, burst: 1}",
        "{algorithm: token-bucket, rate: 50/s, burst: 10}",
        "{algorithm: fixed-window, rate: 40/s}",
        "{algorithm: sliding-window, rate: 40/s}",
        "{algorithm: sliding-log, rate: 40/s}",
        "{algorithm: leaky-bucket, rate: 50/s, burst: 5, max_wait: 200ms}",
    ] {
        for (by, keys) in [("client.ip", 1), ("client.ip", 5), ("", 3)] {
            for (latency, seed) in [(1, 1), (5_000, 3), (300_000, 5)] {
                let (config, question) = (file(limit, by), question(&[]));
                let asks = served(&config, &question, 3_000, 3 * MS, latency, keys, seed);
                let found = found(judge(&config, &question, Duration::ZERO), &asks);
                assert_eq!(found.let_through + found.refused, 3_000);
                assert_eq!(
                    (found.wrongly_let_through, found.wrongly_refused),
                    (0, 0),
                    "{limit} by [{by}], {keys} keys, {latency} us: {found:?}"
                );
                assert!(found.refused > 100 || keys > 1, "{limit}: {found:?}");
            }
        }
    }
}

#[test]
fn a_server_of_twice_the_rate_lets_half_of_it_through_wrongly() {
    let (server, told, question) =
        (file("{rate: 100/s}", "client.ip"), file("{rate: 50/s}", "client.ip"), question(&[]));
    for latency in [1, 1_000, 20_000] {
        let asks = served(&server, &question, 5_000, 2 * MS, latency, 1, 7);
        let found = found(judge(&told, &question, Duration::from_millis(2)), &asks);
        // It allowed 100 + 10 s of 100/s instead of 50 + 10 s of 50/s.
        assert!((540..=550).contains(&found.wrongly_let_through), "{latency} us: {found:?}");
        assert_eq!(found.wrongly_refused, 0, "{found:?}");
    }
}

#[test]
fn a_server_of_half_the_rate_refuses_wrongly() {
    let (server, told, question) =
        (file("{rate: 50/s}", "client.ip"), file("{rate: 100/s}", "client.ip"), question(&[]));
    for latency in [1, 1_000] {
        let asks = served(&server, &question, 5_000, 2 * MS, latency, 1, 7);
        let found = found(judge(&told, &question, Duration::from_millis(2)), &asks);
        assert_eq!(found.wrongly_let_through, 0, "{found:?}");
        assert!(found.wrongly_refused > 4_000, "{latency} us: {found:?}");
    }
}

/// An ask of unknown fate may have been charged at any time, so the denial after it may be right.
#[test]
fn what_was_lost_may_have_been_charged() {
    let (config, question) = (file("{rate: 1/h, burst: 1}", "client.ip"), question(&[]));
    let ask = |at: u64, fate| Ask { key: 3, sent: START + at * MS, answered: START + (at + 1) * MS, fate };
    let refused = ask(50, Fate::Denied);
    for (before, wrong) in
        [(Fate::Unsent, 1), (Fate::Lost, 0), (Fate::Failed, 0), (Fate::Allowed, 0), (Fate::Denied, 2)]
    {
        let found = found(judge(&config, &question, Duration::ZERO), &[ask(10, before), refused]);
        assert_eq!(found.wrongly_refused, wrong, "{before:?}");
    }
}

#[test]
fn too_many_asks_are_not_judged() {
    let (config, question) = (file("{rate: 1/h}", "client.ip"), question(&[]));
    let mut judge = judge(&config, &question, Duration::ZERO);
    let ask = Ask { key: 0, sent: START, answered: START + MS, fate: Fate::Allowed };
    judge.take(&[ask; 10], START);
    judge.give_up();
    judge.take(&[ask; 10], u64::MAX);
    assert!(judge.found().gave_up && judge.let_through.waiting() + judge.refused.waiting() == 0);
}

#[test]
fn policies_that_cannot_be_judged_are_refused_by_name() {
    let refused = |policies: &str, words: &[&str]| {
        let text = format!("{{version: 1, policies: [{policies}]}}");
        let config = Config::parse(&text, "p.yaml", Format::Yaml).unwrap().0;
        Judged::of(&config, &question(words), "p.yaml").unwrap_err().to_string()
    };
    let guards =
        "{name: work, limit: {algorithm: concurrency, max: 3}}, {name: calls, limit: {algorithm: breaker}}";
    assert!(refused(guards, &[]).contains("policy \"work\" depends on requests in flight"));
    let calls = ["--config", "p.yaml", "--expect", "calls"];
    assert!(refused(guards, &calls).contains("policy \"calls\" depends on how calls end"));
    let busy = "{name: busy, when: rate above 5/s, limit: {rate: 1/s}}";
    assert!(refused(busy, &[]).contains("depends on numbers that only the server knows"));
    let other = "{name: search, match: {path: /api/**}, limit: {rate: 1/s}}";
    let told = refused(other, &[]);
    assert!(
        told.starts_with("no policy in force of p.yaml matches these requests, which have client.ip;"),
        "{told}"
    );
    let gone = ["--config", "p.yaml", "--expect", "gone"];
    assert!(refused(other, &gone).ends_with("no policy \"gone\" in p.yaml; there are search"));
}
