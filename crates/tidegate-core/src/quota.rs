//! A complete limit of any algorithm, and its state: what policies name and stores keep.
//!
//! Here is the table of all algorithms: [`Quota`] and [`State`] have one variant for each, and pass every call on to it.
//! To add one, change its own file, one line below, and one line in the fixture of byte forms.

mod builder;
mod divided;
mod granted;
mod seen;

use core::time::Duration;

use crate::algorithm::{self, Algorithm, Storable};
use crate::breaker::{CircuitBreaker, CircuitBreakerState};
use crate::bytes::{Bytes, DecodeError, FORMAT, Reader, Writer};
use crate::concurrency::{AdaptiveConcurrency, AdaptiveConcurrencyState, Concurrency, ConcurrencyState};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::error::QuotaError;
use crate::guard::{Finish, Guard, Outcome};
use crate::rate::{
    FixedWindow, FixedWindowState, Gcra, GcraState, GuavaBursty, GuavaState, GuavaWarming, LeakyBucket,
    LeakyBucketState, LeakyQueue, LeakyQueueState, SlidingCounter, SlidingCounterState, SlidingLog,
    SlidingLogState, SlidingWindow, SlidingWindowState, TokenBucket, TokenBucketState, UberPacer,
    UberPacerState, WarmUp, WarmUpState, XTime, XTimeState,
};
use crate::time::{Tick, WallAhead};

pub use builder::QuotaBuilder;

/// The table of algorithms, first limits and then guards: byte, variant, parameters, state. A released byte is never reused.
macro_rules! algorithms {
    (
        limits { $($(#[$doc:meta])* $byte:literal => $name:ident($params:ty, $state:ty);)* }
        guards { $($(#[$gdoc:meta])* $gbyte:literal => $gname:ident($gparams:ty, $gstate:ty);)* }
    ) => {
        /// A complete limit: an algorithm with its parameters. Immutable; it can only be replaced as a whole.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Quota { $($(#[$doc])* $name($params),)* $($(#[$gdoc])* $gname($gparams),)* }

        /// The state of a [`Quota`] for one key.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum State { $($(#[$doc])* $name($state),)* $($(#[$gdoc])* $gname($gstate),)* }

        $(impl From<$params> for Quota {
            fn from(params: $params) -> Self { Self::$name(params) }
        })*

        $(impl From<$gparams> for Quota {
            fn from(params: $gparams) -> Self { Self::$gname(params) }
        })*

        impl Algorithm for Quota {
            type State = State;

            fn fresh(&self, now: Tick) -> State {
                match self {
                    $(Self::$name(params) => State::$name(params.fresh(now)),)*
                    $(Self::$gname(params) => State::$gname(Guard::fresh(params, now)),)*
                }
            }

            fn decide(&self, state: &State, ask: Ask) -> Transition<State> {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => params.decide(state, ask).map(State::$name),)*
                    $((Self::$gname(params), State::$gname(state)) => params.enter(state, ask).map(State::$gname),)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => self.decide(&self.fresh(ask.now), ask),
                }
            }

            fn standing(&self, state: &State, now: Tick) -> Standing {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => params.standing(state, now),)*
                    $((Self::$gname(params), State::$gname(state)) => Guard::standing(params, state, now),)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => self.standing(&self.fresh(now), now),
                }
            }

            fn settle(&self, state: &State, now: Tick, receipt: &Receipt, used: u64) -> State {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => State::$name(params.settle(state, now, receipt, used)),)*
                    $((Self::$gname(params), State::$gname(state)) => match used {
                        0 => State::$gname(params.leave(state, now, receipt, Outcome::Ignored)),
                        _ => State::$gname(state.clone()),
                    },)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => self.fresh(now),
                }
            }

            fn carry(&self, old: &Self, state: &State, now: Tick, how: Replace) -> State {
                match (self, old, state) {
                    $((Self::$name(params), Self::$name(old), State::$name(state)) => {
                        State::$name(params.carry(old, state, now, how))
                    })*
                    $((Self::$gname(params), Self::$gname(old), State::$gname(state)) => {
                        State::$gname(Guard::carry(params, old, state, now, how))
                    })*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    // Units spent do not tell who is inside a guard, nor the reverse.
                    _ if self.is_guard() || old.is_guard() => self.fresh(now),
                    _ => algorithm::carry(self, old, state, now, how),
                }
            }

            fn full_at(&self, state: &State) -> Option<Tick> {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => params.full_at(state),)*
                    $((Self::$gname(params), State::$gname(state)) => Guard::full_at(params, state),)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => Some(Tick::EPOCH),
                }
            }
        }

        impl Quota {
            /// Finishes admitted work: limits are settled with the units used, guards are left with the outcome.
            /// Settling a guard without finishing does nothing, unless 0 units were used, because units do not tell
            /// whether the work is over; then it is left as [`Outcome::Ignored`].
            #[must_use]
            pub fn finish(&self, state: &State, now: Tick, receipt: &Receipt, finish: Finish) -> State {
                match (self, state) {
                    $((Self::$gname(params), State::$gname(state)) => {
                        State::$gname(params.leave(state, now, receipt, finish.outcome))
                    })*
                    _ => self.settle(state, now, receipt, finish.used),
                }
            }

            /// Returns when the places of a receipt lapse unless their holder returns them or [extends](Quota::extend) them
            /// before; [`Tick::MAX`] means never. `None` for limits, and for a breaker.
            #[must_use]
            pub fn lapses_at(&self, receipt: &Receipt) -> Option<Tick> {
                let holds = matches!(self, Self::Concurrency(_) | Self::Adaptive(_));
                holds.then(|| u64::try_from(receipt.marks().0).map_or(Tick::MAX, Tick::from_nanos))
            }

            /// Holds the places of a guard for another time to live: see [`Guard::extend`]. `None` for limits.
            #[must_use]
            pub fn extend(&self, state: &State, now: Tick, receipt: &Receipt) -> Option<(State, Receipt)> {
                match (self, state) {
                    $((Self::$gname(params), State::$gname(state)) => {
                        let (next, receipt) = Guard::extend(params, state, now, receipt)?;
                        Some((State::$gname(next), receipt))
                    })*
                    _ => None,
                }
            }

            /// Returns the state to decide by and to write back, if the clock that wrote `state` has since been set
            /// back by more than [`MAX_STEP_BACK`](crate::time::MAX_STEP_BACK). `None`: `state` is valid as it is;
            /// this costs one comparison.
            ///
            /// The returned state is that of the last change, as if that had been at `now` plus the largest step
            /// back, so a key stands still for no longer. Use it for the first decision after the step. Charges made
            /// before give nothing back afterwards, so settle them with the state as it was written. Units that
            /// returned while the clock was fast are not taken back. The profiles of other libraries are never set
            /// back.
            #[must_use]
            #[inline]
            pub fn set_back(&self, state: &State, now: Tick) -> Option<State> {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => {
                        algorithm::after_step_back(params, state, now).map(State::$name)
                    })*
                    $((Self::$gname(params), State::$gname(state)) => {
                        algorithm::after_step_back(params, state, now).map(State::$gname)
                    })*
                    _ => None,
                }
            }

            /// Returns the tick at which `state` was last changed, if [`Quota::set_back`] would set the state back;
            /// otherwise `None`. For stores whose cells are written under several clocks, where it is not known which
            /// of them is wrong.
            #[must_use]
            #[inline]
            pub fn far_ahead(&self, state: &State, now: Tick) -> Option<Tick> {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => algorithm::far_ahead(params, state, now),)*
                    $((Self::$gname(params), State::$gname(state)) => algorithm::far_ahead(params, state, now),)*
                    _ => None,
                }
            }

            /// Returns a state with the fewer gaps that [`Quota::largest_state`] has room for; `None` if it has no
            /// more than those. Charges older than the gaps that are forgotten may give back less. For an engine that
            /// bounds the size of a key, after a settlement.
            #[must_use]
            pub fn shortened(&self, state: &State) -> Option<State> {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => params.shortened(state).map(State::$name),)*
                    $((Self::$gname(params), State::$gname(state)) => params.shortened(state).map(State::$gname),)*
                    _ => None,
                }
            }

            /// Returns the largest number of bytes that [`State::encode`] returns for a state made by this limit,
            /// with up to 64 reservations and 64 gaps. For an engine that bounds the size of a key, and so refuses
            /// reservations beyond, and [shortens](Quota::shortened) what is settled; the state itself keeps up to
            /// 4,096 reservations, and the gaps of as many.
            ///
            /// If the places or the time to live of a guard were lowered, it may be larger until those who entered
            /// before have left.
            #[must_use]
            pub fn largest_state(&self) -> usize {
                let header = 2;
                header + match self {
                    $(Self::$name(params) => params.largest(),)*
                    $(Self::$gname(params) => params.largest(),)*
                }
            }

            /// Says whether this is a guard, which is entered and left.
            #[must_use]
            pub const fn is_guard(&self) -> bool {
                match self {
                    $(Self::$name(_) => false,)*
                    $(Self::$gname(_) => true,)*
                }
            }

            /// Returns the byte form, header included.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Writer::default();
                out.u8(FORMAT);
                self.write(&mut out);
                out.finish()
            }

            /// Reads a byte form.
            ///
            /// # Errors
            /// [`DecodeError`] when the bytes are not a quota.
            pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let mut from = Reader::open_form(bytes)?;
                let read = Self::read(&mut from)?;
                from.close().map(|()| read)
            }
        }

        impl State {
            /// Returns the byte form, header included.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Writer::default();
                out.u8(FORMAT);
                self.write(&mut out);
                out.finish()
            }

            /// Reads a byte form.
            ///
            /// # Errors
            /// [`DecodeError`] when the bytes are not a state.
            pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let mut from = Reader::open_form(bytes)?;
                let read = Self::read(&mut from)?;
                from.close().map(|()| read)
            }
        }

        impl Bytes for Quota {
            fn write(&self, out: &mut Writer) {
                match self {
                    $(Self::$name(params) => { out.u8($byte); params.write(out); })*
                    $(Self::$gname(params) => { out.u8($gbyte); params.write(out); })*
                }
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match from.u8()? {
                    $($byte => Bytes::read(from).map(Self::$name),)*
                    $($gbyte => Bytes::read(from).map(Self::$gname),)*
                    kind => Err(DecodeError::Kind { kind }),
                }
            }
        }

        impl Bytes for State {
            fn write(&self, out: &mut Writer) {
                match self {
                    $(Self::$name(state) => { out.u8($byte); state.write(out); })*
                    $(Self::$gname(state) => { out.u8($gbyte); state.write(out); })*
                }
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match from.u8()? {
                    $($byte => Bytes::read(from).map(Self::$name),)*
                    $($gbyte => Bytes::read(from).map(Self::$gname),)*
                    kind => Err(DecodeError::Kind { kind }),
                }
            }
        }
    };
}

algorithms! {
    limits {
        /// Generic cell rate algorithm.
        1 => Gcra(Gcra, GcraState);
        /// A count per window: rolling from the first charge, or on the calendar of a time zone.
        2 => FixedWindow(FixedWindow, FixedWindowState);
        /// A count in any span of one window, in buckets.
        3 => SlidingWindow(SlidingWindow, SlidingWindowState);
        /// A count in a window that slides by weighting two fixed ones.
        4 => SlidingCounter(SlidingCounter, SlidingCounterState);
        /// A count in any span of one window, exact.
        5 => SlidingLog(SlidingLog, SlidingLogState);
        /// Token bucket: continuous, at once or at once by the clock, one bandwidth or several.
        6 => TokenBucket(TokenBucket, TokenBucketState);
        /// Leaky bucket as a meter.
        7 => LeakyBucket(LeakyBucket, LeakyBucketState);
        /// Leaky bucket as a queue that delays.
        8 => LeakyQueue(LeakyQueue, LeakyQueueState);
        /// Warm-up of a cold service along a slope.
        9 => WarmUp(WarmUp, WarmUpState);
        /// Profile of golang.org/x/time/rate.
        20 => XTime(XTime, XTimeState);
        /// Profile of go.uber.org/ratelimit.
        21 => UberPacer(UberPacer, UberPacerState);
        /// Profile of Guava's SmoothBursty.
        22 => GuavaBursty(GuavaBursty, GuavaState);
        /// Profile of Guava's SmoothWarmingUp.
        23 => GuavaWarming(GuavaWarming, GuavaState);
    }
    guards {
        /// A fixed number of places in flight.
        40 => Concurrency(Concurrency, ConcurrencyState);
        /// A circuit breaker.
        41 => Breaker(CircuitBreaker, CircuitBreakerState);
        /// A number of places in flight that a law moves.
        42 => Adaptive(AdaptiveConcurrency, AdaptiveConcurrencyState);
    }
}

impl Quota {
    /// Makes a [`Concurrency`] guard with at most `max` places in flight, 1 to [`Concurrency::MAX_PLACES`]. A place
    /// that is not returned within `ttl` of being taken lapses by itself. It is for gates, whose admissions are
    /// finished; a check that is never finished holds its place until then.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] names the number that is out of range.
    pub fn concurrency(max: u64, ttl: Duration) -> Result<Self, QuotaError> {
        Ok(Concurrency::new(max)?.ttl(ttl)?.into())
    }

    /// Makes a calendar window, or a bucket with an [aligned refill](crate::rate::Refill::Aligned), follow the wall
    /// clock that is `wall` ahead of the ticks that it gets; all other limits stay as they are. Without it, such a
    /// limit takes its ticks for the time since 1970. Only the first call for a quota has an effect, and a clone of
    /// the quota follows none.
    ///
    /// # Examples
    /// ```
    /// use tidegate_core::rate::CalendarUnit;
    /// use tidegate_core::time::WallAhead;
    /// use tidegate_core::{Algorithm, Ask, Cost, Quota, Tick, Transition};
    ///
    /// let (quota, wall) = (Quota::per_day(1).calendar_window(CalendarUnit::Day, "UTC")?, WallAhead::default());
    /// quota.follow_wall(&wall);
    /// let ask = Ask::allow(Tick::from_secs(86_400), Cost::ONE);
    /// let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(ask.now), ask) else { panic!("one a day") };
    /// wall.set(3_600_000_000_000);
    /// assert_eq!(quota.standing(&next, ask.now).reset_after.as_secs(), 23 * 3600, "the day is over an hour sooner");
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn follow_wall(&self, wall: &WallAhead) {
        match self {
            Self::FixedWindow(limit) => limit.follow_wall(wall),
            Self::TokenBucket(limit) => limit.follow_wall(wall),
            _ => {}
        }
    }

    /// Returns the number of units or places in all: the units that a full limit grants at once; for a queue also the
    /// units that may wait; for a limit that a law moves, the largest that it may become.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match self {
            Self::LeakyQueue(queue) => queue.slack().saturating_add(1).saturating_add(queue.places()),
            Self::Adaptive(guard) => guard.most(),
            _ => self.standing(&self.fresh(Tick::EPOCH), Tick::EPOCH).limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_forms_come_back() {
        let quota = Quota::per_second(7).burst(3).gcra().unwrap();
        assert_eq!(Quota::decode(&quota.encode()), Ok(quota.clone()));
        let state = quota.fresh(Tick::from_secs(9));
        assert_eq!(State::decode(&state.encode()), Ok(state));
        assert_eq!(State::decode(&[9, 1]), Err(DecodeError::Version { version: 9 }));
    }
}
