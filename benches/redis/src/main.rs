//! Measures how many decisions one core of a Redis server makes, compared with its own counter commands in the same
//! run.
//!
//! The measure is the processor time that the server reports for its main thread, because the machine may be busy
//! otherwise, and client and server share it. Each row is the median of the rounds, in which rows take turns.

#![allow(clippy::disallowed_methods, reason = "a real server takes real time, and is waited for")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tidegate::store::{Charge, Executed, Execution, Op, Step, StepClock, Store as _};
use tidegate_core::{Cost, Quota, Tick};
use tidegate_redis::{AfterLoss, RedisOptions, RedisStore};

/// The number of keys, used evenly.
const KEYS: u64 = 100_000;

/// How long a row is measured per round.
const SPAN: Duration = Duration::from_millis(1500);

/// The number of keys of which each is used about once in a row.
const MANY_KEYS: u64 = 1 << 40;

/// How long keys that are used once are measured per round: they are deleted from a second after they are full.
const LONG: Duration = Duration::from_secs(6);

/// Commands per pipeline, the same number as steps in a batch of the store.
const PIPELINE: usize = 64;

/// The work of a row.
#[derive(Clone, Copy)]
enum Row {
    /// The server's own commands for one decision.
    Commands(fn(&mut Pipeline, u64)),
    /// A token bucket in a script, as programs write it for themselves, one call for each decision.
    Script { tasks: u64 },
    /// `CL.THROTTLE` of redis-cell, if [`cell`] names the module.
    Cell { tasks: u64 },
    /// Single steps from a number of tasks, with at most `to_a_call` per call, over a number of hashes.
    Tasks { tasks: u64, to_a_call: usize, shards: u32 },
    /// Batches of 64 steps from four tasks.
    Batches { shards: u32 },
    /// A request with three limits in one step, from a number of tasks.
    Three { tasks: u64 },
    /// A limit that the library decides.
    Library { tasks: u64 },
    /// Keys that are used once, and whose limit is full a millisecond later.
    Once { tasks: u64 },
}

/// The token bucket of the row [`Row::Script`].
const TOKEN_BUCKET: &str = r"
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local held = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(held[1]) or burst, tonumber(held[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
local allowed = tokens >= cost
if allowed then tokens = tokens - cost end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000))
return { allowed and 1 or 0, tostring(tokens) }
";

/// One measurement: decisions per second, and the microseconds of processor time per decision of the server and of this
/// program.
struct Found {
    per_second: f64,
    server: f64,
    client: f64,
}

fn main() -> Result<()> {
    let rounds =
        std::env::var("TIDEGATE_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    let server = Server::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let rows = [
        (
            "`GET`, pipelines of 64",
            Row::Commands(|pipe, key| {
                pipe.cmd("GET").arg(key);
            }),
        ),
        (
            "`INCR`, pipelines of 64",
            Row::Commands(|pipe, key| {
                pipe.cmd("INCR").arg(key);
            }),
        ),
        (
            "`INCRBY` and `EXPIRE`, pipelines of 64",
            Row::Commands(|pipe, key| {
                pipe.cmd("INCRBY").arg(key).arg(1);
                pipe.cmd("EXPIRE").arg(key).arg(60);
            }),
        ),
        ("a token bucket in a script, 64 tasks", Row::Script { tasks: 64 }),
        ("`CL.THROTTLE` of redis-cell, 64 tasks", Row::Cell { tasks: 64 }),
        ("one decision to a call, one task", Row::Tasks { tasks: 1, to_a_call: 1, shards: 16 }),
        ("one decision to a call, 64 tasks", Row::Tasks { tasks: 64, to_a_call: 1, shards: 16 }),
        ("one decision to a call, 512 tasks", Row::Tasks { tasks: 512, to_a_call: 1, shards: 16 }),
        ("collected, 64 tasks", Row::Tasks { tasks: 64, to_a_call: 128, shards: 16 }),
        ("collected, 256 tasks", Row::Tasks { tasks: 256, to_a_call: 128, shards: 16 }),
        ("collected, 256 tasks, 1024 hashes", Row::Tasks { tasks: 256, to_a_call: 128, shards: 1024 }),
        ("batches of 64, one hash", Row::Batches { shards: 1 }),
        ("batches of 64, 4 hashes", Row::Batches { shards: 4 }),
        ("batches of 64, 16 hashes", Row::Batches { shards: 16 }),
        ("batches of 64, 256 hashes", Row::Batches { shards: 256 }),
        ("three limits in a request, collected, 64 tasks", Row::Three { tasks: 64 }),
        ("sliding log, by the library, 64 tasks", Row::Library { tasks: 64 }),
        ("keys used once, collected, 64 tasks", Row::Once { tasks: 64 }),
    ];
    // Rows whose name contains a word, if one is given.
    let word = std::env::args().nth(1).unwrap_or_default();
    let here = |row: &Row| cell().is_some() || !matches!(row, Row::Cell { .. });
    let rows: Vec<_> = rows.into_iter().filter(|(name, row)| name.contains(&word) && here(row)).collect();
    let mut found: Vec<Vec<Found>> = rows.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (at, (_, row)) in rows.iter().enumerate() {
            server.ask(&["FLUSHALL"])?;
            found[at].push(measure(&runtime, &server, *row)?);
        }
    }
    println!(
        "| what | decisions per core-second of the server | server us | client us | per second that passed |"
    );
    println!("|---|---|---|---|---|");
    for ((name, _), mut of) in rows.iter().zip(found) {
        of.sort_by(|a, b| a.server.total_cmp(&b.server));
        let Found { per_second, server, client } = &of[of.len() / 2];
        println!(
            "| {name} | {:.0} k | {server:.2} | {client:.2} | {:.0} k |",
            1e3 / server,
            per_second / 1e3
        );
    }
    if word.is_empty() {
        println!("\n{}", memory(&runtime, &server)?);
    }
    Ok(())
}

fn measure(runtime: &tokio::runtime::Runtime, server: &Server, row: Row) -> Result<Found> {
    let quota = Arc::new(Quota::per_second(1000).burst(1000).gcra()?);
    let log = Arc::new(Quota::per_second(20).sliding_log()?);
    let options = |shards| -> Result<RedisOptions> {
        Ok(RedisOptions::single(&server.url())?.namespace("bench").shards(shards).after_loss(AfterLoss::Half))
    };
    match row {
        Row::Commands(put) => runtime.block_on(commands(server, put)),
        Row::Tasks { tasks, to_a_call, shards } => {
            let store = runtime.block_on(RedisStore::connect(options(shards)?.steps_in_a_call(to_a_call)))?;
            runtime.block_on(steps(server, &store, &quota, tasks, 1, KEYS))
        }
        Row::Script { tasks } => runtime.block_on(async {
            let client = redis::Client::open(server.url())?;
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(TOKEN_BUCKET);
            let name: String =
                load.query_async(&mut client.get_multiplexed_async_connection().await?).await?;
            calls(server, tasks, move |key| {
                let mut call = redis::cmd("EVALSHA");
                call.arg(&name).arg(1).arg(key).arg(1000).arg(1000).arg(1);
                call
            })
            .await
        }),
        Row::Cell { tasks } => runtime.block_on(calls(server, tasks, |key| {
            let mut call = redis::cmd("CL.THROTTLE");
            call.arg(key).arg(999).arg(1000).arg(1).arg(1);
            call
        })),
        Row::Once { tasks } => {
            let store = runtime.block_on(RedisStore::connect(options(16)?))?;
            let found = runtime.block_on(steps(server, &store, &quota, tasks, 1, MANY_KEYS));
            eprintln!("{:?}; {} cells are left", store.counts(), server.cells()?);
            found
        }
        Row::Batches { shards } => {
            let store = runtime.block_on(RedisStore::connect(options(shards)?))?;
            runtime.block_on(batches(server, &store, &quota))
        }
        Row::Three { tasks } => {
            let store = runtime.block_on(RedisStore::connect(options(16)?))?;
            runtime.block_on(steps(server, &store, &quota, tasks, 3, KEYS))
        }
        Row::Library { tasks } => {
            let store = runtime.block_on(RedisStore::connect(options(16)?))?;
            runtime.block_on(steps(server, &store, &log, tasks, 1, KEYS))
        }
    }
}

/// Runs tasks until the span is over, and returns the cost of the decisions. A task returns the number of its
/// decisions.
async fn run<F, T>(server: &Server, tasks: u64, span: Duration, task: F) -> Result<Found>
where
    F: Fn(u64, Instant) -> T,
    T: Future<Output = Result<u64>> + Send + 'static,
{
    // The first access to each key is not counted.
    let warm = Instant::now() + span / 3;
    for running in (0..tasks).map(|number| tokio::spawn(task(number, warm))).collect::<Vec<_>>() {
        running.await??;
    }
    let (start, ours, theirs) = (Instant::now(), own_cpu()?, server.cpu()?);
    let until = start + span;
    let mut made = 0;
    for running in (0..tasks).map(|number| tokio::spawn(task(number, until))).collect::<Vec<_>>() {
        made += running.await??;
    }
    let made = made as f64;
    Ok(Found {
        per_second: made / start.elapsed().as_secs_f64(),
        server: (server.cpu()? - theirs) / made * 1e6,
        client: (own_cpu()? - ours) / made * 1e6,
    })
}

async fn commands(server: &Server, put: fn(&mut Pipeline, u64)) -> Result<Found> {
    let client = redis::Client::open(server.url())?;
    let connection = client.get_multiplexed_async_connection().await?;
    run(server, 4, SPAN, |number, until| {
        let mut connection: MultiplexedConnection = connection.clone();
        async move {
            let (mut keys, mut made) = (keys_from(number), 0);
            while Instant::now() < until {
                let mut pipe = Pipeline::new();
                (0..PIPELINE).for_each(|_| put(&mut pipe, next(&mut keys)));
                connection.send_packed_commands(&pipe, 0, pipe.len()).await?;
                made += PIPELINE as u64;
            }
            Ok(made)
        }
    })
    .await
}

async fn steps(
    server: &Server,
    store: &RedisStore,
    quota: &Arc<Quota>,
    tasks: u64,
    limits: u64,
    all: u64,
) -> Result<Found> {
    run(server, tasks, if all == KEYS { SPAN } else { LONG }, |number, until| {
        let (store, quota) = (store.clone(), Arc::clone(quota));
        async move {
            let (mut keys, mut made) = (keys_from(number), 0);
            while Instant::now() < until {
                for _ in 0..32 {
                    let key = next_of(&mut keys, all);
                    let names: Vec<[u8; 8]> =
                        (0..limits).map(|limit| (key + limit * KEYS).to_be_bytes()).collect();
                    let later = {
                        let charges: Vec<Charge<'_>> =
                            names.iter().map(|name| Charge::new(name, &quota, Cost::ONE)).collect();
                        let step = Step {
                            clock: StepClock::Engine,
                            receipts: false,
                            ..Step::new(Tick::EPOCH, Op::Take, &charges)
                        };
                        store.execute_into(&step, &mut Executed::default())
                    };
                    let Execution::Later(later) = later else { bail!("an engine answers later") };
                    later.await?;
                    made += 1;
                }
            }
            Ok(made)
        }
    })
    .await
}

/// Sends one command for each decision, from a number of tasks.
async fn calls<C>(server: &Server, tasks: u64, call: C) -> Result<Found>
where
    C: Fn(u64) -> redis::Cmd + Clone + Send + 'static,
{
    let client = redis::Client::open(server.url())?;
    let connection = client.get_multiplexed_async_connection().await?;
    run(server, tasks, SPAN, |number, until| {
        let (mut connection, call) = (connection.clone(), call.clone());
        async move {
            let (mut keys, mut made) = (keys_from(number), 0);
            while Instant::now() < until {
                for _ in 0..32 {
                    connection.send_packed_command(&call(next(&mut keys))).await?;
                    made += 1;
                }
            }
            Ok(made)
        }
    })
    .await
}

/// Returns the file of redis-cell, a Redis module, if `TIDEGATE_BENCH_REDIS_CELL` names one.
fn cell() -> Option<std::ffi::OsString> {
    std::env::var_os("TIDEGATE_BENCH_REDIS_CELL")
}

async fn batches(server: &Server, store: &RedisStore, quota: &Arc<Quota>) -> Result<Found> {
    run(server, 4, SPAN, |number, until| {
        let (store, quota) = (store.clone(), Arc::clone(quota));
        async move {
            let (mut keys, mut made) = (keys_from(number), 0);
            while Instant::now() < until {
                let names: Vec<[u8; 8]> = (0..PIPELINE).map(|_| next(&mut keys).to_be_bytes()).collect();
                let later = {
                    let charges: Vec<[Charge<'_>; 1]> =
                        names.iter().map(|name| [Charge::new(name, &quota, Cost::ONE)]).collect();
                    let step = |charges| Step {
                        clock: StepClock::Engine,
                        receipts: false,
                        ..Step::new(Tick::EPOCH, Op::Take, charges)
                    };
                    let steps: Vec<Step<'_>> = charges.iter().map(|charges| step(charges)).collect();
                    store.execute_each(&steps, &mut Vec::new())
                };
                for answer in later.context("an engine answers later")?.await {
                    ensure!(answer.is_ok(), "a decision failed");
                }
                made += PIPELINE as u64;
            }
            Ok(made)
        }
    })
    .await
}

/// Measures the bytes per cell, in hashes of several sizes.
fn memory(runtime: &tokio::runtime::Runtime, server: &Server) -> Result<String> {
    let mut page = String::from("| cells | hashes | bytes of the server for each cell |\n|---|---|---|\n");
    for (cells, shards) in [(1_000_000u64, 16), (1_000_000, 4096)] {
        server.ask(&["FLUSHALL"])?;
        let before: f64 = server.info("used_memory")?.parse()?;
        let options = RedisOptions::single(&server.url())?.shards(shards).after_loss(AfterLoss::Half);
        let store = runtime.block_on(RedisStore::connect(options))?;
        let quota = Arc::new(Quota::per_day(100).gcra()?);
        for from in (0..cells).step_by(100) {
            let names: Vec<[u8; 8]> = (from..from + 100).map(u64::to_be_bytes).collect();
            let charges: Vec<[Charge<'_>; 1]> =
                names.iter().map(|name| [Charge::new(name, &quota, Cost::ONE)]).collect();
            let step =
                |charges| Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, Op::Take, charges) };
            let steps: Vec<Step<'_>> = charges.iter().map(|charges| step(charges)).collect();
            runtime.block_on(store.execute_each(&steps, &mut Vec::new()).context("an engine answers later")?);
        }
        let after: f64 = server.info("used_memory")?.parse()?;
        page += &format!("| {cells} | {shards} | {:.1} |\n", (after - before) / cells as f64);
    }
    Ok(page)
}

fn own_cpu() -> Result<f64> {
    let used = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((used.user_time().num_microseconds() + used.system_time().num_microseconds()) as f64 / 1e6)
}

const fn keys_from(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

const fn next(state: &mut u64) -> u64 {
    next_of(state, KEYS)
}

/// Returns the next of so many keys, of a small generator (xorshift64).
const fn next_of(state: &mut u64, of: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % of
}

// A Redis server of the bench, with default settings except for its port.

pub(crate) struct Server {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(folder.path()).stdout(Stdio::null());
        if let Some(module) = cell() {
            command.arg("--loadmodule").arg(module);
        }
        let child = command.spawn().context("`redis-server` is needed; apt-get install redis-server")?;
        let server = Self { child, port, _folder: folder };
        let until = Instant::now() + Duration::from_secs(10);
        while server.ask(&["PING"]).is_err() {
            if Instant::now() > until {
                bail!("the server does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn ask(&self, words: &[&str]) -> Result<redis::Value> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        Ok(command.query(&mut connection)?)
    }

    /// Returns a field of INFO.
    pub(crate) fn info(&self, field: &str) -> Result<String> {
        let text: String = redis::from_redis_value(self.ask(&["INFO", "everything"])?)?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line.with_context(|| format!("INFO has no {field}"))?.trim().to_owned())
    }

    /// Returns the number of cells in the hashes of the bench.
    fn cells(&self) -> Result<i64> {
        let of = |shard: u32| -> Result<i64> {
            Ok(redis::from_redis_value(self.ask(&["HLEN", &format!("tg:1:{{bench:{shard}}}:h")])?)?)
        };
        (0..16).map(of).sum()
    }

    /// Returns the processor time of the thread that executes commands, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let of = |field: &str| -> Result<f64> { Ok(self.info(field)?.parse()?) };
        Ok(of("used_cpu_user_main_thread")? + of("used_cpu_sys_main_thread")?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
