//! The simulated engine: one process with a clock, whose memory may be lost.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate::store::{Executed, Execution, OwnedStep, PlainStore, Step, StepAnswer, StepClock, Store};
use tidegate_core::Tick;

use super::link::{nanos, refused};

/// One engine with a replica that lags behind.
#[derive(Debug, Default)]
pub(super) struct Engine {
    master: PlainStore,
    replica: PlainStore,
    /// The steps that the replica has yet to apply: when it applies each, in nanoseconds, and the tick at which
    /// the master applied it.
    behind: VecDeque<(u64, OwnedStep, Tick)>,
    lag: Duration,
    /// How far the engine's clock is ahead, in nanoseconds.
    ahead: i64,
    down: bool,
    stalled: bool,
    pub(super) steps: u64,
}

impl Engine {
    pub(super) fn is_down(&self) -> bool {
        self.down
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    pub(super) fn stop(&mut self, forget: bool) {
        self.down = true;
        if forget {
            self.forget();
        }
    }

    pub(super) fn start(&mut self) {
        self.down = false;
    }

    pub(super) fn stall(&mut self, stalled: bool) {
        self.stalled = stalled;
    }

    pub(super) fn forget(&mut self) {
        self.master = PlainStore::default();
        self.replica = PlainStore::default();
        self.behind.clear();
    }

    /// Moves the engine's clock by some nanoseconds.
    pub(super) fn step_clock(&mut self, by: i64) {
        self.ahead += by;
    }

    pub(super) fn lag(&mut self, lag: Duration) {
        self.lag = lag;
    }

    /// Makes the replica the master. Steps that the replica has not yet applied are lost.
    pub(super) fn fail_over(&mut self, now: u64) {
        self.catch_up(now);
        self.behind.clear();
        self.master = std::mem::take(&mut self.replica);
    }

    /// Executes the steps of one message by the engine's clock.
    pub(super) fn serve(&mut self, now: u64, steps: &[OwnedStep]) -> Vec<StepAnswer> {
        self.catch_up(now);
        let at = Tick::from_nanos(now.saturating_add_signed(self.ahead));
        self.steps += steps.len() as u64;
        let lags = !self.lag.is_zero();
        steps
            .iter()
            .map(|step| {
                if lags {
                    self.behind.push_back((now + nanos(self.lag), step.clone(), at));
                }
                execute(&self.master, step, at)
            })
            .collect()
    }

    fn catch_up(&mut self, now: u64) {
        while let Some((_, step, at)) = self.behind.pop_front_if(|(due, ..)| *due <= now) {
            let _ = execute(&self.replica, &step, at);
        }
    }
}

fn execute(store: &PlainStore, step: &OwnedStep, at: Tick) -> StepAnswer {
    step.with(|step| {
        let now = match step.clock {
            StepClock::Engine => at,
            StepClock::Caller | StepClock::Fresh(_) => step.now,
        };
        let mut executed = Executed::default();
        match store.execute_into(&Step { now, clock: StepClock::Caller, ..*step }, &mut executed) {
            Execution::Done(done) => done.map(|()| executed),
            Execution::Later(_) => Err(refused()),
        }
    })
}
