//! The callers: connections that send the next request as soon as one is answered.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::wire::{Answer, Wire};

/// The number of keys, used evenly.
const KEYS: u64 = 10_000;

/// Of this many requests under [`Traffic::ManyRefused`], one is the first for its key, and permitted.
const PER_KEY: u64 = 100;

/// The next key that nobody has asked for.
static FRESH: AtomicU64 = AtomicU64::new(KEYS);

/// An upper bound of the requests that a connection has in flight.
const OPEN: usize = 4096;

/// The number of connections, and of requests in flight on each.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) open: usize,
}

/// The keys that callers ask for, and so the share of their requests that is refused. All but the first need a server
/// whose keys have one unit a day.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Keys that have units left.
    Permitted,
    /// Keys that have spent their unit. One request in a hundred is for a key that has not.
    ManyRefused,
    /// One such key, for which all callers ask.
    OneRefused,
}

impl Traffic {
    /// The share of the answers that has to be refusals.
    fn refused(self) -> f64 {
        match self {
            Self::Permitted => 0.0,
            Self::ManyRefused => 1.0 - 1.0 / PER_KEY as f64,
            Self::OneRefused => 1.0,
        }
    }

    /// By how much the share may differ.
    fn tolerance(self) -> f64 {
        if self == Self::ManyRefused { 0.5 / PER_KEY as f64 } else { 0.0 }
    }

    /// How long requests are sent before those that count: long enough to spend the units of all keys.
    fn warm(self, warm: Duration) -> Duration {
        if self == Self::Permitted { warm } else { warm + Duration::from_secs(1) }
    }

    /// Fails unless as many answers were refusals as belongs to these keys.
    fn verify(self, refused: u64, answers: u64) -> Result<()> {
        let (share, wanted) = (refused as f64 / answers as f64, self.refused());
        ensure!(
            (share - wanted).abs() <= self.tolerance(),
            "{refused} of {answers} requests were refused; wanted a share of {wanted}"
        );
        Ok(())
    }
}

/// The keys that one connection asks for, one after the other.
struct Keys {
    traffic: Traffic,
    number: u64,
    connections: u64,
    asked: u64,
    random: u64,
}

impl Keys {
    fn new(traffic: Traffic, number: usize, connections: usize) -> Self {
        let (number, connections) = (number as u64, connections as u64);
        let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { traffic, number, connections, asked: 0, random }
    }

    fn draw(&mut self) -> u64 {
        let asked = self.asked;
        self.asked += 1;
        match self.traffic {
            Traffic::Permitted => self.any(),
            Traffic::OneRefused => 0,
            Traffic::ManyRefused => {
                // The connections first spend the units of all keys together.
                let unspent = self.number + asked * self.connections;
                if unspent < KEYS {
                    unspent
                } else if (asked + self.number).is_multiple_of(PER_KEY) {
                    // Relaxed: no other memory depends on the number.
                    FRESH.fetch_add(1, Ordering::Relaxed)
                } else {
                    self.any()
                }
            }
        }
    }

    fn any(&mut self) -> u64 {
        // Marsaglia's xorshift: the quality of the randomness does not matter.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % KEYS
    }
}

/// One measurement.
pub(crate) struct Found {
    /// Completed calls per second.
    pub(crate) rate: f64,
    /// The server's processor time per call, in microseconds.
    pub(crate) cpu: f64,
    /// The share of it that the system spends for the server: sockets, wake-ups, pages. Sampled by the system's tick.
    pub(crate) kernel: f64,
    /// Latency in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// The answers, and those of them that are refusals.
    pub(crate) answers: u64,
    pub(crate) refused: u64,
}

/// The answers to one connection.
struct Received {
    latencies: Histogram<u64>,
    refused: u64,
}

/// Sends requests for `warm` without counting them, and then for `span`.
///
/// # Errors
/// Also fails if another share of the answers was refused than `traffic` says: refusals are other work.
pub(crate) async fn run(
    port: u16,
    server: u32,
    shape: Shape,
    traffic: Traffic,
    wire: impl Fn() -> Box<dyn Wire>,
    (warm, span): (Duration, Duration),
) -> Result<Found> {
    let from = Instant::now() + traffic.warm(warm);
    let until = from + span;
    let local = tokio::task::LocalSet::new();
    let callers: Vec<_> = (0..shape.connections)
        .map(|number| {
            let keys = Keys::new(traffic, number, shape.connections);
            local.spawn_local(call(port, keys, shape.open, wire(), from, until))
        })
        .collect();
    let spent = local.spawn_local(async move {
        tokio::time::sleep_until(from.into()).await;
        let before = (Instant::now(), cpu_of(server)?, ticks_of(server)?);
        tokio::time::sleep_until((until - Duration::from_millis(5)).into()).await;
        anyhow::Ok((before.0.elapsed(), cpu_of(server)? - before.1, ticks_of(server)?.since(before.2)))
    });
    let (Received { latencies, refused }, elapsed, cpu, ticks) = local
        .run_until(async move {
            let mut all = Received { latencies: Histogram::new(3)?, refused: 0 };
            let (elapsed, cpu, ticks) = spent.await??;
            for caller in callers {
                let received = caller.await??;
                all.latencies.add(received.latencies)?;
                all.refused += received.refused;
            }
            anyhow::Ok((all, elapsed, cpu, ticks))
        })
        .await?;
    let calls = latencies.len() as f64 * elapsed.as_secs_f64() / span.as_secs_f64();
    ensure!(calls > 0.0, "nothing was answered");
    traffic.verify(refused, latencies.len())?;
    Ok(Found {
        rate: calls / elapsed.as_secs_f64(),
        cpu: cpu.as_secs_f64() * 1e6 / calls,
        kernel: ticks.kernel as f64 / (ticks.kernel + ticks.program).max(1) as f64,
        p50: latencies.value_at_quantile(0.5) as f64 / 1e3,
        p99: latencies.value_at_quantile(0.99) as f64 / 1e3,
        answers: latencies.len(),
        refused,
    })
}

/// One connection, until its time is over. Answers between `from` and `until` count.
async fn call(
    port: u16,
    mut keys: Keys,
    open: usize,
    mut wire: Box<dyn Wire>,
    from: Instant,
    until: Instant,
) -> Result<Received> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let (mut out, mut read) = (Vec::new(), Vec::with_capacity(1 << 16));
    let (mut asked, mut missing) = (0_usize, 0_usize);
    let mut since = vec![from; OPEN];
    let mut received = Received { latencies: Histogram::new(3)?, refused: 0 };
    wire.open(&mut out);
    loop {
        let now = Instant::now();
        if now >= until {
            return Ok(received);
        }
        while missing < open {
            wire.ask(keys.draw(), &mut out);
            since[asked % OPEN] = now;
            asked += 1;
            missing += 1;
        }
        stream.write_all(&out).await?;
        out.clear();
        let answered = missing;
        while missing == answered {
            ensure!(stream.read_buf(&mut read).await? > 0, "the server has closed the connection");
            let now = Instant::now();
            let mut error = None;
            let whole = wire.read(&read, &mut out, &mut |Answer { question, refused }| {
                missing -= 1;
                if now >= from && now < until {
                    let took = now - since[question as usize % OPEN];
                    error = received.latencies.record((took.as_nanos() as u64).max(1)).err();
                    received.refused += u64::from(refused);
                }
            })?;
            if let Some(error) = error {
                return Err(error.into());
            }
            read.drain(..whole);
        }
    }
}

// Reads the processor time of a process from the scheduler.

/// Returns the processor time of all threads of a process so far.
pub(crate) fn cpu_of(process: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).context("the server has ended")? {
        // A thread may end in the meantime.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let ran = text.split(' ').next().context("schedstat is empty")?;
        nanoseconds += ran.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Ticks of the system's timer that found a process running, usually 100 a second and core.
#[derive(Clone, Copy)]
struct Ticks {
    program: u64,
    kernel: u64,
}

impl Ticks {
    fn since(self, before: Self) -> Self {
        Self { program: self.program - before.program, kernel: self.kernel - before.kernel }
    }
}

/// Returns the ticks of a process so far, of all its threads.
fn ticks_of(process: u32) -> Result<Ticks> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).context("the server has ended")?;
    // The name, in brackets, may have spaces. The fields after it begin with the third; user time is the 14th.
    let (_, fields) = text.rsplit_once(") ").context("stat is not as expected")?;
    let mut fields = fields.split(' ').skip(11).map(str::parse::<u64>);
    let mut next = || anyhow::Ok(fields.next().context("stat is too short")??);
    Ok(Ticks { program: next()?, kernel: next()? })
}
