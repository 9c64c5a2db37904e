//! The one connection to a server, and the task that owns it.
//!
//! A job is sent at once if nothing is in flight. Jobs that arrive while an exchange is in flight are sent together
//! after it, so batches grow with the load. A call whose answer is lost is never sent again, because it may have been
//! executed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use tidegate::clock::{Clock as _, HeldTime, SystemClock};
use tidegate::store::StoreError;
use tidegate_core::Tick;
use tidegate_core::time::MAX_STEP_BACK;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::call::{Layout, MOST_CELLS, Names, decide, decode_reply, delete, last_loss, note, report, write};
use crate::connect::{Dialer, Find, PAUSE, Ready, SCRIPT, ask, error_text, server_error_text};
use crate::counts::{Counters, add};
use crate::sweep::Sweep;
use crate::work::{Failure, Job, Note, Plan, Prepared, Reply, StepResult, Work};

/// The most jobs that wait for a server; further callers wait until there is room.
const MOST_WAITING: usize = 16_384;

const MOST_AT_ONCE: usize = 512;

/// How often a script is loaded for one exchange: another client may flush scripts in between.
const RELOADS: u32 = 8;

/// The largest step back of a server's clock for which time stands still: nobody may be refused for longer because of
/// it. After a larger step the clock is followed.
pub(crate) const STEP_BACK: Duration = Duration::from_secs(1);

/// The error if the task has dropped a job, by a panic or the end of the runtime.
const NO_REPLY: &str = "the task that asks the server has ended in the middle of it, by a mistake in the store or with the runtime";

pub(crate) fn no_reply() -> StoreError {
    StoreError::Unavailable { reason: NO_REPLY.to_owned() }
}

#[derive(Debug)]
pub(crate) struct Common {
    /// Where links live: steps may be requested on any thread.
    pub(crate) runtime: Handle,
    pub(crate) dialer: Dialer,
    pub(crate) names: Names,
    /// The latest tick of a caller's clock or a server's.
    pub(crate) time: HeldTime,
    /// The tick that a server told last, in nanoseconds: it goes back with the server's clock.
    pub(crate) told: AtomicU64,
    /// Whether any step used its caller's clock: then the server's time can be behind the latest tick.
    pub(crate) by_callers: AtomicBool,
    pub(crate) counters: Counters,
    /// Whether losses of cells by a server are detected.
    pub(crate) watched: bool,
}

impl Common {
    /// Returns for how long the time of a key may stand still after the clock stepped back. Callers' clocks differ: a
    /// key that followed each of them would refill with each change between them.
    pub(crate) fn stands_still(&self) -> Duration {
        // Relaxed: a caller that uses both clocks makes its calls one after the other.
        if self.by_callers.load(Ordering::Relaxed) { MAX_STEP_BACK } else { STEP_BACK }
    }

    /// Returns the present as far as it is known without asking a server.
    pub(crate) fn present(&self) -> Tick {
        if self.by_callers.load(Ordering::Relaxed) {
            return self.time.latest();
        }
        Tick::from_nanos(self.told.load(Ordering::Relaxed))
    }
}

/// Sends jobs to the task that owns a connection, which ends with its last link.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    jobs: mpsc::Sender<Job>,
}

impl Link {
    pub(crate) fn start(common: Arc<Common>, find: Find, ready: Option<Ready>) -> Self {
        let (jobs, received) = mpsc::channel(MOST_WAITING);
        let sweep = Sweep::new(common.names.shards(), common.dialer.options.is_cluster());
        let (clock, lost, runtime) = (SystemClock::new(), Tick::EPOCH, common.runtime.clone());
        let owner = Owner { common, find, ready, down: None, clock, sweep, lost, told: Tick::EPOCH };
        runtime.spawn(owner.run(received));
        Self { jobs }
    }

    pub(crate) async fn ask(&self, work: Work, asking: bool) -> Result<Reply, Failure> {
        let (reply, told) = oneshot::channel();
        let sent = self.jobs.send(Job { work, asking, reply }).await;
        sent.map_err(|_| Failure::unavailable("the runtime on which the store was connected has ended"))?;
        told.await.map_err(|_| Failure::Failed(no_reply()))?
    }
}

struct Owner {
    common: Arc<Common>,
    find: Find,
    ready: Option<Ready>,
    /// Why there is no connection, and until when none is attempted.
    down: Option<(Tick, String)>,
    clock: SystemClock,
    sweep: Sweep,
    /// The latest loss that a server has reported.
    lost: Tick,
    /// The tick that the server told last.
    told: Tick,
}

impl Owner {
    async fn run(mut self, mut received: mpsc::Receiver<Job>) {
        // A bug in this crate costs one exchange, instead of the link for ever.
        while AssertUnwindSafe(self.run_until_panic(&mut received)).catch_unwind().await.is_err() {
            tracing::error!("a mistake in the Redis store ended an exchange; the connection is made anew");
            self.ready = None;
            self.sweep = Sweep::new(self.common.names.shards(), self.common.dialer.options.is_cluster());
        }
    }

    async fn run_until_panic(&mut self, received: &mut mpsc::Receiver<Job>) {
        let mut jobs = Vec::new();
        while received.recv_many(&mut jobs, MOST_AT_ONCE).await > 0 {
            drop_given_up(&mut jobs);
            if jobs.is_empty() {
                continue;
            }
            match self.connected().await {
                Ok(ready) => {
                    // Connecting takes time, in which callers may have given up.
                    drop_given_up(&mut jobs);
                    if !jobs.is_empty() {
                        self.exchange(ready, std::mem::take(&mut jobs)).await;
                    }
                }
                Err(reason) => {
                    for job in jobs.drain(..) {
                        let _ = job.reply.send(Err(Failure::unavailable(reason.clone())));
                    }
                }
            }
        }
    }

    /// Returns the connection, which is made unless an attempt has just failed.
    async fn connected(&mut self) -> Result<Ready, String> {
        if let Some(ready) = &self.ready {
            return Ok(ready.clone());
        }
        let now = self.clock.now();
        if let Some((until, reason)) = &self.down
            && now < *until
        {
            return Err(reason.clone());
        }
        match self.find.connect(&self.common.dialer).await {
            Ok(ready) => {
                add(&self.common.counters.connections, 1);
                self.down = None;
                self.ready = Some(ready.clone());
                Ok(ready)
            }
            Err(error) => {
                let reason = error.to_string();
                self.down = Some((self.clock.now().after(PAUSE), reason.clone()));
                Err(reason)
            }
        }
    }

    async fn exchange(&mut self, mut ready: Ready, jobs: Vec<Job>) {
        let options = &self.common.dialer.options;
        if options.is_cluster() {
            jobs.iter().for_each(|job| self.sweep.mark_used(job.work.shard()));
        }
        let mut calls = batches(jobs, options.is_cluster(), options.steps_in_a_call);
        let mut sweeping = true;
        for attempt in 0..=RELOADS {
            let mut pipeline = Pipeline::new();
            let mut commands = 0;
            if attempt > 0 {
                // In the same exchange as the calls that need it, before another client flushes.
                let mut load = Cmd::new();
                load.arg("SCRIPT").arg("LOAD").arg(SCRIPT);
                pipeline.add_command(load);
                commands += 1;
            }
            for batch in &mut calls {
                if batch.asking {
                    pipeline.add_command(redis::cmd("ASKING"));
                    commands += 1;
                }
                pipeline.add_command(self.command(batch, &ready));
                commands += 1;
            }
            let steps: usize = calls.iter().map(Batch::steps).sum();
            let scan = self.sweep.next(steps, &self.common.names).filter(|_| sweeping);
            let swept = scan.is_some();
            if let Some(command) = scan {
                pipeline.add_command(command);
                commands += 1;
            }
            sweeping = false;
            add(&self.common.counters.exchanges, 1);
            add(&self.common.counters.calls, calls.len() as u64);
            let answered = ready.connection.send_packed_commands(&pipeline, 0, commands).await;
            let mut values = match answered {
                Ok(values) if values.len() == commands => values.into_iter(),
                Ok(_) => return self.lost(calls, "the server sent another number of answers"),
                Err(error) => return self.lost(calls, &error_text(&error)),
            };
            let loaded = if attempt > 0 { values.next() } else { None };
            let mut again = Vec::new();
            for batch in calls {
                if batch.asking {
                    values.next();
                }
                let value = values.next().unwrap_or_default();
                self.note_loss(&mut ready, &batch, &value).await;
                if let Some(batch) = self.hand_out(batch, value) {
                    again.push(batch);
                }
            }
            if swept && let Some(value) = values.next() {
                self.swept(&mut ready, value).await;
            }
            if again.is_empty() {
                return;
            }
            if let Some(Value::ServerError(error)) = loaded {
                let reason = server_error_text(error.code(), error.details());
                return self.lost(again, &format!("the script cannot be loaded: {reason}"));
            }
            if attempt == RELOADS {
                let reason = "NOSCRIPT: the server forgets the script each time it is loaded";
                return self.lost(again, reason);
            }
            // Repeats only the calls for which the script was missing: the others were executed.
            add(&self.common.counters.reloads, 1);
            calls = again;
        }
    }

    fn command(&self, batch: &mut Batch, ready: &Ready) -> Cmd {
        let run: &[u8] = if self.common.watched { &ready.run } else { b"" };
        match &mut batch.call {
            Call::Decide { jobs, layout } => {
                let steps = steps_of(jobs);
                let names = &self.common.names;
                let by_callers = self.common.by_callers.load(Ordering::Relaxed);
                let latest = if by_callers { self.common.time.latest() } else { self.told };
                let (command, made) = decide(&steps, &ready.script, names, run, latest, by_callers);
                *layout = made;
                command
            }
            Call::Write(job) | Call::Note(job) => match &job.work {
                Work::Write(writes) => write(writes, &ready.script, &self.common.names, run),
                Work::Note(about) => note(*about, &self.common.names, run),
                Work::Report { node, report: own } => report(node, own, &ready.script, &self.common.names),
                Work::Decide(_) => Cmd::new(),
            },
        }
    }

    /// Marks the namespace as used again when a reply reports a new loss: without the mark, the next node that starts
    /// would take unused shards for new ones.
    async fn note_loss(&mut self, ready: &mut Ready, batch: &Batch, value: &Value) {
        let Call::Decide { layout, .. } = &batch.call else { return };
        let lost = last_loss(layout, value);
        if lost <= self.lost {
            return;
        }
        // In a cluster another server may hold the mark; then the epochs are enough. An error shows in the next
        // exchange.
        let _ = ask(&mut ready.connection, &note(Note::Used, &self.common.names, b"")).await;
        self.lost = lost;
    }

    /// Delivers the reply; returns the call if the server did not have the script.
    fn hand_out(&mut self, batch: Batch, value: Value) -> Option<Batch> {
        if let Value::ServerError(error) = value {
            let reason = server_error_text(error.code(), error.details());
            return match error.kind() {
                Some(ServerErrorKind::NoScript) => Some(batch),
                kind => {
                    self.refused(batch, kind, error.code(), &reason);
                    None
                }
            };
        }
        match batch.call {
            Call::Note(job) => {
                let noted = match value {
                    Value::BulkString(held) => Some(held),
                    _ => None,
                };
                let _ = job.reply.send(Ok(Reply::Noted(noted)));
            }
            Call::Write(job) => {
                let wrote = match value {
                    Value::Int(wrote) => Ok(Reply::Wrote(wrote == 1)),
                    _ => Err(Failure::unavailable("the script returned no number")),
                };
                let _ = job.reply.send(wrote);
            }
            Call::Decide { jobs, layout } => self.answer(jobs, &layout, value),
        }
        None
    }

    fn answer(&mut self, jobs: Vec<Job>, layout: &Layout, value: Value) {
        let steps = steps_of(&jobs);
        let by_engine = steps.first().is_some_and(|step| step.tick.is_none());
        let Some((all, now)) = decode_reply(&steps, layout, value) else {
            for job in jobs {
                let _ = job.reply.send(Err(Failure::unavailable("the script's answer was not understood")));
            }
            return;
        };
        if by_engine {
            self.common.time.hold(now);
            self.sweep.at(now);
            self.told(now);
        }
        let scripted = all.iter().filter(|result| matches!(result, StepResult::Decided(_))).count();
        add(&self.common.counters.scripted, scripted as u64);
        let mut all = all.into_iter();
        for job in jobs {
            let many = if let Work::Decide(steps) = &job.work { steps.len() } else { 0 };
            let _ = job.reply.send(Ok(Reply::Steps(all.by_ref().take(many).collect())));
        }
    }

    fn told(&mut self, now: Tick) {
        let back = self.told.since(now);
        if back > STEP_BACK && !self.common.by_callers.load(Ordering::Relaxed) {
            add(&self.common.counters.clock_set_back, 1);
            tracing::warn!(
                ?back,
                "the clock of Redis was set back, or another server with an earlier clock decides now; limits stand still for up to {STEP_BACK:?}"
            );
        }
        self.told = now;
        self.common.told.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn refused(&mut self, batch: Batch, kind: Option<ServerErrorKind>, code: &str, reason: &str) {
        use ServerErrorKind as Kind;
        let again = match kind {
            // Another server is the master now.
            Some(Kind::ReadOnly | Kind::MasterDown) => {
                self.ready = None;
                true
            }
            // The server wants a password since it was made to.
            _ if code == "NOAUTH" => {
                self.ready = None;
                true
            }
            Some(Kind::Moved | Kind::Ask | Kind::TryAgain | Kind::ClusterDown | Kind::BusyLoading) => true,
            _ => code == "BUSY",
        };
        for job in batch.into_jobs() {
            let failure = if again {
                Failure::NotDone { code: code.to_owned(), reason: reason.to_owned() }
            } else {
                Failure::unavailable(reason)
            };
            let _ = job.reply.send(Err(failure));
        }
    }

    /// Fails calls whose answers are lost. The connection is dropped, because late answers may still arrive on it.
    fn lost(&mut self, calls: Vec<Batch>, reason: &str) {
        self.ready = None;
        for job in calls.into_iter().flat_map(Batch::into_jobs) {
            let _ = job.reply.send(Err(Failure::unavailable(reason)));
        }
    }

    async fn swept(&mut self, ready: &mut Ready, value: Value) {
        let (shard, full) = self.sweep.found(value);
        if full.is_empty() {
            return;
        }
        let run: &[u8] = if self.common.watched { &ready.run } else { b"" };
        let command = delete(shard, &full, &ready.script, &self.common.names, run);
        match ready.connection.send_packed_command(&command).await {
            Ok(Value::Int(deleted)) => add(&self.common.counters.swept, u64::try_from(deleted).unwrap_or(0)),
            // Refused, for example while a slot moves: the next round finds them again.
            Ok(_) => {}
            Err(_) => self.ready = None,
        }
    }
}

fn drop_given_up(jobs: &mut Vec<Job>) {
    jobs.retain(|job| !job.reply.is_closed());
}

// Combines the jobs that wait for a server into calls of the script.

pub(crate) struct Batch {
    pub(crate) call: Call,
    pub(crate) asking: bool,
}

pub(crate) enum Call {
    Decide { jobs: Vec<Job>, layout: Layout },
    Write(Job),
    Note(Job),
}

struct OpenBatch {
    by_caller: bool,
    /// Whether it only reads cells. Steps that follow a read of their cell in a call are left to the library too, which
    /// takes two exchanges each and conflicts with itself on a busy key. So reads have calls of their own.
    reads: bool,
    /// The call's only shard, if the server accepts one per call.
    shard: Option<u32>,
    asking: bool,
    jobs: Vec<Job>,
    steps: usize,
    cells: usize,
}

/// Combines jobs into calls with as many steps as allowed; with `one_shard`, of one shard each.
pub(crate) fn batches(jobs: Vec<Job>, one_shard: bool, most_steps: usize) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut open: Vec<OpenBatch> = Vec::new();
    for job in jobs {
        let asking = job.asking;
        let steps = match &job.work {
            Work::Decide(steps) => steps,
            Work::Write(_) => {
                batches.push(Batch { call: Call::Write(job), asking });
                continue;
            }
            Work::Note(_) | Work::Report { .. } => {
                batches.push(Batch { call: Call::Note(job), asking });
                continue;
            }
        };
        let by_caller = steps.first().is_some_and(|step| step.tick.is_some());
        let reads = steps.iter().all(|step| step.plan == Plan::Read);
        let shard = one_shard.then(|| job.work.shard());
        let (steps, cells) = (steps.len(), job.work.cells());
        let joined = open.iter_mut().rev().find(|call| {
            (call.by_caller, call.reads, call.shard, call.asking) == (by_caller, reads, shard, asking)
                && call.steps + steps <= most_steps
                && call.cells + cells <= MOST_CELLS
        });
        match joined {
            Some(call) => {
                call.jobs.push(job);
                (call.steps, call.cells) = (call.steps + steps, call.cells + cells);
            }
            None => open.push(OpenBatch { by_caller, reads, shard, asking, jobs: vec![job], steps, cells }),
        }
    }
    // Reads last, and writes first in the next exchange: between them are no other steps of this node.
    open.sort_by_key(|call| call.reads);
    batches.extend(open.into_iter().map(|OpenBatch { asking, jobs, .. }| {
        let layout = Layout::default();
        Batch { call: Call::Decide { jobs, layout }, asking }
    }));
    batches
}

impl Batch {
    pub(crate) fn steps(&self) -> usize {
        match &self.call {
            Call::Decide { jobs, .. } => steps_of(jobs).len(),
            Call::Write(_) | Call::Note(_) => 0,
        }
    }

    pub(crate) fn into_jobs(self) -> Vec<Job> {
        match self.call {
            Call::Decide { jobs, .. } => jobs,
            Call::Write(job) | Call::Note(job) => vec![job],
        }
    }
}

pub(crate) fn steps_of(jobs: &[Job]) -> Vec<&Prepared> {
    let steps = jobs.iter().filter_map(|job| match &job.work {
        Work::Decide(steps) => Some(steps),
        Work::Write(_) | Work::Note(_) | Work::Report { .. } => None,
    });
    steps.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RedisOptions;

    /// A panic used to end the task, and each later step was told that its runtime was gone.
    #[tokio::test]
    async fn a_panic_costs_one_exchange_and_not_the_link() {
        let options = RedisOptions::single("redis://127.0.0.1:1/").unwrap();
        let common = Common {
            runtime: Handle::current(),
            dialer: Dialer { options, keys: String::new(), probe: String::new() },
            names: Names::new("test", 1),
            time: HeldTime::default(),
            told: 0.into(),
            by_callers: AtomicBool::new(false),
            counters: Counters::default(),
            watched: false,
        };
        let link = Link::start(Arc::new(common), Find::Panicking, None);
        for _ in 0..3 {
            let Err(Failure::Failed(error)) = link.ask(Work::Note(Note::Used), false).await else {
                panic!("an error")
            };
            assert!(error.to_string().contains(NO_REPLY), "{error}");
        }
    }
}
