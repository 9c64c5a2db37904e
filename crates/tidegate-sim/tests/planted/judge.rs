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

static SCENARIOS: [(&str, Plant); 20] = [
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
    // These four were written when the method was done.
    ("customers whose load falls by a power law", traffic::power_law),
    ("such customers, and scrapers", traffic::power_law_and_scrapers),
    ("one who guesses passwords, 20 a minute", traffic::guesser),
    ("a scraper that changes its address every ten requests", traffic::rotating_scraper),
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

/// Seeds that the method was never shown while it was made; another day of a seed is its log with a million more.
const SEEDS: [u64; 3] = [101, 102, 103];
const ANOTHER_DAY: u64 = 1_000_000;

/// What came of one log.
#[derive(Debug)]
struct Judged {
    proposed: String,
    verdict: String,
    bad_denied: Option<f64>,
    others: Harm,
    another_day: Harm,
}

fn judge(plant: Plant, seed: u64) -> Judged {
    let log = Planted::new(seed, plant);
    let found = propose(&log);
    let Some(proposal) = found.recommended() else {
        let verdict = if log.bad.is_empty() { "right" } else { "missed" };
        return Judged {
            proposed: "none".to_owned(),
            verdict: verdict.to_owned(),
            bad_denied: None,
            others: Harm::default(),
            another_day: Harm::default(),
        };
    };
    let harm_today = harm(&log, proposal);
    let verdict = match (log.bad.len() as u64, harm_today.bad_hit, harm_today.others_hit) {
        (_, _, others @ 1..) => format!("wrong: hits {others}"),
        (bad, hit, 0) if hit < bad => format!("found {hit} of {bad}"),
        _ => "right".to_owned(),
    };
    Judged {
        proposed: format!("{} burst {}", proposal.rate, proposal.burst),
        verdict,
        bad_denied: (harm_today.bad_requests > 0)
            .then(|| harm_today.bad_denied as f64 / harm_today.bad_requests as f64),
        others: harm_today,
        another_day: harm(&Planted::new(seed + ANOTHER_DAY, plant), proposal),
    }
}

/// Joins what came of each seed, once if it was the same for all.
fn joined(each: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = each.collect();
    if all.iter().all(|one| *one == all[0]) {
        all.truncate(1);
    }
    all.join("; ")
}

fn row(name: &str, plant: Plant) -> String {
    let judged: Vec<Judged> = SEEDS.iter().map(|seed| judge(plant, *seed)).collect();
    let each = |of: &dyn Fn(&Judged) -> String| joined(judged.iter().map(of));
    let others = |harm: &Harm| match harm.others_hit {
        0 => "0".to_owned(),
        keys => format!("{keys} ({})", harm.others_denied),
    };
    let denied = |judged: &Judged| {
        judged.bad_denied.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
    };
    format!(
        "| {name} | {} | {} | {} | {} | {} |\n",
        each(&|judged| judged.proposed.clone()),
        each(&denied),
        each(&|judged| others(&judged.others)),
        each(&|judged| others(&judged.another_day)),
        each(&|judged| judged.verdict.clone()),
    )
}

const BEGIN: &str = "<!-- made by the test `planted`: UPDATE_DOCS=1 writes it anew -->\n";
const END: &str = "<!-- end -->";

/// The table in the manual is what the method does: on seeds it was not made with, failures included.
#[test]
fn the_table_in_the_manual_is_true() {
    let mut table = "| planted | recommended | planted requests denied | others hit (requests) | on another day | verdict |\n\
        |---|---|---|---|---|---|\n"
        .to_owned();
    let rows: Vec<String> = std::thread::scope(|scope| {
        let halves = SCENARIOS.chunks(SCENARIOS.len() / 2);
        let rows = |half: &'static [(&str, Plant)]| {
            half.iter().map(|(name, plant)| row(name, *plant)).collect::<Vec<_>>()
        };
        let running: Vec<_> = halves.map(|half| scope.spawn(move || rows(half))).collect();
        running.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    table.extend(rows);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/suggest.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (shown, after) = rest.split_once(END).unwrap();
    if shown == table {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    panic!("docs/suggest.md shows another table; with UPDATE_DOCS=1 this test writes it:\n{table}");
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
