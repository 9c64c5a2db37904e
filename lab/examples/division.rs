//! A fleet of proxies over one server: 1,000 proxies report 100 buckets each, every five seconds, while demand moves
//! from one half of the proxies to the other. Prints how well the limits were used, by how much too much was admitted,
//! and how long the reports took.
//!
//! `cargo run --release -p tidegate-lab --example division`
//!
//! All numbers except the times are the same in every run.

#![allow(clippy::disallowed_methods, reason = "it times the reports")]

use std::time::{Duration, Instant};

use tidegate_core::division::{Bucket, Division, HolderId};
use tidegate_core::envelope::Envelope;
use tidegate_core::{Rate, Tick};

const PROXIES: usize = 1000;
const BUCKETS: usize = 100;
const ROUNDS: u64 = 60;
/// Units that each limit grants per second, and at once.
const RATE: u64 = 10_000;
const BURST: u64 = 10_000;
/// A rate is divided in units of this period: a thousandth of a unit a second.
const PERIOD: Duration = Duration::from_secs(1000);
/// How often a proxy is asked between two reports.
const STEPS: u64 = 10;
const EVERY: Duration = Duration::from_secs(5);
const HOLDS: Duration = Duration::from_secs(22);

/// A proxy's bucket, filled when it is asked.
struct Held {
    holder: HolderId,
    bucket: Bucket,
    level: u128,
    at: Tick,
}

/// The units that a proxy is asked for in a bucket between two reports. The busy half of the proxies gets three in
/// four, and later the other half is busy.
fn asked(proxy: usize, round: u64) -> u64 {
    let busy = (proxy < PROXIES / 2) == (round < ROUNDS / 2);
    if busy { 90 } else { 30 }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Tick::from_secs(1_000_000);
    let mut took = Duration::ZERO;
    let (mut admitted, mut ideal, mut excess) = (0, 0, 0);
    for _ in 0..BUCKETS {
        let mut division = Division::new(RATE * PERIOD.as_secs(), PERIOD, BURST, BURST, start);
        let mut judge = Envelope::new(Rate::new(RATE, Duration::from_secs(1))?, BURST)?;
        let mut all: Vec<Held> = (0..PROXIES)
            .map(|_| Held { holder: division.join(1, start), bucket: Bucket::default(), level: 0, at: start })
            .collect();
        for step in 0..ROUNDS * STEPS {
            let (round, reports) = (step / STEPS, step % STEPS == STEPS - 1);
            for (at, held) in all.iter_mut().enumerate() {
                // The proxies ask at different moments within a step.
                let moment = (step * PROXIES as u64 + at as u64) * (EVERY.as_nanos() as u64 / STEPS);
                let now = start.after(Duration::from_nanos(moment / PROXIES as u64));
                let wants = asked(at, round);
                held.fill(now);
                let granted = (wants / STEPS).min((held.level / PERIOD.as_nanos()) as u64);
                held.level -= u128::from(granted) * PERIOD.as_nanos();
                judge.batch(now, wants / STEPS, granted);
                if !(reports || step == 0) {
                    continue;
                }
                let begun = Instant::now();
                division.report(held.holder, if reports { wants } else { 1 }, now);
                let until = now.after(HOLDS);
                match division.offer(held.holder, now) {
                    Some(bucket)
                        if held.bucket.is_worth_replacing(bucket)
                            && division.grant(held.holder, bucket, until, now) =>
                    {
                        (held.bucket, held.level) = (bucket, u128::from(bucket.burst) * PERIOD.as_nanos());
                    }
                    _ => {
                        division.renew(held.holder, until, now);
                    }
                }
                took += begun.elapsed();
            }
        }
        let used = judge.utilisation();
        (admitted, ideal, excess) =
            (admitted + used.admitted, ideal + used.ideal, excess.max(judge.excess()));
    }
    let reports = (PROXIES * BUCKETS) as u64 * ROUNDS;
    println!("{PROXIES} proxies with {BUCKETS} buckets each, {ROUNDS} reports of each");
    println!("admitted {admitted} of {ideal} units that one limit would have admitted");
    println!("too much in any span, of any limit: {excess} units of {BURST} + {PROXIES}");
    println!("{reports} reports in {took:?}: {:.0} a second", reports as f64 / took.as_secs_f64());
    Ok(())
}

impl Held {
    fn fill(&mut self, now: Tick) {
        let passed = u128::from(now.as_nanos() - self.at.as_nanos());
        let full = u128::from(self.bucket.burst) * PERIOD.as_nanos();
        self.level = (self.level + u128::from(self.bucket.rate) * passed).min(full);
        self.at = now;
    }
}
