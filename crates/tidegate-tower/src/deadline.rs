//! Deadline layers: read the time left from a request, carry it through the task, and tell it to the next service.
//!
//! Here are the settings that the layers and their futures share, and the headers that they read and write.

mod forward;
mod serve;

use std::sync::Arc;
use std::time::Duration;

pub use self::forward::{BoundsCalls, ForwardDeadlineLayer, WholeCallLayer};
pub use self::serve::DeadlineLayer;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate::Tick;
use tidegate::clock::{Clock, SystemClock};
use tidegate::deadline::Timeouts;
use tidegate::deadline::header::{
    ENVOY_TIMEOUT, GRPC_TIMEOUT, read_grpc_timeout, read_millis, write_grpc_timeout,
};
use tidegate::limiter::Retry;
use tidegate::observer::RefusalCause;

use crate::answers::Answers;
use crate::refused::{Name, Refused};

/// The settings of a deadline layer.
#[derive(Clone, Debug)]
struct DeadlineRules<A> {
    name: Name,
    timeouts: Timeouts,
    needs: Duration,
    clock: Arc<dyn Clock>,
    /// The header with the time in milliseconds.
    header: HeaderName,
    /// Whether it is a layer of a client, whose refusals are marked even if nothing around it does that.
    is_of_client: bool,
    answers: A,
}

impl<A> DeadlineRules<A> {
    fn new(timeouts: Timeouts, answers: A) -> Self {
        let clock = Arc::new(SystemClock::new());
        let (name, needs) = (Name::new("deadline"), Duration::ZERO);
        Self { name, timeouts, needs, clock, header: MILLIS, is_of_client: false, answers }
    }

    fn answering<B>(self, answers: B) -> DeadlineRules<B> {
        let Self { name, timeouts, needs, clock, header, is_of_client, .. } = self;
        DeadlineRules { name, timeouts, needs, clock, header, is_of_client, answers }
    }

    /// Returns whether work that was cut off after `time` counts as failed. It does from half of the default on.
    ///
    /// A caller who gives less time than that is impatient. The border is not the default itself, because a deadline that
    /// is handed on is shorter at each service: no service behind the first one could ever fail by hanging.
    fn is_failure_after(&self, time: Duration) -> bool {
        time.saturating_mul(2) >= self.timeouts.default_time()
    }

    /// Returns when the time ends that the called service was told, for a call that is given up at `until`. That is
    /// earlier than `until` by the margin, and by up to the millisecond by which the header rounds down.
    #[cold]
    fn told_time_ends(&self, until: Tick) -> Tick {
        until.before(self.timeouts.margin().saturating_add(Duration::from_millis(1)))
    }

    /// Says whether an error of a called service is the timeout, noticed by a timer of the client within: whether the time
    /// that the service was told is over, and no layer inside has refused the call.
    #[cold]
    fn is_timeout<Err: 'static>(&self, until: Tick, error: &Err) -> bool {
        self.clock.now() >= self.told_time_ends(until) && Refused::of_error(error).is_none()
    }

    /// Makes the result of a refused call, and tells the observer.
    fn refuse<Res, Err>(&self, cause: RefusalCause) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        let refused = self.name.refuse(cause, Retry::Unknown);
        let refused = if self.is_of_client { refused.of_client() } else { refused };
        self.answers.refuse(refused, None)
    }

    /// Makes the refusal that marks an answer of a called service. The observer is not told: the layer refused nothing.
    fn mark(&self, cause: RefusalCause) -> Refused {
        self.name.refusal(cause, Retry::Unknown).of_client()
    }
}

/// The setters that both deadline layers have, and their `Clone`, which asks nothing of the parameters.
macro_rules! knobs {
    ($layer:ident) => {
        impl<A, U> Clone for $layer<A, U> {
            fn clone(&self) -> Self {
                Self { rules: Arc::clone(&self.rules), until: PhantomData }
            }
        }

        impl<A: Clone, U> $layer<A, U> {
            /// Refuses requests with less time left than `least`, the least time that the work takes; the default is
            /// zero. With more than the default time, it refuses all requests whose caller gives no time.
            ///
            /// # Errors
            /// [`QuotaError::Parameter`](tidegate::QuotaError::Parameter) if `least` is above the ceiling: every request
            /// would be refused.
            pub fn needing(self, least: std::time::Duration) -> Result<Self, tidegate::QuotaError> {
                if least > self.rules.timeouts.ceiling() {
                    let want = "is above the ceiling, so every request would be refused; lower it, or raise the ceiling";
                    let value = format!("{least:?}");
                    return Err(tidegate::QuotaError::Parameter { name: "needed time", value, want });
                }
                Ok(self.with(|rules| DeadlineRules { needs: least, ..rules }))
            }

            /// Sets the clock; the default is the [`SystemClock`](tidegate::clock::SystemClock).
            #[must_use]
            pub fn with_clock(self, clock: impl tidegate::clock::Clock + 'static) -> Self {
                self.with(|rules| DeadlineRules { clock: Arc::new(clock), ..rules })
            }

            /// Chooses the header that has the time left in whole milliseconds; the default is
            /// `x-envoy-expected-rq-timeout-ms`. An Envoy between two services overwrites that one with the timeout of its
            /// route, unless its router is told to respect it (`respect_expected_rq_timeout`): choose another name, the same
            /// at both services. `grpc-timeout` is read in any case, and written in gRPC calls.
            #[must_use]
            pub fn in_header(self, name: http::HeaderName) -> Self {
                self.with(|rules| DeadlineRules { header: name, ..rules })
            }

            /// Chooses how refusals are told.
            #[must_use]
            pub fn answering<B>(self, answers: B) -> $layer<B, U> {
                let rules = Arc::new(Arc::unwrap_or_clone(self.rules).answering(answers));
                $layer { rules, until: self.until }
            }

            /// Chooses the name that callers and observers are told; the default is `deadline`.
            #[must_use]
            pub fn named(self, name: &str) -> Self {
                self.with(|rules| DeadlineRules { name: rules.name.renamed(name), ..rules })
            }

            /// Tells `observer` of refusals ([`on_layer`](tidegate::observer::Observer::on_layer)).
            #[must_use]
            pub fn with_observer(self, observer: impl tidegate::observer::Observer + 'static) -> Self {
                self.with(|rules| DeadlineRules { name: rules.name.observed(observer), ..rules })
            }

            fn with(self, change: impl FnOnce(DeadlineRules<A>) -> DeadlineRules<A>) -> Self {
                Self { rules: Arc::new(change(Arc::unwrap_or_clone(self.rules))), until: self.until }
            }
        }
    };
}

pub(super) use knobs;

const GRPC: HeaderName = HeaderName::from_static(GRPC_TIMEOUT);

/// The header that has the time of calls other than gRPC's, in whole milliseconds, unless another one is chosen.
const MILLIS: HeaderName = HeaderName::from_static(ENVOY_TIMEOUT);

/// Reads how much time a request's caller allows: the least of all values of `grpc-timeout` and of the header `millis`
/// that can be read, since a proxy may wait for less time than its client, and may have added its own header to the
/// client's.
fn read(headers: &HeaderMap, millis: &HeaderName) -> Option<Duration> {
    let grpc = shortest(headers, &GRPC, read_grpc_timeout);
    let millis = shortest(headers, millis, read_millis);
    grpc.into_iter().chain(millis).min()
}

/// Returns the shortest of a header's times, in lines of their own or separated by commas, as some proxies join them. Most
/// requests have none, which a single look-up shows.
#[inline]
fn shortest(headers: &HeaderMap, name: &HeaderName, read: fn(&[u8]) -> Option<Duration>) -> Option<Duration> {
    headers.get(name)?;
    let values =
        headers.get_all(name).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    values.filter_map(|value| read(value.trim_ascii())).min()
}

/// Writes how much time is left, into the header `name` unless the request is a gRPC call. Returns `false` if that is zero
/// in the unit of the header.
fn write(headers: &mut HeaderMap, is_grpc: bool, name: &HeaderName, left: Duration) -> bool {
    if is_grpc {
        let value = HeaderValue::try_from(write_grpc_timeout(left));
        headers.insert(GRPC, value.expect("digits and a letter are a header's value"));
        return true;
    }
    let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    headers.insert(name, HeaderValue::from(millis));
    millis > 0
}
