//! Judges proposals on the log they were made from, and on another day of the same traffic.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_sim::suggest::{Caution, Fate, Finding, Suggestion};

use crate::planted::harm::{Harm, harm, propose, spoken_of};
use crate::planted::scenarios::SCENARIOS;
use crate::planted::traffic::{ANOTHER_DAY, Plant, Planted};

/// Seeds that were never used while the method was developed.
const SEEDS: [u64; 3] = [501, 502, 503];

/// The result for one log.
#[derive(Debug)]
struct Judged {
    proposed: String,
    /// For the policies for traffic that no limit by address catches: the share of the requests of clients to cut
    /// that they match, and the number of others' requests.
    apart: Option<(f64, u64)>,
    verdict: String,
    bad_denied: Option<f64>,
    others: Harm,
    another_day: Harm,
}

fn judge(plant: Plant, seed: u64) -> Judged {
    let log = Planted::new(seed, plant);
    let found = propose(&log);
    let all = log.requests.iter().filter(|request| log.is_bad(request)).count().max(1) as f64;
    let apart = (!found.narrower.is_empty()).then(|| spoken_of(&log, &found.narrower));
    let Some(proposal) = found.recommended() else {
        return Judged {
            proposed: "none".to_owned(),
            apart: apart.map(|(bad, others)| (bad as f64 / all, others)),
            verdict: without_a_limit(&log, &found, apart),
            bad_denied: None,
            others: Harm::default(),
            another_day: Harm::default(),
        };
    };
    let harm_today = harm(&log, proposal);
    let verdict = match (log.bad.len() as u64, harm_today.bad_hit, harm_today.others_hit) {
        (_, _, others @ 1..) if has_note(&found) => format!("wrong: hits {others}, with a note"),
        (_, _, others @ 1..) => format!("wrong: hits {others}"),
        (bad, hit, 0) if hit < bad => format!("found {hit} of {bad}"),
        _ => "right".to_owned(),
    };
    Judged {
        proposed: format!("{} burst {}", proposal.rate, proposal.burst),
        apart: apart.map(|(bad, others)| (bad as f64 / all, others)),
        verdict,
        bad_denied: (harm_today.bad_requests > 0)
            .then(|| harm_today.bad_denied as f64 / harm_today.bad_requests as f64),
        others: harm_today,
        another_day: harm(&Planted::new(seed + ANOTHER_DAY, plant), proposal),
    }
}

/// Says whether a caution doubts that the keys it cuts are culprits.
fn has_note(found: &Suggestion) -> bool {
    let doubts = |caution: &Caution| {
        matches!(
            caution,
            Caution::CutPrograms { .. }
                | Caution::CutSeveral { .. }
                | Caution::CutSignedIn { .. }
                | Caution::CutCrawlers { .. }
        )
    };
    found.cautions.iter().any(doubts)
}

/// Says whether a caution reports a crawler that cannot be distinguished from people.
fn borrows(found: &Suggestion) -> bool {
    found.cautions.iter().any(|caution| matches!(caution, Caution::BorrowedAgent { .. }))
}

/// Judges the report if no limit is recommended.
fn without_a_limit(log: &Planted, found: &Suggestion, apart: Option<(u64, u64)>) -> String {
    let is_bad = |key: &str| log.has_bad(key);
    let accused = found.stand_out.iter().filter(|told| told.fate == Fate::Missed && !is_bad(&told.key));
    let is_named = found.stand_out.iter().any(|told| is_bad(&told.key));
    let cannot_tell = matches!(found.finding, Finding::Unclear | Finding::Shared);
    let verdict = match (log.is_innocent(), apart) {
        (_, Some((_, 1..))) => "wrong: the policies speak of others",
        _ if accused.count() > 0 => "wrong: accuses others",
        (true, None) => "right",
        (true, Some(_)) => "wrong: tells apart nobody",
        (false, Some(_)) => "right: told apart",
        (false, None) if is_named && cannot_tell => "cannot tell, and says so",
        (false, None) if is_named => "missed: named, not cut",
        (false, None) if borrows(found) => "cannot tell, and says so",
        (false, None) => "missed",
    };
    verdict.to_owned()
}

/// Joins the results of all seeds; a single one if all are equal.
fn joined(each: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = each.collect();
    if all.iter().all(|one| *one == all[0]) {
        all.truncate(1);
    }
    all.join(JOIN)
}

/// The separator between the results of different seeds in a cell.
const JOIN: &str = "; ";

/// The number of cells after the name of the plant.
const CELLS: usize = 6;

fn cells(judged: &Judged) -> [String; CELLS] {
    let others = |harm: &Harm| match harm.others_hit {
        0 => "0".to_owned(),
        keys => format!("{keys} ({})", harm.others_denied),
    };
    let apart = match judged.apart {
        None => "–".to_owned(),
        Some((share, 0)) => format!("{:.0} %", share * 100.0),
        Some((share, others)) => format!("{:.0} % and {others} of others", share * 100.0),
    };
    [
        judged.proposed.clone(),
        judged.bad_denied.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        apart,
        others(&judged.others),
        others(&judged.another_day),
        judged.verdict.clone(),
    ]
}

/// Judges the logs of some scenarios and seeds, on all cores. Returns the cells of each in the same order.
fn judged(asked: &[(usize, u64)]) -> Vec<[String; CELLS]> {
    let next = AtomicUsize::new(0);
    let work = || {
        let take = || asked.get(next.fetch_add(1, Ordering::Relaxed));
        let judge =
            |(place, seed): &(usize, u64)| ((*place, *seed), cells(&judge(SCENARIOS[*place].1, *seed)));
        std::iter::from_fn(take).map(judge).collect::<Vec<_>>()
    };
    let found: HashMap<(usize, u64), [String; CELLS]> = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    asked.iter().map(|log| found[log].clone()).collect()
}

/// Returns the table, over all seeds.
fn whole_table() -> String {
    let places = 0..SCENARIOS.len();
    let asked: Vec<_> = places.flat_map(|place| SEEDS.map(|seed| (place, seed))).collect();
    let all = judged(&asked);
    let rows = all.chunks(SEEDS.len()).zip(SCENARIOS).map(|(seeds, (name, _))| {
        let cell = |at: usize| joined(seeds.iter().map(|cells| cells[at].clone()));
        format!("{name}\t{}\n", (0..CELLS).map(cell).collect::<Vec<_>>().join("\t"))
    });
    std::iter::once(HEAD.to_owned()).chain(rows).collect()
}

/// Returns the rows of the table that differ from the results, for one seed of each log; the seeds alternate.
fn untrue_rows(table: &str) -> Vec<String> {
    let shown: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split('\t').collect()).collect();
    let asked: Vec<_> = (0..SCENARIOS.len()).map(|place| (place, SEEDS[place % SEEDS.len()])).collect();
    let told = asked.iter().zip(judged(&asked)).filter_map(|((place, seed), cells)| {
        let row = &shown[*place];
        let of_seed = |cell: &&str| {
            let results: Vec<&str> = cell.split(JOIN).collect();
            (*results.get(place % SEEDS.len()).unwrap_or(&results[0])).to_owned()
        };
        let shown: Vec<String> = row[1..].iter().map(of_seed).collect();
        (shown != cells).then(|| format!("{}, seed {seed}: shown {shown:?}, found {cells:?}", row[0]))
    });
    told.collect()
}

const HEAD: &str = "planted\trecommended\tplanted requests denied\tby a policy of their own\tothers hit (requests)\t\
    on another day\tverdict\n";

/// The table to which the manual links must match the results of the method, failures included, on seeds not used in its
/// development. One seed of each row is tried; all three with `TIDEGATE_PLANTED=long`, which takes three times as
/// long, and when the table is rewritten.
#[test]
fn the_table_in_the_manual_is_true() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/results/planted.tsv");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, shown) = page.split_at(page.find(HEAD).unwrap());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{}", whole_table())).unwrap();
        return;
    }
    if std::env::var("TIDEGATE_PLANTED").is_ok_and(|form| form == "long") {
        let table = whole_table();
        assert!(
            shown == table,
            "lab/results/planted.tsv shows another table; with UPDATE_DOCS=1 this test writes it:\n{table}"
        );
        return;
    }
    let names: Vec<&str> = shown.lines().skip(1).filter_map(|row| row.split('\t').next()).collect();
    let planted: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, planted, "lab/results/planted.tsv has other rows; UPDATE_DOCS=1 writes them");
    let untrue = untrue_rows(shown);
    assert!(
        untrue.is_empty(),
        "lab/results/planted.tsv shows what is not so; UPDATE_DOCS=1 writes it anew:\n{}",
        untrue.join("\n")
    );
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
            println!("{:?}", judge(*plant, *seed).verdict);
            println!("{name} #{seed}: {} requests, {} keys, {:?}", found.requests, found.keys, found.finding);
            for told in &found.stand_out {
                println!(
                    "    {:?} {} {:?} {} peak {} {:?}",
                    told.fate, told.key, told.looks, told.requests, told.peak, told.signs
                );
            }
            for one in &found.narrower {
                println!("    {one:?} {:?}", spoken_of(&log, &found.narrower));
            }
            for proposal in &found.proposals {
                let (same, next) = (harm(&log, proposal), harm(&other, proposal));
                println!(
                    "    {:10} {:8} burst {:3}: {:5.2} %, {:2} keys, {} signed in, room {:4}; bad {}/{} {:3.0}%, others {}: {}; next day bad {}/{} {:3.0}%, others {}: {}",
                    format!("{:?}", proposal.purpose),
                    proposal.rate.to_string(),
                    proposal.burst,
                    100.0 * proposal.evidence.denied_share,
                    proposal.evidence.keys_hit,
                    proposal.evidence.keys_hit_signed_in,
                    proposal.room,
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
