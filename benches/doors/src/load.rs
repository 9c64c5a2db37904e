//! The callers: connections that send the next request as soon as one is answered.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::wire::Wire;

/// The number of keys, used evenly.
const KEYS: u64 = 10_000;

/// An upper bound of the requests that a connection has in flight.
const OPEN: usize = 4096;

/// The number of connections, and of requests in flight on each.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) open: usize,
}

/// One measurement.
pub(crate) struct Found {
    /// Completed calls per second.
    pub(crate) rate: f64,
    /// The server's processor time per call, in microseconds.
    pub(crate) cpu: f64,
    /// Latency in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Sends requests for `warm` without counting them, and then for `span`.
pub(crate) async fn run(
    port: u16,
    server: u32,
    shape: Shape,
    wire: impl Fn() -> Box<dyn Wire>,
    (warm, span): (Duration, Duration),
) -> Result<Found> {
    let from = Instant::now() + warm;
    let until = from + span;
    let local = tokio::task::LocalSet::new();
    let callers: Vec<_> = (0..shape.connections)
        .map(|number| local.spawn_local(call(port, number as u64, shape.open, wire(), from, until)))
        .collect();
    let spent = local.spawn_local(async move {
        tokio::time::sleep_until(from.into()).await;
        let before = (Instant::now(), cpu_of(server)?);
        tokio::time::sleep_until((until - Duration::from_millis(5)).into()).await;
        anyhow::Ok((before.0.elapsed(), cpu_of(server)? - before.1))
    });
    let (latencies, elapsed, cpu) = local
        .run_until(async move {
            let mut latencies = Histogram::<u64>::new(3)?;
            let (elapsed, cpu) = spent.await??;
            for caller in callers {
                latencies.add(caller.await??)?;
            }
            anyhow::Ok((latencies, elapsed, cpu))
        })
        .await?;
    let calls = latencies.len() as f64 * elapsed.as_secs_f64() / span.as_secs_f64();
    ensure!(calls > 0.0, "nothing was answered");
    Ok(Found {
        rate: calls / elapsed.as_secs_f64(),
        cpu: cpu.as_secs_f64() * 1e6 / calls,
        p50: latencies.value_at_quantile(0.5) as f64 / 1e3,
        p99: latencies.value_at_quantile(0.99) as f64 / 1e3,
    })
}

/// One connection, until its time is over. Answers between `from` and `until` count.
async fn call(
    port: u16,
    number: u64,
    open: usize,
    mut wire: Box<dyn Wire>,
    from: Instant,
    until: Instant,
) -> Result<Histogram<u64>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let (mut out, mut read) = (Vec::new(), Vec::with_capacity(1 << 16));
    let (mut asked, mut missing) = (0_usize, 0_usize);
    let mut since = vec![from; OPEN];
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut keys = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    wire.open(&mut out);
    loop {
        let now = Instant::now();
        if now >= until {
            return Ok(latencies);
        }
        while missing < open {
            // Marsaglia's xorshift: the quality of the randomness does not matter.
            keys ^= keys << 13;
            keys ^= keys >> 7;
            keys ^= keys << 17;
            wire.ask(keys % KEYS, &mut out);
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
            let whole = wire.read(&read, &mut out, &mut |question| {
                missing -= 1;
                if now >= from && now < until {
                    let took = now - since[question as usize % OPEN];
                    error = latencies.record((took.as_nanos() as u64).max(1)).err();
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
