//! The reason why a layer did not pass a request on, or did not wait for its answer, and the layer's name.

use std::any::{Any, TypeId};
use std::error::Error;
use std::sync::{Arc, PoisonError, RwLock};

use http::{Response, StatusCode};

use crate::call_notes::Surroundings;
use tidegate::http_answer::server_parts::in_words;
use tidegate::limiter::Retry;
use tidegate::observer::{LayerDid, LayerEvent, Observer, RefusalCause};
use tidegate::store::StoreError;
use tidegate::{Outcome, visible};

/// Why a request was not served: an error for clients, from which [`Answers`](crate::parameter::Answers) can make a response.
///
/// Responses of [`Problems`](crate::Problems) and `GrpcStatuses` carry it among their extensions, so that outer layers
/// can tell a refusal by a layer from an answer of the service: see [`ByStatus`](crate::classify::ByStatus).
#[derive(Clone, Debug, thiserror::Error)]
#[error("{by}: {}", self.why_in_full())]
pub struct Refused {
    /// The kind of refusal.
    pub cause: RefusalCause,
    /// The name of the layer or of the policy that refused the request.
    pub by: Arc<str>,
    /// When a retry is worthwhile.
    pub retry: Retry,
    /// What the person said who forced the breaker open; `None` for other causes, and if nothing was said. It is in the
    /// text of this error, for the program and its logs. Responses leave it out, since strangers read them.
    pub reason: Option<Arc<str>>,
    made_inside: Surroundings,
}

/// Two refusals are equal if they say the same.
impl PartialEq for Refused {
    fn eq(&self, other: &Self) -> bool {
        (&self.cause, &self.by, &self.retry, &self.reason)
            == (&other.cause, &other.by, &other.retry, &other.reason)
    }
}

impl Eq for Refused {}

/// Looks for a refusal in an error of one type.
type Look = fn(&dyn Any) -> Option<&Refused>;

/// The program's own error types that may hold a refusal. [`Refused::of_error`] takes errors of any type, also of types
/// that do not implement [`Error`], so it cannot follow the sources of a type that it was not told of.
static OWN_TYPES: RwLock<Vec<(TypeId, Look)>> = RwLock::new(Vec::new());

fn look_of(own: TypeId) -> Option<Look> {
    let types = OWN_TYPES.read().unwrap_or_else(PoisonError::into_inner);
    types.iter().find(|(id, _)| *id == own).map(|(_, look)| *look)
}

impl Refused {
    /// Makes a refusal that does not know when a retry is worthwhile.
    #[must_use]
    pub fn new(cause: RefusalCause, by: &str) -> Self {
        Self::by(cause, by.into(), Retry::Unknown)
    }

    /// Makes a refusal, which records what surrounds the running code.
    pub(crate) fn by(cause: RefusalCause, by: Arc<str>, retry: Retry) -> Self {
        Self { cause, by, retry, reason: None, made_inside: Surroundings::now() }
    }

    /// Returns the refusal as that of a client, also if nothing around the layer marks it as one.
    pub(crate) fn of_client(self) -> Self {
        Self { made_inside: self.made_inside.in_some_client(), ..self }
    }

    pub(crate) fn with_reason(self, reason: Option<&str>) -> Self {
        Self { reason: reason.map(Into::into), ..self }
    }

    /// Returns the cause, and when to try again if that is known: what any caller may read.
    pub(crate) fn why(&self) -> String {
        self.cause.to_string() + &self.again()
    }

    /// Returns the same with the reason that a person gave.
    fn why_in_full(&self) -> String {
        let reason = self.reason.as_deref().map(|reason| format!(": {}", visible::line(reason)));
        self.cause.to_string() + &reason.unwrap_or_default() + &self.again()
    }

    fn again(&self) -> String {
        self.retry.after().map(|wait| format!("; try again in {}", in_words(wait))).unwrap_or_default()
    }

    /// Returns the wait in milliseconds, rounded up so that no caller comes back too early; `None` if it is not known.
    pub(crate) fn retry_after_ms(&self) -> Option<u128> {
        Some(self.retry.after()?.as_nanos().div_ceil(1_000_000))
    }

    /// Returns whether the request or call was refused before any work for it had begun: `false` if its time was up while
    /// it was being worked on. A layer outside that has charged the request gives its charge back then, unless the refusal
    /// is that of a [client](crate::ClientLayer) which the service called, or that of a try after the first of a
    /// [`RetryLayer`](crate::RetryLayer) inside. Layers in a task of their own, such as those inside tower's `Buffer`,
    /// cannot be told that they are a part of either.
    #[must_use]
    pub const fn is_before_work(&self) -> bool {
        !matches!(self.cause, RefusalCause::TimedOut | RefusalCause::CutShort)
    }

    /// Returns whether no work had begun for the request that the running code serves: neither a client nor a further try
    /// inside it made the refusal.
    pub(crate) fn is_before_work_here(&self) -> bool {
        self.is_before_work() && !self.made_inside.is_further_inside()
    }

    /// Returns the HTTP status: 429 if the caller asked too often, 400 if its key could not be read, 504 if the time was
    /// up, else 503. Clients retry a 503, but should not retry a request that was cut off and may have taken effect: so that
    /// is 504.
    ///
    /// A policy of a gate chooses the status of its own response; this function returns 429 for it. It returns 504 for
    /// a request that comes too late, for which the policy's own default is 503.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.cause {
            RefusalCause::RateLimit | RefusalCause::Policy => StatusCode::TOO_MANY_REQUESTS,
            RefusalCause::NoKey => StatusCode::BAD_REQUEST,
            RefusalCause::NoTimeLeft | RefusalCause::TimedOut | RefusalCause::CutShort => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the refusal that a response was made from, or that a layer has added to it, if any.
    #[must_use]
    pub fn of_response<B>(response: &Response<B>) -> Option<&Self> {
        response.extensions().get()
    }

    /// Returns the refusal if the error is one, or has one in its chain of [sources](Error::source): a `Refused`, a boxed
    /// error, or an error of the program's own type that [`OwnErrors`](crate::parameter::OwnErrors) has made or that
    /// [`Refused::look_into`] names. `None` for errors of other types, whatever they hold.
    #[must_use]
    pub fn of_error<E: 'static>(error: &E) -> Option<&Self> {
        let error: &dyn Any = error;
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        if let Some(boxed) = error.downcast_ref::<Box<dyn Error + Send + Sync>>() {
            return Self::of_source(&**boxed);
        }
        if let Some(boxed) = error.downcast_ref::<Box<dyn Error>>() {
            return Self::of_source(&**boxed);
        }
        look_of(TypeId::of::<E>()).and_then(|look| look(error))
    }

    /// Lets [`Refused::of_error`], and so [`ByStatus`](crate::classify::ByStatus), find refusals in the sources of
    /// errors of type `E`, in the whole program. [`OwnErrors`](crate::parameter::OwnErrors) does that for the errors
    /// that it makes. Call it once for a type into which the program converts other errors, before a layer outside of
    /// the conversion is called.
    ///
    /// # Examples
    /// ```
    /// use tidegate_tower::{RefusalCause, Refused};
    ///
    /// #[derive(Debug, thiserror::Error)]
    /// #[error("the stock was not asked")]
    /// struct NotAsked(#[source] Box<dyn std::error::Error + Send + Sync>);
    ///
    /// let error = NotAsked(Refused::new(RefusalCause::Open, "stock").into());
    /// assert_eq!(Refused::of_error(&error), None);
    /// Refused::look_into::<NotAsked>();
    /// assert!(Refused::of_error(&error).is_some());
    /// ```
    pub fn look_into<E: Error + 'static>() {
        let own = TypeId::of::<E>();
        // Read first: all calls but the first find it.
        if look_of(own).is_none() {
            let look: Look = |error| Self::of_source(error.downcast_ref::<E>()?);
            OWN_TYPES.write().unwrap_or_else(PoisonError::into_inner).push((own, look));
        }
    }

    /// Returns the refusal if the error is one, or has one in its chain of [sources](Error::source).
    pub(crate) fn of_source<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(refused) = error.downcast_ref() {
                return Some(refused);
            }
            next = error.source();
        }
        None
    }
}

/// A layer's name and its observer. Without an observer, an event costs one branch.
#[derive(Clone, Debug)]
pub struct Name {
    name: Arc<str>,
    observer: Option<Arc<dyn Observer>>,
}

impl Name {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), observer: None }
    }

    pub(crate) fn renamed(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    pub(crate) fn observed(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Makes a refusal by this layer, and tells the observer.
    pub(crate) fn refuse(&self, cause: RefusalCause, retry: Retry) -> Refused {
        self.notify(LayerDid::Refused { cause, retry });
        self.refusal(cause, retry)
    }

    /// Makes a refusal by this layer, and tells nobody.
    pub(crate) fn refusal(&self, cause: RefusalCause, retry: Retry) -> Refused {
        Refused::by(cause, Arc::clone(&self.name), retry)
    }

    pub(crate) fn notify(&self, did: LayerDid) {
        if let Some(observer) = &self.observer {
            observer.on_layer(&LayerEvent::new(&self.name, did));
        }
    }

    /// Tells the observer that a store failed to settle a request.
    pub(crate) fn not_settled(&self, error: &StoreError) {
        if let Some(observer) = &self.observer {
            observer.on_layer(&LayerEvent::new(&self.name, LayerDid::NotSettled).with_error(error));
        }
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        self.notify(LayerDid::Ended { outcome });
    }
}
