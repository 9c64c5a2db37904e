//! The bound of a client's whole call: its waits for a turn, its tries, and the waits between them.
//!
//! This layer is outside the retries, and carries a deadline, so that retries, queues and rate limits inside see it.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tidegate::deadline::carried;
use tidegate::observer::RefusalCause;
use tower_layer::{Identity, Layer};
use tower_service::Service;

use super::forward::ForwardDeadlineLayer;
use super::rules::DeadlineRules;
use super::serve::{DeadlineFuture, DeadlineLayer, Scope, Until};
use crate::answers::{Answers, Errors};
use crate::body::AtHead;
use crate::call_notes::is_only_ceiling;
use crate::layered::{Layered, give_back};

/// A deadline layer of a client that bounds each try, from which [`ClientStack`](crate::ClientStack) makes the layer that
/// bounds the whole call: [`ForwardDeadlineLayer`], or `Identity` for none. With a [`DeadlineLayer`] in that place nothing
/// bounds the whole call.
///
/// # Examples
/// A layer of the program's own that bounds each try, in a stack that does not bound the whole call:
/// ```
/// use std::time::Duration;
/// use tidegate_tower::ClientStack;
/// use tidegate_tower::parameter::BoundsCalls;
/// use tower_layer::{Identity, Layer};
///
/// #[derive(Clone)]
/// struct TryTimeout(Duration);
///
/// impl BoundsCalls for TryTimeout {
///     type WholeCall = Identity;
///     fn whole_call(&self) -> Identity {
///         Identity::new()
///     }
/// }
/// # impl<S> Layer<S> for TryTimeout {
/// #     type Service = S;
/// #     fn layer(&self, inner: S) -> S { inner }
/// # }
///
/// let stack = ClientStack::new().deadline(TryTimeout(Duration::from_secs(1)));
/// # let _ = stack;
/// ```
pub trait BoundsCalls {
    /// The layer around the retries.
    type WholeCall;

    /// Makes the layer around the retries.
    fn whole_call(&self) -> Self::WholeCall;
}

impl BoundsCalls for Identity {
    type WholeCall = Self;

    fn whole_call(&self) -> Self {
        Self::new()
    }
}

/// The time that a request names bounds a try, and nothing bounds the whole call.
impl<A, U> BoundsCalls for DeadlineLayer<A, U> {
    type WholeCall = Identity;

    fn whole_call(&self) -> Identity {
        Identity::new()
    }
}

impl<A, U> BoundsCalls for ForwardDeadlineLayer<A, U> {
    type WholeCall = WholeCallLayer<A>;

    fn whole_call(&self) -> WholeCallLayer<A> {
        WholeCallLayer { rules: self.rules() }
    }
}

/// Bounds a client's whole call by the ceiling of its [`ForwardDeadlineLayer`], or by the deadline that the task
/// [carries](tidegate::deadline::carried) if that is earlier: waits for a turn, tries, and waits between tries together.
/// [`ClientStack`](crate::ClientStack) puts it around the retries.
///
/// A call for which no time is left is refused before it takes anything. A call that is not done in time is given up;
/// usually the part of it that waits is the first to notice.
///
/// Costs a reading of the clock, and a timer for a call that is not answered at the first poll.
#[derive(Debug)]
pub struct WholeCallLayer<A = Errors> {
    rules: Arc<DeadlineRules<A>>,
}

impl<A> Clone for WholeCallLayer<A> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<S, A> Layer<S> for WholeCallLayer<A> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, A, B> Service<Request<B>> for Layered<S, WholeCallLayer<A>>
where
    S: Service<Request<B>, Error: 'static> + Clone,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future, S::Response, S::Error, A, AtHead>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.layer.rules;
        let (now, carried) = (rules.clock.now(), carried());
        let ceiling = now.after(rules.timeouts.ceiling());
        let tick = carried.map_or(ceiling, |carried| carried.at(&rules.clock).min(ceiling));
        if !rules.timeouts.leaves(now, tick, rules.needs) {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(rules.refuse(RefusalCause::NoTimeLeft));
        }
        let only_ceiling = carried.is_none_or(is_only_ceiling);
        let until = Until { tick, began: now, scope: Scope::WholeCall { only_ceiling } };
        let future = until.within(|| self.inner.call(request));
        DeadlineFuture::until(future, until, Arc::clone(rules), None)
    }
}
