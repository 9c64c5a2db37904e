//! Judges proposals: on the log they were made from, and on another day of the same traffic.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tidegate::policy::{Limit, Policy};
use tidegate::{Quota, Rate};
use tidegate_sim::log::{Log, LogOptions};
use tidegate_sim::source::Input;
use tidegate_sim::suggest::{Proposal, SuggestOptions, Suggestion, suggest};
use tidegate_sim::what_if::{Candidate, WhatIf, WhatIfOptions};

use crate::traffic::{self, Plant, Planted};

const SCENARIOS: [(&str, Plant); 16] = [
    ("people only", traffic::nothing),
    ("scrapers", traffic::scrapers),
    ("a slow crawler", traffic::slow_crawler),
    ("a slow crawler and scrapers", traffic::crawler_and_scrapers),
    ("thirty addresses that scrape together", traffic::many_scrapers),
    ("offices, signed in", traffic::offices),
    ("offices, signed in, and scrapers", traffic::offices_and_scrapers),
    ("offices, and a crawler no faster than they", traffic::crawler_behind_offices),
    ("offices, in a log without users", traffic::offices_unknown),
    ("offices and scrapers, in a log without users", traffic::offices_unknown_and_scrapers),
    ("many cron jobs in the same second", traffic::cron_together),
    ("one cron job in bursts on the hour", traffic::cron_alone),
    ("apps that poll", traffic::polling),
    ("apps that poll, and scrapers", traffic::polling_and_scrapers),
    ("a flash crowd", traffic::flash_crowd),
    ("a flash crowd and scrapers", traffic::flash_crowd_and_scrapers),
];

fn in_file(log: &Planted) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), log.text()).unwrap();
    file
}

/// What a limit does to those to cut and to everybody else.
#[derive(Clone, Copy, Debug, Default)]
struct Harm {
    bad_requests: u64,
    bad_denied: u64,
    bad_hit: u64,
    others_hit: u64,
    others_denied: u64,
}

fn harm(log: &Planted, proposal: &Proposal) -> Harm {
    let mut policy = Policy::new("p", Limit::new(Quota::per_second(1).gcra().unwrap(), "any"));
    policy.by = vec!["client.ip".to_owned()];
    let rate = Rate::new(proposal.rate.count, proposal.rate.window).unwrap();
    let candidate = Candidate { rate, burst: proposal.burst };
    let options = WhatIfOptions { named: 10_000, ..WhatIfOptions::default() };
    let mut what_if = WhatIf::new(&policy, &[candidate], options).unwrap();
    let file = in_file(log);
    let mut reading = Log::open(vec![Input::File(file.path().to_owned())], LogOptions::default()).unwrap();
    reading
        .read(|record| {
            what_if.feed(record);
            ControlFlow::Continue(())
        })
        .unwrap();
    let mut harm =
        Harm { bad_requests: log.clients().filter(|(_, bad)| *bad).count() as u64, ..Harm::default() };
    for hit in &what_if.outcomes()[0].hit {
        if log.bad.contains(&hit.key) {
            harm.bad_hit += 1;
            harm.bad_denied += hit.denied;
        } else {
            harm.others_hit += 1;
            harm.others_denied += hit.denied;
        }
    }
    harm
}

fn propose(log: &Planted) -> Suggestion {
    let file = in_file(log);
    let input = Input::File(file.path().to_owned());
    suggest(&[input], &LogOptions::default(), &SuggestOptions::default(), |_| {}).unwrap()
}

#[test]
#[ignore = "prints what is proposed, for whoever works on the method"]
fn show() {
    let seeds: Vec<u64> = std::env::var("SEEDS")
        .unwrap_or("1,2,3".to_owned())
        .split(',')
        .map(|seed| seed.parse().unwrap())
        .collect();
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, plant) in SCENARIOS.iter().filter(|(name, _)| name.contains(&only)) {
        for seed in &seeds {
            let log = Planted::new(*seed, *plant);
            let other = Planted::new(seed + 1_000_000, *plant);
            let found = propose(&log);
            let totals: HashMap<&str, u64> = log.clients().fold(HashMap::new(), |mut all, (name, _)| {
                *all.entry(name).or_default() += 1;
                all
            });
            println!(
                "{name} #{seed}: {} requests, {} keys, {:?}",
                found.requests,
                totals.len(),
                found.finding
            );
            for proposal in &found.proposals {
                let (same, next) = (harm(&log, proposal), harm(&other, proposal));
                println!(
                    "    {:10} {:8} burst {:3}: {:5.2} %, {:2} keys, {} signed in, mildest {:4}; bad {}/{} {:3.0}%, others {}: {}; next day bad {}/{} {:3.0}%, others {}: {}",
                    format!("{:?}", proposal.purpose),
                    proposal.rate.to_string(),
                    proposal.burst,
                    100.0 * proposal.evidence.denied_share,
                    proposal.evidence.keys_hit,
                    proposal.evidence.keys_hit_signed_in,
                    proposal.mildest_hit_needs.unwrap_or(0),
                    same.bad_hit,
                    log.bad.len(),
                    100.0 * same.bad_denied as f64 / same.bad_requests.max(1) as f64,
                    same.others_hit,
                    same.others_denied,
                    next.bad_hit,
                    other.bad.len(),
                    100.0 * next.bad_denied as f64 / next.bad_requests.max(1) as f64,
                    next.others_hit,
                    next.others_denied,
                );
            }
        }
    }
}
