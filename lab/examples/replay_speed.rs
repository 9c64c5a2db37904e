//! Measures what each part of a replay costs per line:
//! `cargo run --release -p tidegate-lab --example replay_speed -- LOG [REORDER_SECONDS]`
//!
//! Prints the CPU time of this thread in nanoseconds per line: decompression alone, then reading and parsing in file
//! order, then in time order, then with a limit of 10/s and burst 20 per client; and decisions alone, one by one.
//! Linux only.

use std::error::Error;
use std::hint::black_box;
use std::io::Read;
use std::ops::ControlFlow;
use std::time::Duration;

use tidegate::Tick;
use tidegate::config::{Config, Format};
use tidegate::policy::Descriptor;
use tidegate_sim::log::{Input, Log, LogOptions, Order, text};
use tidegate_sim::replay::{Replay, ReplayOptions};

const POLICY: &str = "version: 1\nclient_ip: { trusted_proxies: [] }\npolicies:\n  - { name: per-ip, by: [client.ip], limit: { rate: 10/s, burst: 20 } }\n";

/// Requests that are read before they are decided together.
const BATCH: usize = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name a log")?;
    let window = Duration::from_secs(arguments.next().map_or(Ok(300), |text| text.parse())?);
    let sorted = Order::Sort { window, bytes: 64 << 20 };
    let open = |order| {
        Log::open(vec![Input::File(path.clone().into())], LogOptions { order, ..LogOptions::default() })
    };

    let start = on_core()?;
    let bytes = unpacked(&path)?;
    let unpacking = on_core()? - start;

    let read = |order| -> Result<(u64, u64), Box<dyn Error>> {
        let start = on_core()?;
        let mut log = open(order)?;
        log.read(|record| {
            black_box(record);
            ControlFlow::Continue(())
        })?;
        Ok((on_core()? - start, log.tally().lines))
    };
    let (parsing, lines) = read(Order::Clamp)?;
    let (ordering, _) = read(sorted)?;

    let (config, _) = Config::parse(POLICY, "policy", Format::Yaml).map_err(|_| "the policy")?;
    let replay =
        || Replay::new(vec![("policy".to_owned(), config.policies.clone())], ReplayOptions::default());
    let start = on_core()?;
    let (mut log, mut whole) = (open(sorted)?, replay()?);
    log.read_together(|records| {
        whole.feed_all(records);
        ControlFlow::Continue(())
    })?;
    let all = on_core()? - start;

    let (mut log, mut alone) = (open(sorted)?, replay()?);
    let (mut batch, mut deciding) = (Vec::with_capacity(BATCH), 0);
    let mut decide = |batch: &mut Vec<(Tick, String, String)>| {
        let start = on_core().unwrap_or(0);
        for (at, client, path) in batch.drain(..) {
            let request = Descriptor::from([
                ("client.ip", &*client),
                ("request.method", "GET"),
                ("request.path", &*path),
            ]);
            alone.feed_request(at, &request, None);
        }
        deciding += on_core().unwrap_or(0) - start;
    };
    log.read(|record| {
        batch.push((record.time, text(record.client).into_owned(), text(record.path).into_owned()));
        if batch.len() == BATCH {
            decide(&mut batch);
        }
        ControlFlow::Continue(())
    })?;
    decide(&mut batch);

    println!("{lines} lines, {bytes} bytes; ns a line");
    for (name, nanos) in [
        ("unpacking", unpacking),
        ("unpacking, parsing", parsing),
        ("unpacking, parsing, ordering", ordering),
        ("all of it", all),
        ("deciding by itself, one by one", deciding),
    ] {
        println!("{:8.0}  {name}", nanos as f64 / lines as f64);
    }
    println!("{:8.2}  million lines a second of one core", lines as f64 * 1e3 / all as f64);
    Ok(())
}

/// Returns the CPU time of this thread in nanoseconds.
fn on_core() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().ok_or("no time on a core")?.parse()?)
}

fn unpacked(path: &str) -> Result<u64, Box<dyn Error>> {
    let file = std::io::BufReader::new(std::fs::File::open(path)?);
    let mut from: Box<dyn Read> = if path.ends_with(".zst") {
        Box::new(zstd::stream::read::Decoder::new(file)?)
    } else {
        Box::new(file)
    };
    let (mut buffer, mut bytes) = (vec![0; 256 << 10], 0);
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(bytes),
            count => bytes += count as u64,
        }
    }
}
