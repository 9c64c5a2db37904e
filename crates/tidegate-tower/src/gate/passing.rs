//! A request on its way through a gate: asks the gate, calls the service, and settles.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use tower_service::Service;

use super::{Describe, GateRules, WhenUndecided};
use crate::answers::Answers;
use crate::body::HoldsUntil;
use crate::call_notes::{Made, outcome_of_drop, turn_came};
use crate::classify::Classify;
use crate::guarded::Entered;
use crate::real_cost::{Charge, Spent};
use crate::refused::{Name, Refused};
use tidegate::deadline::Deadline;
use tidegate::gate::{Admission, Check, Entry, GateDecision};
use tidegate::http_answer::HttpAnswer;
use tidegate::limiter::Retry;
use tidegate::observer::RefusalCause;
use tidegate::priority::Priority;
use tidegate::store::{DecidedBy, StoreError};
use tidegate::{Gate, Outcome, priority};

/// How long an answer that is there waits for an engine to settle its charges: far longer than an engine takes that is
/// well, and short enough for a caller.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

impl<D, C, A> GateRules<D, C, A> {
    /// Asks the gate, calls the service, and settles.
    #[allow(clippy::manual_async_fn, reason = "an async fn keeps each of its arguments twice")]
    pub(super) fn pass<S, B, U>(
        self: Arc<Self>,
        mut ready: S,
        mut later: S,
        mut request: Request<B>,
        deadline: Option<Deadline>,
    ) -> impl Future<Output = Result<U::Response, S::Error>>
    where
        S: Service<Request<B>>,
        D: Describe<Request<B>>,
        C: Classify<S::Response, S::Error>,
        A: Answers<S::Response, S::Error>,
        U: HoldsUntil<S::Response, HeldAdmission>,
    {
        async move {
            let mut described = self.describe.describe(&request);
            if let Some(deadline) = deadline {
                self.gate.state_time_left(&mut described, deadline);
            }
            let mut check = Check::of(&described)
                .maybe_cost(self.describe.cost(&request))
                .priority(self.describe.priority(&request));
            check.deadline = deadline;
            let entry = Admission::ask(Arc::clone(&self.gate), check).await;
            if self.passes_undecided(&entry) {
                drop(entry);
                if self.gate.policies().lets_through() {
                    self.over.remove(request.headers_mut());
                }
                return ready.call(request).await.map(U::refused);
            }
            let mut admission = match entry {
                Ok(Entry::Admitted(admission)) => admission.undo_if_dropped(true),
                Ok(Entry::Refused(decision)) => {
                    let limit_answer = HttpAnswer::of_gate(&decision, &described);
                    return self.refuse(&decision, &limit_answer).map(U::refused);
                }
                Err(error) => {
                    let cause = match error {
                        StoreError::DeadlinePassed => RefusalCause::NoTimeLeft,
                        _ => RefusalCause::Undecided,
                    };
                    let refused = self.name.refuse(cause, Retry::Unknown);
                    return self.answers.refuse(refused, None).map(U::refused);
                }
            };
            if !admission.wait.is_zero() {
                drop(ready);
                // Boxed, because few requests are delayed.
                admission = Box::pin(delayed(admission, &mut later)).await?;
                ready = later;
            }
            let spent = self.settling.then(|| Spent::hand_over(Charge::AwaitingReport, &mut request));
            self.over.replace(&admission, request.headers_mut());
            if !admission.wait.is_zero() || matches!(admission.by, DecidedBy::Engine | DecidedBy::Fallback) {
                turn_came();
            }
            let inside = InGate::new(admission.undo_if_dropped(false), spent, &self.name);
            let priority = inside.decision().priority;
            let mut result = carrying(priority, || Made::new(ready.call(request))).await;
            if let Ok(response) = &mut result {
                self.answers.add_limit_state(response, &HttpAnswer::of_gate(inside.decision(), &described));
            }
            let outcome = self.classify.classify(&result).outcome;
            let is_before_work = self.answers.refusal_in(&result).is_some_and(Refused::is_before_work_here);
            match result {
                Ok(response) if !is_before_work && U::goes_on(&response) => {
                    Ok(U::hold(response, outcome, inside.held()))
                }
                result => {
                    self.end(inside, outcome, is_before_work, deadline).await;
                    result.map(U::refused)
                }
            }
        }
    }

    /// Settles a request whose answer is there. The work is done, so the answer is returned whatever a store does: if the
    /// store fails, the charge stays, and if an engine does not answer in time, it settles in the background.
    async fn end(
        &self,
        inside: InGate<'_>,
        outcome: Outcome,
        is_before_work: bool,
        deadline: Option<Deadline>,
    ) {
        let (admission, spent) = inside.ended(outcome);
        if is_before_work {
            // Boxed, here and below, because few requests end so.
            return self.settle(Box::pin(admission.cancel()).as_mut(), deadline).await;
        }
        match spent.as_ref().and_then(Spent::usage) {
            Some(usage) => {
                let mut ending = Box::pin(admission.finish(outcome).usage(&usage));
                self.settle(ending.as_mut(), deadline).await;
            }
            None => self.settle(pin!(admission.finish(outcome)), deadline).await,
        }
    }

    /// Awaits the end of an admission, until its deadline and for [`SETTLES_WITHIN`] at most.
    async fn settle<E>(&self, mut ending: Pin<&mut E>, deadline: Option<Deadline>)
    where
        E: Future<Output = Result<(), StoreError>>,
    {
        // Usually it is settled at the first poll: then the clock need not be read.
        let first = poll_fn(|cx| Poll::Ready(ending.as_mut().poll(cx))).await;
        let settled = match first {
            Poll::Ready(settled) => Some(settled),
            Poll::Pending => {
                let latest = self.gate.now().after(SETTLES_WITHIN);
                let ending = self.gate.within(deadline.unwrap_or(Deadline::Tick(latest)), ending);
                self.gate.within(latest, ending).await.flatten()
            }
        };
        let late = || {
            let reason = "it did not settle in time, and is asked to in the background".to_owned();
            Err(StoreError::Unavailable { reason })
        };
        if let Err(error) = settled.unwrap_or_else(late) {
            self.name.not_settled(&error);
        }
    }

    /// Returns whether a request passes although no decision about it could be made. It does not if the reason is its
    /// own deadline: its caller chooses that, and would get through uncharged by choosing a short one.
    fn passes_undecided<T>(&self, entry: &Result<T, StoreError>) -> bool {
        let undecided = entry.as_ref().is_err_and(|error| *error != StoreError::DeadlinePassed);
        undecided && self.undecided == WhenUndecided::Pass
    }

    /// Makes the result of a refused call.
    fn refuse<Res, Err>(&self, decision: &GateDecision, limit_answer: &HttpAnswer<'_>) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        let too_late = decision.refusal.as_ref().is_some_and(|refusal| refusal.needs.is_some());
        let cause = if too_late { RefusalCause::NoTimeLeft } else { RefusalCause::Policy };
        let mut refused = self.name.refuse(cause, decision.retry());
        if let Some(policy) = limit_answer.policy() {
            refused.by = policy.into();
        }
        self.answers.refuse(refused, Some(limit_answer))
    }
}

/// Waits as long as a queue delays an admission, and then until the service is ready. If it is dropped before that, or
/// the service fails, the admission is undone: the service was not called.
async fn delayed<S: Service<Req>, Req>(
    admission: Admission<Arc<Gate>>,
    service: &mut S,
) -> Result<Admission<Arc<Gate>>, S::Error> {
    let admission = admission.delayed().await;
    poll_fn(|cx| service.poll_ready(cx)).await?;
    Ok(admission)
}

/// Calls a service with `priority` carried. Carries nothing if the service would find the same priority anyway, so that
/// clients inside do not tell others a default priority as if a caller had named it.
async fn carrying<F: Future>(priority: Priority, call: impl FnOnce() -> F) -> F::Output {
    if priority == priority::carried().unwrap_or_default() {
        return call().await;
    }
    let future = priority::carry(priority, call);
    priority::carry_through(priority, future).await
}

/// An admission of a gate, which the [body](crate::body::HeldBody) of an answer holds until it ends: see
/// [`GateLayer::until_body_ends`](crate::GateLayer::until_body_ends).
pub struct HeldAdmission {
    admission: Admission<Arc<Gate>>,
    spent: Option<Spent>,
    /// Whose observer is told if a store does not settle.
    name: Name,
}

impl Entered for HeldAdmission {
    fn leave(self, outcome: Outcome) {
        finish_unwatched(self.admission, self.spent.as_ref(), outcome, &self.name);
    }
}

impl fmt::Debug for HeldAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldAdmission").field("admission", &self.admission).finish_non_exhaustive()
    }
}

/// Ends an admission whose end nobody awaits, by what the handler has reported.
fn finish_unwatched(admission: Admission<Arc<Gate>>, spent: Option<&Spent>, outcome: Outcome, name: &Name) {
    let usage = spent.and_then(Spent::usage);
    if let Err(error) = admission.finish(outcome).usage(usage.as_ref()).unwatched() {
        name.not_settled(&error);
    }
}

/// An admitted request while its service is being called. Dropped, it reports the outcome of a drop.
struct InGate<'n> {
    /// `None` once it has ended, or a body holds it.
    admission: Option<Admission<Arc<Gate>>>,
    spent: Option<Spent>,
    name: &'n Name,
}

impl<'n> InGate<'n> {
    const fn new(admission: Admission<Arc<Gate>>, spent: Option<Spent>, name: &'n Name) -> Self {
        Self { admission: Some(admission), spent, name }
    }

    fn decision(&self) -> &GateDecision {
        self.admission.as_ref().expect("it has not ended")
    }

    /// Tells the observer how the work ended, and returns the admission, which the caller still has to settle, and what
    /// settles it.
    fn ended(mut self, outcome: Outcome) -> (Admission<Arc<Gate>>, Option<Spent>) {
        self.name.ended(outcome);
        (self.admission.take().expect("it has not ended"), self.spent.take())
    }

    /// Hands the admission over to the body of the answer, which ends it and tells the observer.
    fn held(mut self) -> (HeldAdmission, Name) {
        let (admission, spent) = (self.admission.take().expect("it has not ended"), self.spent.take());
        (HeldAdmission { admission, spent, name: self.name.clone() }, self.name.clone())
    }
}

impl Drop for InGate<'_> {
    fn drop(&mut self) {
        let Some(admission) = self.admission.take() else { return };
        if std::thread::panicking() {
            return;
        }
        let outcome = outcome_of_drop();
        finish_unwatched(admission, self.spent.as_ref(), outcome, self.name);
        self.name.ended(outcome);
    }
}
