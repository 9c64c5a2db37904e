//! The laws of `Algorithm::settle`, for every kind of limit: a settlement never leaves a limit fuller than if only what
//! was used had been charged, loses nothing that time has not given back already, and breaks no promise.
//!
//! The checks know limits only from outside: `fresh`, `decide`, `settle`, `standing`, `full_at`, `carry`. Two drivers
//! make the histories: [`exhaustive`] makes all short ones in a small world, [`random`] makes long ones of any limit.
//! Which laws apply to which kind, and why, is documented at [`subjects::Kind`] and in [`laws`].
//!
//! `cargo test` runs the short form. The long form goes to six operations and a million random steps for each kind:
//! `TIDEGATE_SETTLING=long cargo test -p tidegate-core --test all settling --release -- --nocapture`. A history that breaks
//! a law is printed as one line;
//! `TIDEGATE_SETTLING_REPLAY='NAME; line' cargo test -p tidegate-core --test all settling::replay` runs it again.

mod answers;
mod changed;
mod crowd;
mod envelope;
mod exhaustive;
mod history;
mod hostile;
mod laws;
mod random;
use crate::random as random_numbers;
mod subjects;

use tidegate_core::{Algorithm, Quota, Tick};

use history::{Op, Run};

fn is_long() -> bool {
    std::env::var("TIDEGATE_SETTLING").is_ok_and(|form| form == "long")
}

fn hostile_cases() -> u32 {
    if is_long() { 200_000 } else { 2_000 }
}

fn judge(name: &'static str) {
    let subject = subjects::small().into_iter().find(|subject| subject.name == name).unwrap();
    let (operations, steps) = if is_long() { (6, 1_000_000) } else { (4, 4_000) };
    let mut search = exhaustive::Search::new(&subject);
    let mut broken: Vec<String> = search.all(operations).err().into_iter().collect();
    println!(
        "{name}: all sequences of up to {operations} operations; {} walked, {} more equal to those. TIDEGATE_SETTLING=long: up to 6",
        search.walked, search.equal
    );
    if !subject.kind.is_profile() {
        broken.extend(random::histories(name, steps).err());
    }
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

macro_rules! judged {
    ($($test:ident: $name:literal;)*) => {
        $(#[test] fn $test() { judge($name); })*

        #[test]
        fn every_small_world_is_judged() {
            let names: Vec<_> = subjects::small().into_iter().map(|subject| subject.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

judged! {
    gcra: "gcra";
    gcra_thirds: "gcra-thirds";
    bucket: "bucket";
    bucket_below_full: "bucket-below-full";
    aligned: "aligned";
    aligned_below_capacity: "aligned-below-capacity";
    bandwidths_aligned: "bandwidths-aligned";
    bandwidths: "bandwidths";
    interval: "interval";
    interval_below_capacity: "interval-below-capacity";
    bandwidths_mixed: "bandwidths-mixed";
    leaky_bucket: "leaky-bucket";
    queue: "queue";
    queue_with_slack: "queue-slack";
    window: "window";
    calendar: "calendar";
    sliding_window: "sliding-window";
    sliding_log: "sliding-log";
    sliding_counter: "sliding-counter";
    warm_up: "warm-up";
    x_time: "x-time";
    uber: "uber";
    guava: "guava";
    guava_warming: "guava-warming";
}

/// Runs a printed history again, operation by operation, and prints the limit after each.
#[test]
fn replay() {
    let Ok(line) = std::env::var("TIDEGATE_SETTLING_REPLAY") else { return };
    let mut parts = line.split(';').map(str::trim);
    let name = parts.next().unwrap();
    let like =
        subjects::small().into_iter().find(|subject| subject.name == name).expect("the name of a kind");
    let hex = parts.next().expect("a limit in bytes");
    let bytes: Vec<u8> =
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    let quota = Quota::decode(&bytes).unwrap();
    let start = Tick::from_nanos(parts.next().unwrap().parse().unwrap());
    let subject = random::like(like, quota);
    println!("{:?}", subject.quota);
    let mut run = Run::new(&subject.quota, start);
    for op in parts.map(|op| Op::parse(op).unwrap_or_else(|| panic!("no operation: {op}"))) {
        let law = random::one(&subject, &mut run, op);
        println!("{op}: {:?}", subject.quota.standing(&run.state, run.last));
        println!("    {:?} {:?}", run.charges.last().map(|charge| charge.receipt), run.state);
        law.unwrap_or_else(|law| panic!("{law}"));
    }
    laws::forgetting(&subject, &run).unwrap_or_else(|law| panic!("{law}"));
}
