//! Executes many requests in rounds: each round asks one store, in one exchange, for the next parts of all requests that
//! wait for it.

use smallvec::SmallVec;
use tidegate_core::Tick;

use super::Gate;
use super::several_stores::Run;
use super::waits::{InFlight, Waits, undo_later};
use tidegate_limits::clock;
use tidegate_limits::store::{Executed, Execution, Step, StepAnswer, Store, StoreError};

impl Gate {
    /// Executes requests, each all or nothing. Each round executes the next parts of all requests that wait for the same
    /// store.
    ///
    /// # Cancel safety
    /// Dropping the requests gives back all that was taken, until [`Run::outcome`] hands it over.
    pub(super) async fn execute_runs(&self, runs: &mut [Run<'_, '_>], receipts: bool, waits: Waits) {
        let await_others = runs.len() > 1 && waits == Waits::Yes && runs.iter().any(Run::may_wait);
        runs.iter_mut().for_each(|run| run.awaits_others = await_others);
        let mut answers = Vec::new();
        while let Some(store) = runs.iter().filter_map(Run::next_store).min() {
            if waits == Waits::Yes && self.routes.store(store).caps().may_wait {
                self.fail_late(runs, store);
            }
            let asked: SmallVec<[usize; 4]> =
                (0..runs.len()).filter(|at| runs[*at].next_store() == Some(store)).collect();
            if asked.is_empty() {
                continue;
            }
            let later = {
                let charges: SmallVec<[_; 2]> = asked.iter().map(|at| runs[*at].charges()).collect();
                let steps: SmallVec<[Step<'_>; 2]> = asked
                    .iter()
                    .zip(&charges)
                    .map(|(at, charges)| runs[*at].step(charges, receipts))
                    .collect();
                match waits {
                    Waits::Yes => self.routes.store(store).execute_each(&steps, &mut answers),
                    Waits::No | Waits::Unwatched => {
                        // One by one: of a batch that is dropped without being polled, a store may have executed some
                        // steps.
                        answers.extend(steps.iter().map(|step| executed_now(self.routes.store(store), step)));
                        None
                    }
                }
            };
            if let Some(later) = later {
                let (runs, asked) = (&*runs, &asked);
                let undo = |later| {
                    let steps = asked.iter().map(|at| runs[*at].step_to_undo()).collect();
                    undo_later(self.routes.share(store), steps, later)
                };
                // The steps are one exchange, which continues as long as any request wants its answer: until the latest
                // deadline, or without limit if one request has none.
                let deadlines = asked.iter().map(|at| runs[*at].deadline);
                let deadline =
                    deadlines.reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other)));
                let in_flight = InFlight::new(later, &self.background, &undo);
                let answered = self.before(deadline.flatten(), in_flight).await;
                answers = answered
                    .unwrap_or_else(|| asked.iter().map(|_| Err(StoreError::DeadlinePassed)).collect());
            }
            // If an engine answers fewer steps than it was asked, the answers for the rest count as unavailable.
            answers.resize_with(asked.len(), || {
                let reason = "it answered fewer steps than it was asked".to_owned();
                Err(StoreError::Unavailable { reason })
            });
            for (at, answer) in asked.iter().zip(answers.drain(..)) {
                runs[*at].take(answer);
            }
        }
        for run in runs {
            run.undo(waits).await;
        }
    }

    /// Fails requests whose deadline has passed before an engine is asked.
    fn fail_late(&self, runs: &mut [Run<'_, '_>], store: usize) {
        for run in runs.iter_mut().filter(|run| run.next_store() == Some(store)) {
            if run.deadline.is_some_and(|deadline| deadline <= self.time.now()) {
                run.fail(StoreError::DeadlinePassed);
            }
        }
    }

    /// Awaits a future until a deadline, if there is one; `None` if the future was not ready by then.
    pub(super) async fn before<T>(
        &self,
        deadline: Option<Tick>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match deadline {
            None => Some(future.await),
            Some(deadline) => clock::before(self.time.clock(), deadline, future).await,
        }
    }
}

/// Has a store execute a step for a caller that cannot wait.
fn executed_now(store: &dyn Store, step: &Step<'_>) -> StepAnswer {
    let mut executed = Executed::default();
    match store.execute_into(step, &mut executed) {
        Execution::Done(done) => done.map(|()| executed),
        // Dropped without being polled, so the engine was not asked.
        Execution::Later(_) => Err(StoreError::MustWait),
    }
}
