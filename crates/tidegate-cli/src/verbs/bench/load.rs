//! Generates the load: connections that send one ask at a time, in a closed or an open loop.
//!
//! In an open loop asks are due at fixed times: a thread releases each ask, and the next free connection sends it. The
//! latency of an ask that finds no free connection counts from its due time. So latencies include the time that a slow
//! server kept asks waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use parking_lot::Mutex;
use tidegate::Tick;
use tidegate::clock::{Clock, SystemClock};
use tidegate_sim::traffic::{KeyChoice, KeyDraws};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::client::{Answer, Client, Dial, Fate};
use super::tally::{Sent, Tally};
use crate::args::PerSecond;

/// How long a connection of a closed loop waits before it reconnects to a server that it could not reach.
const PAUSE: Duration = Duration::from_millis(100);

/// How long after the end asks that were due before it may still be sent.
const GRACE: Duration = Duration::from_millis(200);

/// The longest sleep of the pacing thread before it checks whether to stop.
const NAP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Load {
    pub(super) dial: Dial,
    pub(super) keys: KeyChoice,
    pub(super) seed: u64,
    pub(super) rate: Option<PerSecond>,
    pub(super) connections: usize,
    pub(super) lasts: Duration,
    pub(super) timeout: Duration,
    pub(super) tally: Mutex<Tally>,
}

#[derive(Debug)]
pub(super) struct Running {
    load: Arc<Load>,
    clock: SystemClock,
    start: Tick,
    end: Tick,
    stopped: AtomicBool,
    /// One permit for each ask that is due and not yet taken.
    due: Semaphore,
    /// Asks that became due.
    let_go: AtomicU64,
    /// The number of asks that connections took.
    taken: AtomicU64,
}

impl Load {
    /// Opens all connections.
    ///
    /// # Errors
    /// If a connection cannot be made.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Vec<Client>> {
        let target = &self.dial.target;
        let one = |load: Arc<Self>| async move {
            match tokio::time::timeout(load.timeout, load.dial.connect()).await {
                Ok(connected) => connected,
                Err(_) => Err(anyhow!("no answer within {:?}", load.timeout)),
            }
        };
        let first = one(Arc::clone(self)).await.with_context(|| {
            format!("no server answers at {target}; start one with `tidegate serve`, or name another one")
        })?;
        let mut others = JoinSet::new();
        (1..self.connections).for_each(|_| drop(others.spawn(one(Arc::clone(self)))));
        let mut clients = vec![first];
        while let Some(connected) = others.join_next().await {
            let client = connected.expect("connecting does not panic and is not cancelled");
            clients.push(client.with_context(|| {
                format!(
                    "{} of {} connections to {target} were made; try fewer with -c",
                    clients.len(),
                    self.connections
                )
            })?);
        }
        Ok(clients)
    }

    /// The set of tasks ends when all connections are done.
    pub(super) fn start(self: Arc<Self>, clients: Vec<Client>) -> (Arc<Running>, JoinSet<()>) {
        let clock = SystemClock::new();
        let start = clock.now();
        let running = Arc::new(Running {
            clock,
            start,
            end: start.after(self.lasts),
            stopped: AtomicBool::new(false),
            due: Semaphore::new(0),
            let_go: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            load: self,
        });
        if let Some(rate) = running.load.rate {
            let pacing = Arc::clone(&running);
            std::thread::spawn(move || pacing.pace(rate));
        }
        let mut workers = JoinSet::new();
        for (worker, client) in clients.into_iter().enumerate() {
            let draws = running.load.keys.draws(running.load.seed ^ ((worker as u64) << 40));
            workers.spawn(Arc::clone(&running).work(worker, client, draws));
        }
        (running, workers)
    }
}

impl Running {
    /// Releases asks until the end.
    fn pace(&self, rate: PerSecond) {
        loop {
            let now = self.clock.now().min(self.end);
            // One at the start, and then one per interval.
            let due = due_by(rate, nanos(now.since(self.start)), now == self.end);
            let before = self.let_go.swap(due, Ordering::Relaxed);
            self.due.add_permits(
                usize::try_from(due - before).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS / 4),
            );
            if now == self.end || self.stopped.load(Ordering::Relaxed) {
                break;
            }
            let next = self.start.after(Duration::from_nanos(due_at(rate, due)));
            self.clock.block_until(next.min(now.after(NAP)).min(self.end));
        }
        let late = self.clock.now().after(GRACE);
        while self.due.available_permits() > 0
            && self.clock.now() < late
            && !self.stopped.load(Ordering::Relaxed)
        {
            self.clock.block_until(self.clock.now().after(Duration::from_millis(1)));
        }
        self.due.close();
    }

    /// Returns the due time of a connection's next ask, which is past; `None` at the end.
    async fn next(&self) -> Option<u64> {
        let Some(rate) = self.load.rate else {
            let now = self.clock.now();
            return (now < self.end && !self.stopped.load(Ordering::Relaxed)).then(|| now.as_nanos());
        };
        self.due.acquire().await.ok()?.forget();
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        Some(self.start.as_nanos().saturating_add(due_at(rate, number)))
    }

    async fn work(self: Arc<Self>, worker: usize, client: Client, mut draws: KeyDraws) {
        let mut client = Some(client);
        while let Some(due) = self.next().await {
            let load = &self.load;
            let (key, sent) = (draws.draw(), self.sends(worker));
            let mut asking = match client.take_if(Client::is_open) {
                Some(client) => client,
                None => match tokio::time::timeout(load.timeout, load.dial.connect()).await {
                    Ok(Ok(client)) => client,
                    failed => {
                        let why = failed
                            .map_or_else(|_| "no connection in time".to_owned(), |done| failure(done.err()));
                        self.ends(
                            worker,
                            Sent { key, due, sent },
                            Answer::word(Fate::Unsent, "no connection"),
                            Some(why),
                        );
                        if load.rate.is_none() {
                            self.clock.sleep_until(self.clock.now().after(PAUSE)).await;
                        }
                        continue;
                    }
                },
            };
            let said = tokio::time::timeout(load.timeout, asking.ask(&load.dial.question, key)).await;
            let ask = Sent { key, due, sent };
            match said {
                Ok(Ok(answer)) => {
                    let why =
                        (answer.fate == Fate::Failed).then(|| format!("the answer was {}", answer.code));
                    client = Some(asking);
                    self.ends(worker, ask, answer, why);
                }
                Ok(Err(error)) => {
                    self.ends(
                        worker,
                        ask,
                        Answer::word(Fate::Lost, "broken off"),
                        Some(failure(Some(error.into()))),
                    );
                }
                Err(_) => {
                    let why = format!("no answer within {:?}", load.timeout);
                    self.ends(worker, ask, Answer::word(Fate::Lost, "timeout"), Some(why));
                }
            }
        }
    }

    fn sends(&self, worker: usize) -> u64 {
        let mut tally = self.load.tally.lock();
        let now = self.clock.now().as_nanos();
        tally.sends(worker, now);
        now
    }

    fn ends(&self, worker: usize, ask: Sent, answer: Answer, why: Option<String>) {
        let now = self.clock.now().as_nanos();
        let mut tally = self.load.tally.lock();
        if tally.first_failure.is_none() {
            tally.first_failure = why;
        }
        tally.ends(worker, ask, now, answer);
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.due.close();
    }

    /// How many asks were due but not taken, and how long the first of them has waited. Valid only when all connections
    /// are done.
    pub(super) fn left_over(&self) -> (u64, u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        let left = self.let_go.load(Ordering::Relaxed).saturating_sub(taken);
        let Some(rate) = self.load.rate.filter(|_| left > 0) else { return (0, 0) };
        let since = self.start.as_nanos().saturating_add(due_at(rate, taken));
        (left, self.clock.now().min(self.end).as_nanos().saturating_sub(since))
    }

    /// Returns the time that the load has run, at most until its end.
    pub(super) fn took(&self) -> Duration {
        self.clock.now().min(self.end).since(self.start)
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    pub(super) fn tally(&self) -> &Mutex<Tally> {
        &self.load.tally
    }
}

/// Returns the due time of an ask, in nanoseconds after the start; the first ask is number 0.
fn due_at(rate: PerSecond, number: u64) -> u64 {
    let at = (u128::from(number) * u128::from(rate.period)).div_ceil(u128::from(rate.count));
    u64::try_from(at).unwrap_or(u64::MAX)
}

/// Returns how many asks are due by a time after the start. With `is_end`, an ask due exactly at that time is not
/// counted.
fn due_by(rate: PerSecond, nanos: u64, is_end: bool) -> u64 {
    let whole = u128::from(nanos) * u128::from(rate.count);
    let period = u128::from(rate.period);
    let due = if is_end { whole.div_ceil(period) } else { whole / period + 1 };
    u64::try_from(due).unwrap_or(u64::MAX)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn failure(error: Option<anyhow::Error>) -> String {
    error.map_or_else(String::new, |error| format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_are_due_evenly_and_none_twice() {
        let rate = PerSecond { count: 3, period: 1_000_000_000 };
        assert_eq!(
            [0, 1, 2, 3].map(|number| due_at(rate, number)),
            [0, 333_333_334, 666_666_667, 1_000_000_000]
        );
        for number in 0..10 {
            let at = due_at(rate, number);
            assert_eq!(due_by(rate, at, false), number + 1);
            assert!(at == 0 || due_by(rate, at - 1, false) == number);
        }
        // A whole second has three; one due exactly at its end belongs to the next second.
        assert_eq!((due_by(rate, 1_000_000_000, true), due_by(rate, 1_000_000_001, true)), (3, 4));
        assert_eq!(due_by(PerSecond { count: 1, period: u64::MAX }, 0, false), 1);
    }
}
