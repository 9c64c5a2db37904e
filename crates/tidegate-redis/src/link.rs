//! The one connection to a server, and the task that owns it.
//!
//! Calls go out at once where nothing is in flight. What comes meanwhile is collected and goes out together when the answer is there, so that
//! batches grow with the load and an idle store adds no wait. A call whose answer is lost is never sent again: it may have been executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use tidegate::SystemClock;
use tidegate::clock::{Clock as _, HeldTime};
use tidegate_core::Tick;
use tokio::sync::{mpsc, oneshot};

use crate::call::{Layout, MOST_CELLS, Names, decide, note, told, write};
use crate::connect::{Dialer, PAUSE, Ready, SCRIPT, words};
use crate::counts::{Counters, add};
use crate::find::Find;
use crate::sweep::Sweep;
use crate::work::{Failure, Job, Prepared, Reply, Told, Work};

/// The most jobs that wait for a server; who comes later waits to be let in.
const MOST_WAITING: usize = 16_384;

/// The most jobs of one exchange.
const MOST_AT_ONCE: usize = 512;

/// How often a script is loaded for one exchange. Somebody may flush scripts at that very moment, but hardly so often.
const RELOADS: u32 = 8;

/// What all links of a store share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) dialer: Dialer,
    pub(crate) names: Names,
    /// The latest tick that was seen.
    pub(crate) time: HeldTime,
    /// Whether steps were ever asked by their callers' clocks. Only then the server's time may lie behind the latest tick.
    pub(crate) by_callers: AtomicBool,
    pub(crate) counters: Counters,
    /// Whether cells that a server has lost are noticed.
    pub(crate) watched: bool,
}

/// Hands jobs to the task that owns a connection. The task ends when the last link of it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    jobs: mpsc::Sender<Job>,
}

impl Link {
    /// Starts the task. `ready` is a connection that was made already.
    pub(crate) fn start(common: Arc<Common>, find: Find, ready: Option<Ready>) -> Self {
        let (jobs, received) = mpsc::channel(MOST_WAITING);
        let sweep = Sweep::new(common.names.shards());
        let owner = Owner { common, find, ready, down: None, clock: SystemClock::new(), sweep };
        tokio::spawn(owner.run(received));
        Self { jobs }
    }

    /// Hands over a job, and waits for its reply.
    pub(crate) async fn ask(&self, work: Work, asking: bool) -> Result<Reply, Failure> {
        let (reply, told) = oneshot::channel();
        let gone = || Failure::unavailable("the runtime on which the store was connected has ended");
        self.jobs.send(Job { work, asking, reply }).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }
}

/// Owns a connection.
struct Owner {
    common: Arc<Common>,
    find: Find,
    ready: Option<Ready>,
    /// Why there is no connection, and until when none is tried.
    down: Option<(Tick, String)>,
    clock: SystemClock,
    sweep: Sweep,
}

/// Jobs for one call, while more may join them.
struct Open {
    /// By the callers' ticks, and not the engine's.
    by_caller: bool,
    /// The one shard of the call, where a server takes no more.
    shard: Option<u32>,
    asking: bool,
    jobs: Vec<Job>,
    steps: usize,
    cells: usize,
}

/// A call on its way: the jobs it is for, and how its reply is read.
struct Sent {
    call: Call,
    asking: bool,
}

enum Call {
    Decide { jobs: Vec<Job>, layout: Layout },
    Write(Job),
    Note(Job),
}

impl Owner {
    async fn run(mut self, mut received: mpsc::Receiver<Job>) {
        let mut jobs = Vec::new();
        while received.recv_many(&mut jobs, MOST_AT_ONCE).await > 0 {
            // Nobody waits for these any more, and they have not been sent.
            jobs.retain(|job: &Job| !job.reply.is_closed());
            if jobs.is_empty() {
                continue;
            }
            match self.connected().await {
                Ok(ready) => self.exchange(ready, std::mem::take(&mut jobs)).await,
                Err(reason) => {
                    for job in jobs.drain(..) {
                        let _ = job.reply.send(Err(Failure::unavailable(reason.clone())));
                    }
                }
            }
        }
    }

    /// Returns the connection; makes one where there is none, unless that failed a moment ago.
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

    /// Sends jobs in one exchange, and hands out the replies.
    async fn exchange(&mut self, mut ready: Ready, jobs: Vec<Job>) {
        let mut calls = self.calls(jobs);
        let mut sweeping = true;
        for attempt in 0..=RELOADS {
            let mut pipeline = Pipeline::new();
            let mut commands = 0;
            for sent in &mut calls {
                if sent.asking {
                    pipeline.add_command(redis::cmd("ASKING"));
                    commands += 1;
                }
                pipeline.add_command(self.command(sent, &ready));
                commands += 1;
            }
            let steps: usize = calls.iter().map(Sent::steps).sum();
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
                Ok(_) => return self.lost(calls, "the server sent another number of answers".to_owned()),
                Err(error) => return self.lost(calls, words(&error)),
            };
            let mut again = Vec::new();
            for sent in calls {
                if sent.asking {
                    values.next();
                }
                let value = values.next().unwrap_or_default();
                if let Some(sent) = self.hand_out(sent, value) {
                    again.push(sent);
                }
            }
            if swept && let Some(value) = values.next() {
                self.swept(&mut ready, value).await;
            }
            if again.is_empty() {
                return;
            }
            if attempt == RELOADS {
                let reason = "NOSCRIPT: the server forgets the script each time it is loaded";
                return self.lost(again, reason.to_owned());
            }
            // Only what the server said it did not know the script for: all else in the exchange was done.
            add(&self.common.counters.reloads, 1);
            let mut load = Cmd::new();
            load.arg("SCRIPT").arg("LOAD").arg(SCRIPT);
            if let Err(error) = ready.connection.send_packed_command(&load).await {
                return self.lost(again, words(&error));
            }
            calls = again;
        }
    }

    /// Puts jobs together into calls.
    fn calls(&self, jobs: Vec<Job>) -> Vec<Sent> {
        let mut calls: Vec<Sent> = Vec::new();
        let one_shard = self.common.dialer.options.is_cluster();
        let most = self.common.dialer.options.steps_in_a_call;
        let mut open: Vec<Open> = Vec::new();
        for job in jobs {
            let asking = job.asking;
            let steps = match &job.work {
                Work::Decide(steps) => steps,
                Work::Write(_) => {
                    calls.push(Sent { call: Call::Write(job), asking });
                    continue;
                }
                Work::Note(_) => {
                    calls.push(Sent { call: Call::Note(job), asking });
                    continue;
                }
            };
            let by_caller = steps.first().is_some_and(|step| step.tick.is_some());
            let shard = one_shard.then(|| job.work.shard());
            let (steps, cells) = (steps.len(), job.work.cells());
            let joined = open.iter_mut().rev().find(|call| {
                (call.by_caller, call.shard, call.asking) == (by_caller, shard, asking)
                    && call.steps + steps <= most
                    && call.cells + cells <= MOST_CELLS
            });
            match joined {
                Some(call) => {
                    call.jobs.push(job);
                    (call.steps, call.cells) = (call.steps + steps, call.cells + cells);
                }
                None => open.push(Open { by_caller, shard, asking, jobs: vec![job], steps, cells }),
            }
        }
        calls.extend(open.into_iter().map(|Open { asking, jobs, .. }| {
            let layout = Layout::default();
            Sent { call: Call::Decide { jobs, layout }, asking }
        }));
        calls
    }

    /// Makes the command of a call. The layout is kept, to read the reply by.
    fn command(&self, sent: &mut Sent, ready: &Ready) -> Cmd {
        let run: &[u8] = if self.common.watched { &ready.run } else { b"" };
        match &mut sent.call {
            Call::Decide { jobs, layout } => {
                let steps = steps_of(jobs);
                let latest = (self.common.time.latest(), self.common.by_callers.load(Ordering::Relaxed));
                let (command, made) = decide(&steps, &ready.script, &self.common.names, run, latest);
                *layout = made;
                command
            }
            Call::Write(job) | Call::Note(job) => match &job.work {
                Work::Write(writes) => write(writes, &ready.script, &self.common.names, run),
                Work::Note(about) => note(*about, &self.common.names, run),
                Work::Decide(_) => Cmd::new(),
            },
        }
    }

    /// Hands out the reply of a call; returns the call where the server did not know the script.
    fn hand_out(&mut self, sent: Sent, value: Value) -> Option<Sent> {
        if let Value::ServerError(error) = value {
            let reason = format!("{} {}", error.code(), error.details().unwrap_or_default());
            return match error.kind() {
                Some(ServerErrorKind::NoScript) => Some(sent),
                kind => {
                    self.refused(sent, kind, error.code(), reason);
                    None
                }
            };
        }
        match sent.call {
            Call::Write(job) | Call::Note(job) => {
                let wrote = match value {
                    Value::Int(wrote) => Ok(Reply::Wrote(wrote == 1)),
                    _ => Err(Failure::unavailable("the script returned no number")),
                };
                let _ = job.reply.send(wrote);
            }
            Call::Decide { jobs, layout } => self.tell(jobs, &layout, value),
        }
        None
    }

    fn tell(&mut self, jobs: Vec<Job>, layout: &Layout, value: Value) {
        let steps = steps_of(&jobs);
        let by_engine = steps.first().is_some_and(|step| step.tick.is_none());
        let Some((all, now)) = told(&steps, layout, value) else {
            for job in jobs {
                let _ = job.reply.send(Err(Failure::unavailable("the script's answer was not understood")));
            }
            return;
        };
        if by_engine {
            self.common.time.hold(now);
            self.sweep.at(now);
        }
        let scripted = all.iter().filter(|told| matches!(told, Told::Decided(_))).count();
        add(&self.common.counters.scripted, scripted as u64);
        let mut all = all.into_iter();
        for job in jobs {
            let many = if let Work::Decide(steps) = &job.work { steps.len() } else { 0 };
            let _ = job.reply.send(Ok(Reply::Steps(all.by_ref().take(many).collect())));
        }
    }

    /// A server refused a call: it was not executed.
    fn refused(&mut self, sent: Sent, kind: Option<ServerErrorKind>, code: &str, reason: String) {
        use ServerErrorKind as Kind;
        let again = match kind {
            // Another server is the master by now, or this one has become a replica.
            Some(Kind::ReadOnly | Kind::MasterDown) => {
                self.ready = None;
                true
            }
            Some(Kind::Moved | Kind::Ask | Kind::TryAgain | Kind::ClusterDown | Kind::BusyLoading) => true,
            _ => code == "BUSY",
        };
        for job in sent.into_jobs() {
            let failure = if again {
                Failure::NotDone { code: code.to_owned(), reason: reason.clone() }
            } else {
                Failure::unavailable(reason.clone())
            };
            let _ = job.reply.send(Err(failure));
        }
    }

    /// The answers are lost: nobody knows what was executed. The connection is given up, because answers may still come on it.
    fn lost(&mut self, calls: Vec<Sent>, reason: String) {
        self.ready = None;
        for job in calls.into_iter().flat_map(Sent::into_jobs) {
            let _ = job.reply.send(Err(Failure::unavailable(reason.clone())));
        }
    }

    /// Deletes cells that a scan has found full.
    async fn swept(&mut self, ready: &mut Ready, value: Value) {
        let writes = self.sweep.found(value);
        if writes.is_empty() {
            return;
        }
        let run: &[u8] = if self.common.watched { &ready.run } else { b"" };
        let mut pipeline = Pipeline::new();
        // One by one: a cell that was used meanwhile keeps the others from nothing.
        for one in &writes {
            pipeline.add_command(write(std::slice::from_ref(one), &ready.script, &self.common.names, run));
        }
        match ready.connection.send_packed_commands(&pipeline, 0, writes.len()).await {
            Ok(values) => {
                let deleted = values.iter().filter(|value| matches!(value, Value::Int(1))).count();
                add(&self.common.counters.swept, deleted as u64);
            }
            Err(_) => self.ready = None,
        }
    }
}

impl Sent {
    fn steps(&self) -> usize {
        match &self.call {
            Call::Decide { jobs, .. } => steps_of(jobs).len(),
            Call::Write(_) | Call::Note(_) => 0,
        }
    }

    fn into_jobs(self) -> Vec<Job> {
        match self.call {
            Call::Decide { jobs, .. } => jobs,
            Call::Write(job) | Call::Note(job) => vec![job],
        }
    }
}

fn steps_of(jobs: &[Job]) -> Vec<&Prepared> {
    let steps = jobs.iter().filter_map(|job| match &job.work {
        Work::Decide(steps) => Some(steps),
        Work::Write(_) | Work::Note(_) => None,
    });
    steps.flatten().collect()
}
