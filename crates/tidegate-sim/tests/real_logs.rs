//! Real logs, with numbers known from their publishers. They are in `shared/data` beside the project; if that folder
//! is missing, each test prints a message and passes.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::config::{Config, Format};
use tidegate::policy::PolicySet;
use tidegate_sim::log::{Input, Log, LogOptions, Order, Record, Tally, text};
use tidegate_sim::replay::{Outcome, Replay, ReplayOptions};
use tidegate_sim::suggest::{Finding, Purpose, SuggestOptions, suggest};

fn file(name: &str) -> Option<Input> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if path.is_file() {
        return Some(Input::File(path));
    }
    println!("skipped: {} is not there", path.display());
    None
}

fn read(input: Input, order: Order, mut each: impl FnMut(&Record<'_>)) -> Tally {
    let mut log = Log::open(vec![input], LogOptions { order, ..LogOptions::default() }).unwrap();
    log.read(|record| {
        each(record);
        ControlFlow::Continue(())
    })
    .unwrap();
    log.tally().clone()
}

fn day() -> Order {
    Order::Sort { window: Duration::from_secs(86_400), bytes: 64 << 20 }
}

fn policies(text: &str) -> Arc<PolicySet> {
    let text = format!("version: 1\npolicies:\n{text}");
    Config::parse(&text, "test.yaml", Format::Yaml).unwrap().0.policies
}

fn replay(input: Input, order: Order, set: &str) -> (Outcome, Tally) {
    let mut replay =
        Replay::new(vec![("policies".to_owned(), policies(set))], ReplayOptions::default()).unwrap();
    let tally = read(input, order, |record| replay.feed(record));
    (replay.outcomes().remove(0), tally)
}

const PER_IP: &str =
    "  - { name: per-ip, by: [client.ip], limit: { algorithm: gcra, rate: 10/s, burst: 20 } }\n";

#[test]
fn apache_ten_thousand_lines_and_time_goes_back_at_half_of_them() {
    let Some(input) = file("apache-combined-10k.log.zst") else { return };
    let mut last = None;
    let tally = read(input.clone(), Order::default(), |record| {
        assert!(last <= Some(record.time), "time goes back");
        last = Some(record.time);
        assert!(!record.client.is_empty() && !record.path.is_empty());
    });
    assert_eq!((tally.records, tally.malformed), (10_000, 0));
    // A single step back leaves all later lines out of order until the time has caught up.
    assert_eq!((tally.order.back, tally.order.ordered, tally.order.clamped), (4_915, 9_448, 0));
    assert_eq!(tally.order.largest_step, Duration::from_secs(59));
    let (outcome, _) = replay(input, Order::default(), PER_IP);
    assert_eq!(outcome.policies[0].keys.to_string(), "1,753");
}

#[test]
fn nasa_one_day_as_a_table() {
    let Some(input) = file("nasa-http-1995-08-01.tsv.zst") else { return };
    let (outcome, tally) = replay(input, Order::default(), PER_IP);
    assert_eq!((tally.records, tally.malformed, tally.order.back), (30_969, 0, 0));
    assert_eq!(outcome.policies[0].keys.to_string(), "2,365");
}

/// The publisher gave every line a random day, so each day of the log consists of many days one after another. Five
/// minutes do not suffice to sort that, a day does; denials from clamping would not be caused by the traffic.
#[test]
fn nasa_one_month_under_other_dates() {
    let Some(input) = file("nasa-http-1995-jul-redated-2017.log.zst") else { return };
    let (short, tally) = replay(input.clone(), Order::default(), PER_IP);
    assert_eq!((tally.records, tally.malformed, tally.order.back), (1_894_125, 0, 10_137));
    assert_eq!(tally.order.largest_step.as_secs(), 86_395);
    assert_eq!(tally.order.window_advised().as_deref(), Some("24h"));
    // A second reading takes half a minute without optimisation.
    if std::env::var_os("TIDEGATE_REAL_LOGS").is_none_or(|form| form != "long") {
        return;
    }
    let (whole, tally) = replay(input, day(), PER_IP);
    assert_eq!((tally.order.clamped, tally.order.early), (0, 0));
    assert_eq!(whole.policies[0].keys.to_string(), "52,205");
    assert!(whole.denied * 100 < short.denied, "{} {}", whole.denied, short.denied);
}

#[test]
fn azure_calls_cost_their_tokens() {
    for (name, calls, tokens) in [("conv", 19_366, 26_450_535), ("code", 8_819, 18_305_870)] {
        let Some(input) = file(&format!("azure-llm-2023-{name}.csv.zst")) else { return };
        let mut sum = 0u64;
        let tally = read(input.clone(), Order::default(), |record| {
            let number = |name| text(record.extra(name).unwrap()).parse::<u64>().unwrap();
            sum += number("ContextTokens") + number("GeneratedTokens");
        });
        assert_eq!((tally.records, tally.malformed, sum), (calls, 0, tokens));
        let set = "  - { name: tokens, cost: 'int(ContextTokens) + int(GeneratedTokens)',\n      \
            limit: { algorithm: gcra, rate: 400k/min, burst: 400k } }\n";
        let (outcome, _) = replay(input, Order::default(), set);
        let worst = outcome.policies[0].worst.as_ref().unwrap();
        assert_eq!((outcome.requests, worst.total), (calls, tokens));
    }
}

/// In neither log do any clients stand out: their needs fall smoothly, and any limit would hit some of them at
/// random. So the first on offer hits nobody.
#[test]
fn no_limit_is_recommended_where_what_clients_ask_falls_smoothly() {
    for name in ["apache-combined-10k.log.zst", "nasa-http-1995-08-01.tsv.zst"] {
        let Some(input) = file(name) else { return };
        let told = suggest(&[input], &LogOptions::default(), &SuggestOptions::default(), |_| {}).unwrap();
        assert_eq!((told.finding, told.recommended()), (Finding::Smooth, None), "{name}: {told:#?}");
        let [nobody, few] = &told.proposals[..] else { panic!("{name}: {told:#?}") };
        assert_eq!((nobody.purpose, few.purpose), (Purpose::Ceiling, Purpose::Hundredth));
        assert!(few.evidence.keys_hit > 0 && few.evidence.keys_hit_share <= 0.01, "{name}: {few:#?}");
        assert_eq!((nobody.evidence.denied, nobody.evidence.keys_hit), (0, 0), "{name}");
    }
}
