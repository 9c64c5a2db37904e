use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::time::Duration;

use tidegate::config::{Config, Format};

use super::*;
use crate::log::Log;
use crate::peaks::Distinct;
use crate::replay::Doubt;
use crate::units::percent;
use crate::what_if::{Candidate, WhatIf, WhatIfOptions};

/// Suggests from requests given as (second, client, user), in any order.
fn with(requests: &[(u64, u64, &str)], options: &SuggestOptions) -> Result<Suggestion, SuggestError> {
    let file = file(requests);
    suggest(&[Input::File(file.path().to_owned())], &LogOptions::default(), options, |_| {})
}

fn file(requests: &[(u64, u64, &str)]) -> tempfile::NamedTempFile {
    let mut requests = requests.to_vec();
    requests.sort_unstable();
    let mut text = "ts,client,user,status\n".to_owned();
    for (second, client, user) in requests {
        writeln!(text, "{},{client},{user},200", 1_772_442_000 + second).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Clients with five requests every ten minutes for an hour, at two or three a second.
fn crowd(clients: std::ops::Range<u64>) -> Vec<(u64, u64, &'static str)> {
    let visit = |client: u64, round: u64| {
        (0..5).map(move |n| (round * 600 + client * 7 % 500 + n / 2 * (1 + client % 4), client, "-"))
    };
    clients.flat_map(|client| (0..6).flat_map(move |round| visit(client, round))).collect()
}

fn scraper(client: u64) -> Vec<(u64, u64, &'static str)> {
    (0..600).map(|n| (900 + n / 2, client, "-")).collect()
}

fn options() -> SuggestOptions {
    SuggestOptions::default()
}

#[test]
fn the_one_who_stands_out_is_cut_and_nobody_else() {
    let found = with(&[crowd(0..50), scraper(99)].concat(), &options()).unwrap();
    assert_eq!((found.finding, found.requests, found.keys), (Finding::Gap, 2_100, Distinct::Exactly(51)));
    let gap = found.recommended().unwrap();
    assert_eq!((gap.purpose, gap.evidence.keys_hit, gap.hit[0].key.as_str()), (Purpose::Gap, 1, "99"));
    assert!(gap.evidence.denied > 500 && gap.doubled.denied > 450, "{gap:?}");
    assert!(gap.room >= 2.0 && gap.hit_on_another_half == Some(0), "the scraper is far above: {gap:?}");
    assert_eq!(found.peaks.first(), Some(&KeysPeak { keys_share: 0.5, peak: 5 }));
    let text = format!("version: 1\npolicies:\n{}", found.yaml(gap, "per-ip").unwrap());
    let (config, _) = Config::parse(&text, "suggested", Format::Yaml).unwrap();
    let label = format!("gcra {} burst {}", gap.rate, gap.burst);
    assert_eq!(config.policies.policies()[0].limits[0].terms.label, label);
}

/// Proposals are minimal: one less of the burst, or of the count, hits exactly the key that the proposal names.
#[test]
fn one_less_would_hit_whom_it_names() {
    let requests = [crowd(0..50), scraper(99), (0..40).map(|n| (n * 80, 60, "ann")).collect()].concat();
    let found = with(&requests, &options()).unwrap();
    let file = file(&requests);
    for proposal in &found.proposals {
        let limit =
            |count: u64, burst| Candidate { rate: Rate::new(count.max(1), found.per).unwrap(), burst };
        let (count, burst) = (proposal.least.rate.count, proposal.least.burst);
        let candidates = [limit(count, burst), limit(count, (burst - 1).max(1)), limit(count - 1, burst)];
        let named = WhatIfOptions { named: 1_000, ..WhatIfOptions::default() };
        let mut what_if = WhatIf::new(&policy(&found.by).unwrap(), &candidates, named).unwrap();
        let mut log = Log::open(vec![Input::File(file.path().to_owned())], LogOptions::default()).unwrap();
        log.read(|record| {
            what_if.feed(record);
            ControlFlow::Continue(())
        })
        .unwrap();
        let outcomes = what_if.outcomes();
        assert_eq!(
            outcomes[0].keys_hit, proposal.evidence.keys_hit,
            "room changes nothing for them: {proposal:?}"
        );
        for (spared, less) in
            [(&proposal.least.burst_for, &outcomes[1]), (&proposal.least.rate_for, &outcomes[2])]
        {
            let Some(spared) = spared else { continue };
            let hit = |of: &[crate::what_if::KeyHit]| of.iter().any(|hit| hit.key == spared.key);
            assert!(hit(&less.hit) && !hit(&outcomes[0].hit), "{proposal:?}");
        }
    }
}

#[test]
fn who_signed_in_is_spared_and_the_stricter_limit_says_what_it_costs() {
    let office = (0..900).map(|n| (n * 4, 77, "ann"));
    let fast: Vec<_> = (0..1_200).map(|n| (900 + n / 4, 99, "-")).collect();
    let found = with(&[crowd(0..50), office.clone().collect(), fast].concat(), &options()).unwrap();
    assert_eq!(found.finding, Finding::Gap);
    let gap = &found.proposals[0];
    assert_eq!((gap.evidence.keys_hit, gap.evidence.keys_hit_signed_in), (1, 0), "{gap:#?}");
    let stricter = found.proposals.iter().find(|proposal| proposal.purpose == Purpose::Stricter).unwrap();
    assert_eq!((stricter.evidence.keys_hit, stricter.evidence.keys_hit_signed_in), (2, 1), "{stricter:#?}");
    // Without the scraper there is no key left to cut.
    let found = with(&[crowd(0..50), office.collect()].concat(), &options()).unwrap();
    assert_eq!((found.finding, found.recommended()), (Finding::SignedIn, None));
    assert_eq!(
        found.proposals.first().map(|first| (first.purpose, first.evidence.denied, first.room)),
        Some((Purpose::Ceiling, 0, 2.0))
    );
}

/// If all keys sign in, a key that asks forty times as much as any other must not be spared for having signed in.
#[test]
fn where_everybody_signs_in_nobody_is_spared_for_it() {
    let user = |client: u64| -> &'static str { Box::leak(format!("u{client}").into_boxed_str()) };
    let customers = crowd(0..50).into_iter().map(|(second, client, _)| (second, client, user(client)));
    let runaway = (0..2_400).map(|n| (900 + n / 20, 99, "u99"));
    let requests: Vec<_> = customers.chain(runaway).collect();
    let by_user = SuggestOptions { by: vec!["user.id".to_owned()], ..options() };
    let found = with(&requests, &by_user).unwrap();
    assert_eq!(found.finding, Finding::Gap, "{found:#?}");
    let gap = &found.recommended().unwrap();
    assert_eq!(
        (gap.evidence.keys_hit, gap.evidence.keys_hit_signed_in, gap.hit[0].key.as_str()),
        (1, 1, "u99")
    );
    assert!(found.cautions.contains(&Caution::CutSignedIn { key: "u99".to_owned(), keys: 1 }), "{found:#?}");
    // An address may be an office, which cannot be seen in a log without paths and agents.
    assert_eq!(with(&requests, &options()).unwrap().finding, Finding::SignedIn);
}

/// Fifty readers of a few pages each, and a client with the given requests: (second, path, agent).
fn beside_readers(somebody: impl Iterator<Item = (u64, String, String)>) -> Suggestion {
    let page = |reader: u64, n: u64| {
        let (at, path) = (reader * 60 + n * (9 + reader % 20), (reader * 31 + n * 7) % 300);
        (at, reader, format!("/item/{path}"), format!("browser {}", reader % 9))
    };
    let mut requests: Vec<_> = (0..50).flat_map(|reader| (0..6).map(move |n| page(reader, n))).collect();
    requests.extend(somebody.map(|(at, path, agent)| (at, 99, path, agent)));
    requests.sort_unstable();
    let mut text = "ts,client,path,user_agent\n".to_owned();
    for (second, client, path, agent) in requests {
        writeln!(text, "{},{client},{path},{agent}", 1_772_442_000 + second).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    suggest(&[Input::File(file.path().to_owned())], &LogOptions::default(), &options(), |_| {}).unwrap()
}

/// If a cut key may be a partner's job or the people of an office, a caution must say so.
#[test]
fn what_may_be_no_abuser_and_is_cut_has_a_note() {
    let key = || "99".to_owned();
    let job = |pause: u64| {
        (0..3_600).map(move |n| (n / 300 * pause + n % 300 / 10, format!("/stock/{n}"), "sync/1".to_owned()))
    };
    let spared = beside_readers(job(900));
    assert_eq!(
        spared.finding,
        Finding::Ordinary,
        "twenty a minute on average, all of them within half a minute: {spared:#?}"
    );
    let found = beside_readers(job(100));
    assert_eq!(found.finding, Finding::Gap, "{found:#?}");
    let note = Caution::CutPrograms { key: key(), keys: 1 };
    assert!(found.cautions.contains(&note), "{found:#?}");
    assert_eq!(
        note.to_string(),
        "99, which the recommended limit cuts, looks like a job on a timer or a program: it may belong to a partner or to you; find out before \
         you enforce the limit, or put it on an `allow` list"
    );
    let shared = |agents: u64| {
        beside_readers(
            (0..1_200).map(move |n| (900 + n / 3, format!("/item/{n}"), format!("agent {}", n % agents))),
        )
    };
    let found = shared(4);
    assert_eq!(found.finding, Finding::Gap, "{found:#?}");
    assert!(found.cautions.contains(&Caution::CutSeveral { key: key(), keys: 1 }), "{found:#?}");
    let doubts =
        |caution: &Caution| matches!(caution, Caution::CutPrograms { .. } | Caution::CutSeveral { .. });
    let crawler = shared(1);
    assert!(!crawler.cautions.iter().any(doubts), "a crawler with one agent is one");
    let named = Caution::CutCrawlers { key: key(), keys: 1 };
    assert!(crawler.cautions.contains(&named), "{crawler:#?}");
    assert_eq!(
        named.to_string(),
        "99, which the recommended limit cuts, reads page after page under a name of its own, as a scraper does, but also a backup, a mirror or a \
         search engine: the log does not show which, so if you know it, put it on an `allow` list"
    );
}

/// If several keys that signed in stand out, the worst is also offered alone.
#[test]
fn of_those_who_signed_in_the_worst_is_offered_alone() {
    let steady = |client: u64, each: u64| (0..3_000 / each).map(move |n| (n * each, client, "ann"));
    let wild = (0..3_000).map(|n| (900 + n / 10, 99, "bob"));
    let requests = crowd(0..50).into_iter().chain(steady(70, 3)).chain(steady(71, 3)).chain(wild);
    let found = with(&requests.collect::<Vec<_>>(), &options()).unwrap();
    assert_eq!((found.finding, found.recommended()), (Finding::SignedIn, None));
    let hit = found.proposals.iter().map(|proposal| (proposal.purpose, proposal.evidence.keys_hit));
    let hit: Vec<_> = hit.collect();
    assert_eq!((hit[0], hit[2]), ((Purpose::Ceiling, 0), (Purpose::Lenient, 1)), "{found:#?}");
    assert_eq!(found.proposals[2].hit[0].key, "99");
}

#[test]
fn a_job_on_a_timer_is_no_abuser() {
    // People come back every hundred seconds for twenty minutes; the job asks 24 times at once, and again half an
    // hour later.
    let visits = |client: u64| (0..60).map(move |n| (client * 100 + n / 5 * 100 + n % 5, client, "-"));
    let people: Vec<_> = (0..20).flat_map(visits).collect();
    let job = (0..48).map(|n| (n / 24 * 1_800, 77, "-")).collect();
    let found = with(&[people, job].concat(), &options()).unwrap();
    assert_eq!((found.finding, found.recommended()), (Finding::Bursts, None), "{found:#?}");
}

#[test]
fn what_a_log_cannot_answer_is_said() {
    let only = |requests: &[(u64, u64, &'static str)]| with(requests, &options()).unwrap();
    let one = only(&scraper(1));
    assert_eq!((one.finding, one.proposals.len()), (Finding::OneKey, 1));
    assert_eq!((one.proposals[0].purpose, one.proposals[0].evidence.denied), (Purpose::Ceiling, 0));
    assert_eq!(only(&crowd(0..8)).finding, Finding::FewKeys);
    let smooth: Vec<_> =
        (1..60).flat_map(|client| (0..600 / client).map(move |n| (n * 6 * client, client, "-"))).collect();
    let found = only(&smooth);
    assert_eq!((found.finding, found.recommended()), (Finding::Smooth, None), "{found:#?}");
    let short: Vec<_> = crowd(0..50).into_iter().filter(|(second, ..)| *second < 40).collect();
    let found = only(&short);
    assert_eq!((found.finding, found.proposals.len()), (Finding::TooShort, 0));
    assert!(found.cautions.contains(&Caution::NoUsers));
}

#[test]
fn a_share_to_keep_is_kept_unless_it_is_every_key() {
    let keep = |keep| SuggestOptions { keep: Some(keep), ..options() };
    let requests = [crowd(0..99), scraper(99)].concat();
    let found = with(&requests, &keep(0.95)).unwrap();
    let kept = found.recommended().unwrap();
    assert!(kept.purpose == Purpose::Kept && (1..=5).contains(&kept.evidence.keys_hit), "{kept:#?}");
    let found = with(&requests, &keep(0.999)).unwrap();
    assert_eq!(found.recommended().unwrap().purpose, Purpose::Gap);
    assert_eq!(
        found.cautions[0].to_string(),
        "99.9 % of 100 keys is every key, including the worst; keep 99.0 % or less to leave one out"
    );
    assert!(matches!(with(&requests, &keep(0.0)), Err(SuggestError::Keep { .. })));
}

/// Most keys are light and may be forgotten: the scraper is still found, and the limit still spares all others.
#[test]
fn with_more_keys_than_there_is_room_for_the_scraper_is_found() {
    let found =
        with(&[crowd(0..400), scraper(999)].concat(), &SuggestOptions { keys: 100, ..options() }).unwrap();
    assert_eq!(found.finding, Finding::Gap, "{found:#?}");
    assert!(matches!(found.keys, Distinct::About(about) if about.abs_diff(401) < 20));
    assert_eq!(found.proposals[0].hit[0].key, "999");
    assert_eq!(found.proposals[0].evidence.keys_hit, 1, "nobody who was forgotten is hit");
    assert!(
        found.cautions.iter().any(|caution| matches!(caution, Caution::Forgotten { .. })),
        "{:?}",
        found.cautions
    );
}

/// Invalid keys must be an error; the policy made from them would panic.
#[test]
fn a_key_that_cannot_be_is_a_mistake_not_a_panic() {
    let by = |names: &[&str]| {
        let by = names.iter().map(|name| (*name).to_owned()).collect();
        with(&crowd(0..20), &SuggestOptions { by, ..options() })
    };
    assert!(matches!(by(&["client.ip", "client.ip"]), Err(SuggestError::Repeated { .. })));
    assert!(matches!(by(&["client.ip", ""]), Err(SuggestError::Unnamed)));
    assert!(matches!(by(&[]), Err(SuggestError::Unnamed)));
    let missing = by(&["user.idd"]).unwrap_err().to_string();
    assert_eq!(missing, "none of 600 requests has user.idd; the log has client.ip, response.status");
    let odd = with(&crowd(0..20), &SuggestOptions { per: Duration::ZERO, ..options() });
    assert!(matches!(odd, Err(SuggestError::Quota(_))));
    assert!(matches!(
        suggest(&[Input::Stdin], &LogOptions::default(), &options(), |_| {}),
        Err(SuggestError::OnlyOnce)
    ));
}

/// A log whose times go back by hours would cause false denials.
#[test]
fn a_log_that_cannot_be_put_in_order_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = |n: u64| format!("{},{}\n", 1_772_442_000 + (n % 2) * 7_200 + n, n % 50);
    let text: String = (0..500).map(line).collect();
    std::fs::write(file.path(), format!("ts,client\n{text}")).unwrap();
    let told = suggest(&[Input::File(file.path().to_owned())], &LogOptions::default(), &options(), |_| {});
    let Err(SuggestError::Doubtful { doubts, .. }) = told else { panic!("{told:?}") };
    assert!(matches!(doubts[..], [Doubt::Late { .. }]));
}

#[test]
fn each_reading_is_told_of() {
    let file = file(&[crowd(0..50), scraper(99)].concat());
    let (mut begun, mut ended, mut requests) = (Vec::new(), 0, 0);
    let watch = |step| match step {
        Step::Begins { reading, purpose, watch } => {
            assert!(watch.progress().total.is_some());
            begun.push((reading, purpose));
        }
        Step::Request => requests += 1,
        Step::Ends => ended += 1,
    };
    suggest(&[Input::File(file.path().to_owned())], &LogOptions::default(), &options(), watch).unwrap();
    assert_eq!((begun[0], begun.last().unwrap().1), ((1, "measuring"), "replaying"));
    assert_eq!((begun.len(), requests), (ended, 2_100 * ended));
}

#[test]
fn numbers() {
    assert_eq!([0.0, 0.00001, 0.0032, 0.325].map(percent), ["0 %", "< 0.01 %", "0.32 %", "32.5 %"]);
}
