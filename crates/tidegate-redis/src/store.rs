//! The store: by the script if it supports the limits, else by compare-and-set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::clock::{Clock, HeldTime, SystemClock};
use tidegate::store::{
    AfterLoss, Caps, Executed, Execution, Home, Later, Occupancy, Op, OwnedStep, Step, StepAnswer, StepClock,
    Store, StoreError,
};
use tidegate_core::{Quota, Tick};

use crate::call::{Ask, Forms, MOST_CELLS, Names, Spends};
use crate::cell::Form;
use crate::connect::Dialer;
use crate::counts::{Counters, Counts, Reports};
use crate::engine::{Engine, unexpected_reply};
use crate::link::Common;
use crate::options::{ConnectError, RedisOptions};
use crate::route::Route;
use crate::work::{CellName, Plan, Prepared, Reply, StepResult, Work};

/// A store on Redis or Valkey; see the [crate](crate).
///
/// Cheap to clone; clones are the same store. It lives on the tokio runtime on which it was connected; its answers may
/// be awaited on any.
#[derive(Clone, Debug)]
pub struct RedisStore {
    shared: Arc<Backing>,
}

#[derive(Debug)]
struct Backing {
    engine: Arc<Engine>,
    forms: Forms,
    /// Replaces the engine's clock, for tests.
    engine_clock: Option<Arc<dyn Clock>>,
    policy: String,
}

impl RedisStore {
    /// Connects to the servers, checks them, and loads the script.
    ///
    /// # Errors
    /// [`ConnectError`] names the fault and a remedy. The store recovers from later losses of the connection.
    ///
    /// # Cancel safety
    /// If the future is dropped, at most the loaded script and the notes of first use stay on the server.
    ///
    /// # Examples
    /// ```no_run
    /// use tidegate_redis::{RedisOptions, RedisStore};
    ///
    /// # async fn connect() -> Result<(), tidegate_redis::ConnectError> {
    /// let store = RedisStore::connect(RedisOptions::single("redis://127.0.0.1/")?.namespace("shop")).await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(options: RedisOptions) -> Result<Self, ConnectError> {
        Self::connected(options, None).await
    }

    /// Same as [`RedisStore::connect`], with a clock in place of the engine's: for tests with a stopped clock.
    ///
    /// # Errors
    /// The same as [`RedisStore::connect`].
    #[doc(hidden)]
    pub async fn connect_with_clock(
        options: RedisOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConnectError> {
        Self::connected(options, Some(clock)).await
    }

    async fn connected(
        options: RedisOptions,
        engine_clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, ConnectError> {
        options.check()?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let names = Names::new(&options.namespace, options.shard_count());
        let caps = caps(options.is_cluster());
        let after_loss = options.after_loss;
        let watched = after_loss != AfterLoss::Full;
        let keys = format!("tg:1:{{{}:*", options.namespace);
        let dialer = Dialer { keys, probe: names.hash(0).to_owned(), options };
        let (time, counters) = (HeldTime::default(), Counters::default());
        let by_callers = AtomicBool::new(false);
        let common =
            Arc::new(Common { runtime, dialer, names, time, told: 0.into(), by_callers, counters, watched });
        let (route, ready) = Route::connect(&common).await?;
        if ready.policy.starts_with("allkeys") {
            tracing::warn!(
                policy = ready.policy,
                "the server deletes any key when its memory is full: limits of a whole shard start anew then; \
                 `noeviction` or one of the `volatile` policies keeps them"
            );
        }
        let shared = Backing {
            engine: Arc::new(Engine {
                common,
                route,
                clock: SystemClock::new(),
                caps,
                queue: Mutex::default(),
            }),
            forms: Forms::default(),
            engine_clock,
            policy: ready.policy,
        };
        // For `Empty` the first use counts as a loss, so that none can be missed; `Full` does not detect losses.
        let begun = shared.engine.begin(after_loss == AfterLoss::Half).await;
        let found = begun.map_err(|error| ConnectError::Answer {
            address: "the server".to_owned(),
            reason: error.to_string(),
        })?;
        let names = &shared.engine.common.names;
        if found != names.form() {
            return Err(ConnectError::Shards {
                key: names.used().to_owned(),
                found,
                wanted: names.form().to_owned(),
            });
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Writes what a node reports of itself, one line, and returns the reports of all nodes that wrote one within the
    /// last ten seconds by the server's clock, and how busy that server is: of a cluster, the one that has the reports. An empty report removes the node's. `node` is a name that no other node
    /// has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    ///
    /// # Cancel safety
    /// If dropped, the report may or may not be written.
    pub async fn exchange_reports(&self, node: &str, report: &str) -> Result<Reports, StoreError> {
        self.shared.engine.exchange_reports(node, report).await
    }

    /// Returns the store's activity so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.engine.common.counters.read()
    }

    /// Returns the server's `maxmemory-policy` when the store was connected.
    #[must_use]
    pub fn eviction_policy(&self) -> &str {
        &self.shared.policy
    }
}

/// On one server the keys of a step may be in any hashes; in a cluster their common tag determines the hash.
const fn caps(is_cluster: bool) -> Caps {
    let mut caps = Caps::ENGINE;
    caps.own_clock = true;
    caps.one_tag = is_cluster;
    caps
}

impl Store for RedisStore {
    fn execute_into(&self, step: &Step<'_>, _: &mut Executed) -> Execution {
        if let Err(error) = checked(step) {
            return Execution::Done(Err(error));
        }
        let (shared, step) = (Arc::clone(&self.shared), Arc::new(OwnedStep::of(step)));
        Execution::Later(Box::pin(async move { shared.execute(step).await }))
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        out.clear();
        let owned = |step: &Step<'_>| checked(step).map(|()| Arc::new(OwnedStep::of(step)));
        let steps: Vec<Result<Arc<OwnedStep>, StoreError>> = steps.iter().map(owned).collect();
        let shared = Arc::clone(&self.shared);
        Some(Box::pin(async move { shared.execute_each(steps).await }))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }

    fn caps(&self) -> Caps {
        self.shared.engine.caps
    }

    fn home(&self) -> Home {
        Home::Nodes
    }

    fn clock_set_back(&self) -> u64 {
        self.counts().clock_set_back
    }

    fn losses(&self) -> u64 {
        self.counts().replaced
    }
}

fn checked(step: &Step<'_>) -> Result<(), StoreError> {
    let charges = step.charges;
    let repeated = |at: usize| charges[..at].iter().any(|earlier| earlier.key == charges[at].key);
    if (0..charges.len()).any(repeated) {
        return Err(StoreError::RepeatedKey);
    }
    if charges.len() > MOST_CELLS {
        let reason = format!("a step of {} charges is too long; {MOST_CELLS} is the most", charges.len());
        return Err(StoreError::Unavailable { reason });
    }
    Ok(())
}

impl Backing {
    async fn execute(&self, step: Arc<OwnedStep>) -> StepAnswer {
        let prepared = self.prepare(step);
        let told = self.engine.ask(Work::Decide(vec![prepared.clone()])).await?;
        let Reply::Steps(told) = told else { return Err(unexpected_reply()) };
        match told.into_iter().next().ok_or_else(unexpected_reply)? {
            StepResult::Decided(answer) => answer,
            StepResult::Read(cells) => {
                let answers = join_all(self.engine.by_library(vec![(prepared, cells)])).await;
                answers.into_iter().next().ok_or_else(unexpected_reply)?
            }
        }
    }

    /// Executes steps, with one exchange per run of steps by the same kind of clock; those that the library decides
    /// follow, in order.
    async fn execute_each(&self, steps: Vec<Result<Arc<OwnedStep>, StoreError>>) -> Vec<StepAnswer> {
        let mut answers: Vec<StepAnswer> = Vec::with_capacity(steps.len());
        let mut run: Vec<(usize, Prepared)> = Vec::new();
        let mut cells = 0;
        for (at, step) in steps.into_iter().enumerate() {
            // A placeholder, replaced below.
            answers.push(Ok(Executed::default()));
            let prepared = match step {
                Ok(step) => self.prepare(step),
                Err(error) => {
                    answers[at] = Err(error);
                    continue;
                }
            };
            let other_clock =
                run.last().is_some_and(|(_, last)| last.tick.is_some() != prepared.tick.is_some());
            let full = run.len() == self.engine.common.dialer.options.steps_in_a_call
                || cells + prepared.cells.len() > MOST_CELLS;
            if other_clock || full {
                self.execute_run(std::mem::take(&mut run), &mut answers).await;
                cells = 0;
            }
            // The previous run may have moved the time on.
            let prepared =
                Prepared { tick: prepared.tick.map(|tick| self.engine.common.time.hold(tick)), ..prepared };
            cells += prepared.cells.len();
            run.push((at, prepared));
        }
        self.execute_run(run, &mut answers).await;
        answers
    }

    async fn execute_run(&self, run: Vec<(usize, Prepared)>, answers: &mut [StepAnswer]) {
        // In a cluster a call is for one shard. Steps of different shards have no keys in common, so their order does
        // not matter.
        let mut parts: Vec<(u32, Vec<(usize, Prepared)>)> = Vec::new();
        for (at, step) in run {
            let shard =
                if self.engine.caps.one_tag { step.cells.first().map_or(0, |name| name.shard) } else { 0 };
            match parts.iter_mut().find(|(of, _)| *of == shard) {
                Some((_, part)) => part.push((at, step)),
                None => parts.push((shard, vec![(at, step)])),
            }
        }
        let asked = parts.iter().map(|(_, part)| {
            let steps = part.iter().map(|(_, step)| step.clone()).collect();
            self.engine.ask(Work::Decide(steps))
        });
        let told = join_all(asked).await;
        let (mut places, mut left) = (Vec::new(), Vec::new());
        for ((_, part), told) in parts.into_iter().zip(told) {
            let mut told = match told {
                Ok(Reply::Steps(told)) => Ok(told.into_iter()),
                Ok(Reply::Wrote(_) | Reply::Noted(_)) => Err(unexpected_reply()),
                Err(error) => Err(error),
            };
            for (at, step) in part {
                answers[at] = match &mut told {
                    Err(error) => Err(error.clone()),
                    Ok(told) => match told.next() {
                        Some(StepResult::Decided(answer)) => answer,
                        Some(StepResult::Read(cells)) => {
                            places.push(at);
                            left.push((step, cells));
                            continue;
                        }
                        None => Err(unexpected_reply()),
                    },
                };
            }
        }
        let decided = join_all(self.engine.by_library(left)).await;
        for (at, answer) in places.into_iter().zip(decided) {
            answers[at] = answer;
        }
    }

    fn prepare(&self, step: Arc<OwnedStep>) -> Prepared {
        let tagged = self.engine.caps.one_tag.then(|| step.tag());
        let shards = self.engine.common.names.shards();
        let hold = |tick| {
            // Relaxed: a caller that uses both clocks makes its calls one after the other.
            self.engine.common.by_callers.store(true, Ordering::Relaxed);
            self.engine.common.time.hold(tick)
        };
        let (tick, cells, scripted) = step.with(|step| {
            let tick = match (step.clock, &self.engine_clock) {
                (StepClock::Engine, None) => None,
                (StepClock::Engine, Some(clock)) => Some(hold(clock.now())),
                (StepClock::Caller | StepClock::Fresh(_), _) => Some(hold(step.now)),
            };
            let name = |charge: &tidegate::store::Charge<'_>| CellName::of(charge.key, tagged, shards);
            let cells: SmallVec<[CellName; 4]> = step.charges.iter().map(name).collect();
            (tick, cells, self.scripted(step, tick))
        });
        let (plan, asks, forms) = scripted.unwrap_or_else(|| (Plan::Read, SmallVec::new(), SmallVec::new()));
        Prepared { step, tick, plan, cells, asks, forms }
    }

    #[allow(clippy::type_complexity, reason = "the three parts of a plan, taken apart at once")]
    fn scripted(
        &self,
        step: &Step<'_>,
        tick: Option<Tick>,
    ) -> Option<(Plan, SmallVec<[Ask; 4]>, SmallVec<[(Arc<Form>, Arc<Quota>); 4]>)> {
        let (plan, spends) = match step.op {
            Op::Take => (Plan::Take, Spends::All),
            Op::Draw => (Plan::Take, Spends::WhatFits),
            Op::Peek => (Plan::Peek, Spends::All),
            _ => return None,
        };
        let about = tick.unwrap_or_else(|| self.engine.common.present());
        let (mut asks, mut forms) = (SmallVec::new(), SmallVec::new());
        for charge in step.charges {
            let form = self.forms.of(charge).filter(|form| tick.is_none_or(|tick| form.takes(tick)))?;
            asks.push(form.ask(charge, spends, self.engine.common.dialer.options.after_loss, about)?);
            forms.push((form, Arc::clone(charge.quota)));
        }
        Some((plan, asks, forms))
    }
}
