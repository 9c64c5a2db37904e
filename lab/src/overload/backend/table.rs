//! The backends that controllers are judged by.

use std::time::Duration;

use super::{Backend, Contention, Excess, Sharing, Speed, Wait, Work};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Sixteen processors and requests of about 20 ms; the base of every other backend.
pub(in super::super) fn plain(name: &str, about: &'static str) -> Backend {
    Backend {
        name: name.to_owned(),
        about,
        sharing: Sharing::Shared(16),
        work: Work::Even(ms(16), ms(24)),
        speed: Speed::Steady,
        contention: Contention::None,
        wait: Wait::None,
        excess: Excess::Waits,
        deadline: ms(500),
    }
}

/// The backends that every controller is judged by. Most finish 400 to 1000 requests per second.
pub(crate) fn table() -> Vec<Backend> {
    vec![
        plain(
            "knee",
            "all requests inside share 16 processors: latency is flat up to 16 requests, then grows in proportion",
        ),
        Backend {
            sharing: Sharing::Queued(8),
            work: Work::Exponential(ms(10)),
            ..plain("queue", "8 workers behind a queue, exponential work")
        },
        Backend {
            sharing: Sharing::Queued(1),
            work: Work::Exponential(ms(2)),
            wait: Wait::Fixed(ms(20)),
            deadline: ms(250),
            ..plain("soft knee", "one worker of 2 ms behind a network of 20 ms: throughput bends slowly")
        },
        Backend {
            work: Work::Even(ms(8), ms(12)),
            wait: Wait::Jitter(ms(0), ms(60)),
            sharing: Sharing::Shared(8),
            ..plain(
                "jitter",
                "10 ms of work, then a random wait of 0 to 60 ms that does not depend on the load",
            )
        },
        Backend {
            speed: Speed::Warms { least: 0.25, ramp: secs(4), idle: secs(1) },
            ..plain("slow start", "a quarter of its speed after a second of idleness, then 4 s to full speed")
        },
        Backend {
            sharing: Sharing::Queued(8),
            work: Work::Exponential(ms(10)),
            wait: Wait::Timer(ms(40)),
            ..plain("timer", "replies go out when a timer of 40 ms goes off, however early the work was done")
        },
        Backend {
            sharing: Sharing::Shared(40),
            work: Work::Even(ms(45), ms(55)),
            excess: Excess::Defers { above: 40, after: ms(50) },
            ..plain(
                "defers",
                "no slower with load: with more than 40 requests inside, it refuses further ones after 50 ms, as long as work takes",
            )
        },
        Backend {
            sharing: Sharing::Queued(8),
            work: Work::Exponential(ms(10)),
            excess: Excess::Drops { above: 16, after: ms(1), work: ms(2) },
            ..plain(
                "drops",
                "with more than 16 requests inside, further ones fail at once, and each failure costs a fifth of the work",
            )
        },
        Backend {
            contention: Contention::Linear { from: 16, each: 0.05 },
            ..plain(
                "lock contention",
                "throughput falls with more than 16 requests inside: to a third with 56",
            )
        },
        Backend {
            sharing: Sharing::Shared(32),
            speed: Speed::Steps(vec![(secs(8), 0.4), (secs(14), 1.2), (secs(20), 0.7)]),
            work: Work::Exponential(ms(40)),
            ..plain("capacity steps", "its speed falls to 40 %, rises to 120 %, falls to 70 %")
        },
        Backend {
            speed: Speed::Wave { depth: 0.4, period: secs(10) },
            ..plain("capacity wave", "its speed swings by 40 % every 10 s")
        },
        Backend {
            work: Work::Even(ms(8), ms(12)),
            sharing: Sharing::Shared(8),
            wait: Wait::Steps(vec![(ms(0), ms(10)), (secs(10), ms(110)), (secs(18), ms(30))]),
            ..plain(
                "latency shift",
                "its dependency takes 10 ms, then 110 ms, then 30 ms; its capacity stays the same",
            )
        },
        Backend {
            sharing: Sharing::Queued(6),
            work: Work::Exponential(ms(20)),
            excess: Excess::TimesOut(ms(120)),
            ..plain(
                "stable time-out",
                "a request without an answer after 120 ms fails exactly then, and the work is wasted",
            )
        },
        Backend {
            speed: Speed::Pauses { period: ms(1500), pause: ms(120) },
            ..plain("pauses", "stands still for 120 ms every 1.5 s, as a garbage collector does")
        },
        Backend {
            work: Work::HeavyTailed(ms(6)),
            deadline: secs(1),
            ..plain("heavy tail", "Pareto work: one request in 460 costs as much as 30")
        },
        Backend {
            sharing: Sharing::Queued(8),
            work: Work::Mixed { cheap: ms(4), dear: ms(100), one_in: 16 },
            deadline: secs(1),
            ..plain("mixed costs", "one of 16 requests costs 25 times as much as the others")
        },
        Backend {
            work: Work::Cached { hit: ms(16), miss: ms(120), half: 600 },
            deadline: secs(1),
            ..plain("cold cache", "begins with an empty cache, and a miss costs 7.5 hits")
        },
    ]
}

/// Returns backends that were not tried until the laws were final.
pub(crate) fn held_back() -> Vec<Backend> {
    vec![
        Backend {
            sharing: Sharing::Shared(24),
            work: Work::Exponential(ms(30)),
            contention: Contention::Square { from: 36 },
            ..plain(
                "thrashing",
                "with more than 36 requests inside, throughput falls with the square of their number",
            )
        },
        Backend {
            sharing: Sharing::Queued(2),
            work: Work::Exponential(ms(5)),
            wait: Wait::Jitter(ms(20), ms(120)),
            speed: Speed::Steps(vec![(secs(7), 2.0), (secs(13), 0.6)]),
            ..plain(
                "far and moving",
                "2 workers behind 20 to 120 ms of network; its speed doubles, then falls to 60 %",
            )
        },
        Backend {
            sharing: Sharing::Queued(12),
            work: Work::HeavyTailed(ms(5)),
            excess: Excess::TimesOut(ms(400)),
            speed: Speed::Pauses { period: ms(2300), pause: ms(90) },
            ..plain("tail, pauses, time-out", "Pareto work, pauses of 90 ms, an error after exactly 400 ms")
        },
    ]
}

/// Variations of the table in other sizes, not tried until the laws were final.
pub(crate) fn varied() -> Vec<Backend> {
    vec![
        Backend {
            sharing: Sharing::Shared(200),
            work: Work::Even(ms(160), ms(240)),
            deadline: secs(3),
            ..plain("knee, 200 × 200 ms", "ten times the places, ten times the latency")
        },
        Backend {
            sharing: Sharing::Shared(2),
            work: Work::Even(us(1600), us(2400)),
            deadline: ms(100),
            ..plain("knee, 2 × 2 ms", "an eighth of the places, a tenth of the latency")
        },
        Backend {
            sharing: Sharing::Queued(1),
            work: Work::Exponential(ms(4)),
            deadline: ms(250),
            ..plain("queue, 1 × 4 ms", "one worker")
        },
        Backend {
            sharing: Sharing::Queued(64),
            work: Work::Exponential(ms(80)),
            deadline: secs(1),
            ..plain("queue, 64 × 80 ms", "64 workers")
        },
        Backend {
            contention: Contention::Linear { from: 6, each: 0.2 },
            sharing: Sharing::Shared(6),
            work: Work::Exponential(ms(10)),
            ..plain("lock contention, steep", "throughput halves with 11 requests inside; 6 are right")
        },
        Backend {
            contention: Contention::Linear { from: 60, each: 0.02 },
            sharing: Sharing::Shared(60),
            work: Work::Exponential(ms(60)),
            ..plain("lock contention, wide", "60 requests inside are right")
        },
        Backend {
            sharing: Sharing::Queued(3),
            work: Work::Exponential(ms(10)),
            excess: Excess::TimesOut(ms(50)),
            deadline: ms(200),
            ..plain("stable time-out, 3 × 10 ms", "an error after exactly 50 ms")
        },
    ]
}
