//! Combines the jobs that wait for a server into calls of the script.

use crate::call::{Layout, MOST_CELLS};
use crate::work::{Job, Prepared, Work};

/// A call: its jobs, and the layout for reading its reply.
pub(crate) struct Batch {
    pub(crate) call: Call,
    pub(crate) asking: bool,
}

pub(crate) enum Call {
    Decide { jobs: Vec<Job>, layout: Layout },
    Write(Job),
    Note(Job),
}

/// A call that further jobs may still join.
struct Open {
    /// Whether it uses the callers' ticks instead of the engine's.
    by_caller: bool,
    /// The call's only shard, if the server accepts one shard per call.
    shard: Option<u32>,
    asking: bool,
    jobs: Vec<Job>,
    steps: usize,
    cells: usize,
}

/// Combines jobs into calls with as many steps as allowed. With `one_shard`, each call has cells of one shard only.
pub(crate) fn batches(jobs: Vec<Job>, one_shard: bool, most_steps: usize) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for job in jobs {
        let asking = job.asking;
        let steps = match &job.work {
            Work::Decide(steps) => steps,
            Work::Write(_) => {
                batches.push(Batch { call: Call::Write(job), asking });
                continue;
            }
            Work::Note(_) => {
                batches.push(Batch { call: Call::Note(job), asking });
                continue;
            }
        };
        let by_caller = steps.first().is_some_and(|step| step.tick.is_some());
        let shard = one_shard.then(|| job.work.shard());
        let (steps, cells) = (steps.len(), job.work.cells());
        let joined = open.iter_mut().rev().find(|call| {
            (call.by_caller, call.shard, call.asking) == (by_caller, shard, asking)
                && call.steps + steps <= most_steps
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
    batches.extend(open.into_iter().map(|Open { asking, jobs, .. }| {
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
        Work::Write(_) | Work::Note(_) => None,
    });
    steps.flatten().collect()
}
