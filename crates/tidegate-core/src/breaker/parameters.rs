//! The parameters of a breaker, checked once, and their byte form.

use core::time::Duration;
use std::sync::Arc;

use super::judgement::Judgement;
use super::outcomes::{Sample, Window};
use super::rules::{BreakerThresholds, WHOLE};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::concurrency::Concurrency;
use crate::error::QuotaError;
use crate::guard::Outcome;
use crate::time::{Rate, Tick, nanos};

/// A circuit breaker: when it trips, how long it opens, and how it admits calls again. Made by
/// [`CircuitBreaker::builder`] or a profile; immutable, cheap to clone.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::breaker::CircuitBreaker;
/// use tidegate_core::{Ask, Cost, Guard, Outcome, Retry, Tick, Transition};
///
/// let breaker = CircuitBreaker::builder().consecutive(1).open_for(Duration::from_secs(5)).jitter(0.0).build()?;
/// let ask = |secs| Ask::allow(Tick::from_secs(secs), Cost::ONE);
/// let Transition::Allowed { next, receipt, .. } = breaker.enter(&breaker.fresh(Tick::EPOCH), ask(0)) else { panic!() };
///
/// let open = breaker.leave(&next, Tick::from_secs(1), &receipt, Outcome::Failure);
/// assert_eq!(breaker.enter(&open, ask(2)), Transition::Denied { retry: Retry::After(Duration::from_secs(4)) });
/// assert!(matches!(breaker.enter(&open, ask(6)), Transition::Allowed { .. }), "a probe");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CircuitBreaker {
    pub(super) parameters: Arc<Parameters>,
}

/// When a breaker compares its figures with their thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Evaluate {
    /// After each call.
    #[default]
    EachCall,
    /// After each call that failed.
    EachFailure,
    /// At the multiples of this span, 1 ms to an hour and at least a thousandth of the window. The breaker then trips
    /// up to one span late.
    Every(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    pub(super) window: Window,
    pub(super) rules: BreakerThresholds,
    /// The largest share of calls, in millionths, that a breaker refuses that sheds; `None` for one that opens.
    pub(super) shed_at_most: Option<u32>,
    /// A call that took longer, in nanoseconds, is slow.
    pub(super) slow_after: u64,
    pub(super) overload_fails: bool,
    pub(super) evaluate: Evaluate,
    pub(super) open: OpenTime,
    /// How many probes may be in flight at the first step, and how long each holds its place.
    pub(super) probes: Concurrency,
    pub(super) judgement: Judgement,
    pub(super) steps: u8,
    /// Nanoseconds after which a trip, or an idle breaker, is forgotten; `u64::MAX` means never.
    pub(super) forget_after: u64,
}

/// How long a breaker opens. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpenTime {
    pub(super) first: u64,
    pub(super) longest: u64,
    /// The factor from each open time to the next, in thousandths.
    pub(super) growth: u32,
    /// The largest share by which an open time is shortened, in millionths.
    pub(super) jitter: u32,
    pub(super) seed: u64,
    /// Whether the first probe comes strictly after the open time rather than at its end.
    pub(super) strict: bool,
}

impl OpenTime {
    /// Returns the open time that follows `before`, 0 if there was none; without jitter.
    pub(super) fn next(&self, before: u64) -> u64 {
        if before == 0 {
            return self.first;
        }
        let next = u128::from(before) * u128::from(self.growth) / 1000;
        u64::try_from(next).unwrap_or(u64::MAX).clamp(self.first, self.longest)
    }

    /// Shortens an open time that begins at `at`. The draw is computed from the seed and the tick. Keys whose figures
    /// are compared at the same boundary trip at the same tick, so the key's first and last use are mixed in, or all
    /// would draw alike.
    pub(super) fn jittered(&self, time: u64, at: Tick, since: Tick, last: Tick) -> u64 {
        let of_key = if at == last { 0 } else { scramble(since.as_nanos() ^ scramble(last.as_nanos())) };
        let draw = scramble(self.seed ^ at.as_nanos() ^ of_key) >> 32;
        let most = u128::from(time) * u128::from(self.jitter) / u128::from(WHOLE);
        // At most `time`.
        time - ((most * u128::from(draw)) >> 32) as u64
    }
}

/// The finalizer of SplitMix64: every bit of the result depends on every bit of the number.
pub(super) const fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Parameters {
    /// Returns the time to live of a call in nanoseconds: its place as a probe is then free again.
    pub(super) fn ttl(&self) -> u64 {
        self.probes.time_to_live().map_or(u64::MAX, nanos)
    }

    /// Returns how late the outcome of a call through a closed breaker counts. A bound is needed, since a store drops
    /// the state of a closed breaker that nobody uses; it depends on the call alone, so that dropping a state early
    /// or late changes no answer.
    pub(super) fn counted_for(&self) -> Duration {
        Duration::from_nanos(self.ttl()).saturating_add(self.counted_beyond_ttl())
    }

    /// Returns by how much longer than its time to live a call counts: by the time after which it is slow, if slow
    /// calls count. Otherwise no call could be slow that is slow only after its time to live.
    pub(super) fn counted_beyond_ttl(&self) -> Duration {
        Duration::from_nanos(if self.rules.slow_ratio.is_some() { self.slow_after } else { 0 })
    }

    pub(super) fn sample(&self, outcome: Outcome, latency: Duration) -> Option<Sample> {
        let failed = match outcome {
            Outcome::Success | Outcome::CallersFault => false,
            Outcome::Failure => true,
            Outcome::Overloaded if self.overload_fails => true,
            Outcome::Overloaded | Outcome::Ignored => return None,
        };
        Some(Sample { failed, slow: nanos(latency) > self.slow_after })
    }

    pub(super) fn places(&self, step: u8) -> Concurrency {
        self.probes.resized(self.probes.max().checked_shl(u32::from(step)).unwrap_or(u64::MAX))
    }

    /// Returns the parameters if all are in range.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] names the one that is not.
    pub(super) fn checked(self) -> Result<Self, QuotaError> {
        let refuse = |name, value: &dyn ToString, want| {
            Err(QuotaError::Parameter { name, value: value.to_string(), want })
        };
        let spans = |span: u64| span > 0 && Duration::from_nanos(span) <= Rate::MAX_PERIOD;
        match self.window {
            Window::Calls(calls) if calls == 0 || calls > Window::MAX_CALLS => {
                return refuse("window", &calls, "is not a number of calls to remember; use 1 to 16384");
            }
            Window::Time { buckets, .. } if buckets == 0 || buckets > Window::MAX_BUCKETS => {
                return refuse("buckets", &buckets, "is not a number of buckets; use 1 to 256");
            }
            Window::Time { span, buckets } if span > Window::MAX_SPAN || nanos(span) < u64::from(buckets) => {
                let span = format!("{span:?}");
                let want = "is out of range; use at least 1 ns for each bucket, and at most a day";
                return refuse("window", &span, want);
            }
            _ => {}
        }
        let rules = &self.rules;
        if !rules.counts_failures() && rules.slow_ratio.is_none() {
            let want = "is not a breaker: set failure_ratio, slow_calls, consecutive or failures";
            return refuse("a breaker without a threshold", &"", want);
        }
        self.check_shedding()?;
        for (name, share) in [("failure_ratio", rules.failure_ratio), ("slow_ratio", rules.slow_ratio)] {
            if let Some(share) = share.filter(|share| *share > WHOLE) {
                return refuse(name, &share, "is more than all calls, in millionths; use 1 to 1000000");
            }
        }
        if let Window::Calls(calls) = self.window {
            let most = "is never reached; use at most the calls of the window";
            let fewer = "is never exceeded; use fewer than the calls of the window";
            let (reached, want) = if rules.above { (calls - 1, fewer) } else { (calls, most) };
            let failures = ("failures", rules.failures.unwrap_or(0), reached, want);
            for (name, number, reached, want) in [("min_calls", rules.min_calls, calls, most), failures] {
                if number > reached {
                    return refuse(name, &format!("{number} with a window of {calls} calls"), want);
                }
            }
        }
        if let Evaluate::Every(span) = self.evaluate {
            let window = match self.window {
                Window::Time { span, .. } => span,
                Window::Calls(_) => Duration::ZERO,
            };
            let shortest = Duration::from_millis(1).max(window / 1000);
            if span < shortest || span > Duration::from_secs(3600) {
                let want = "is not a span to evaluate at; use 1 ms or a thousandth of the window, to an hour";
                return refuse("evaluate", &format!("{span:?}"), want);
            }
        }
        let open = &self.open;
        if !spans(open.first) {
            let first = format!("{:?}", Duration::from_nanos(open.first));
            return refuse("open_for", &first, "is not a time to stay open; use 1 ns to 146 years");
        }
        if !spans(open.longest) || open.longest < open.first {
            let longest = format!("{:?}", Duration::from_nanos(open.longest));
            return refuse("open_at_most", &longest, "is shorter than open_for or longer than 146 years");
        }
        if !(1000..=1_000_000).contains(&open.growth) {
            return refuse("growth", &open.growth, "thousandths is not a growth; use 1000 to 1000000");
        }
        if open.jitter > WHOLE {
            return refuse(
                "jitter",
                &open.jitter,
                "millionths is not a share of the open time; use 0 to 1000000",
            );
        }
        match self.judgement {
            Judgement::Successes(0) | Judgement::Batch(0) => {
                return refuse("judgement", &0, "is not a number of calls to judge by; use 1 or more");
            }
            Judgement::Evidence(risk) if risk == 0 || risk > WHOLE / 5 * 2 => {
                return refuse("judgement", &risk, "millionths is not a risk; use 1 to 400000");
            }
            _ => {}
        }
        if self.steps > CircuitBreaker::MAX_STEPS {
            return refuse("steps", &self.steps, "is not a number of steps; use 0 to 16");
        }
        if self.slow_after > nanos(Rate::MAX_PERIOD) && rules.slow_ratio.is_some() {
            let after = format!("{:?}", Duration::from_nanos(self.slow_after));
            return refuse("slow_after", &after, "is not a latency; use up to 146 years");
        }
        if self.forget_after == 0 {
            return refuse("forget_after", &"0ns", "is not a time after which to forget; use 1 ns or more");
        }
        Ok(self)
    }
}

impl Parameters {
    /// Checks the settings of a breaker that sheds. It needs a share that it allows, and is asked at each call.
    fn check_shedding(&self) -> Result<(), QuotaError> {
        let refuse = |name, value: String, want| Err(QuotaError::Parameter { name, value, want });
        let Some(most) = self.shed_at_most else { return Ok(()) };
        let rules = &self.rules;
        if most == 0 || most > CircuitBreaker::MOST_SHED {
            let want = "millionths is not a share to refuse; use 1 to 990000";
            return refuse("shed_at_most", most.to_string(), want);
        }
        for (name, number) in [("consecutive", rules.consecutive), ("failures", rules.failures)] {
            if let Some(number) = number {
                let want = "is not a share; a breaker that sheds judges by failure_ratio and slow_calls";
                return refuse(name, number.to_string(), want);
            }
        }
        for (name, share) in [("failure_ratio", rules.failure_ratio), ("slow_ratio", rules.slow_ratio)] {
            if share == Some(WHOLE) {
                let want = "allows all calls to fail, so nothing would be shed; use less than 1";
                return refuse(name, "1".to_owned(), want);
            }
        }
        if self.evaluate != Evaluate::EachCall {
            let want = "is not for a breaker that sheds: it compares its figures at each call";
            return refuse("evaluate", format!("{:?}", self.evaluate), want);
        }
        Ok(())
    }
}

impl CircuitBreaker {
    /// The largest share of calls that a breaker that sheds may refuse, in millionths: 99 %. The rest shows whether the
    /// service recovers.
    pub(super) const MOST_SHED: u32 = 990_000;
    pub(super) const MAX_STEPS: u8 = 16;

    /// Returns the time to live of a call: a probe that has not ended by then has lost its place, and its outcome does
    /// not count. `None` if calls may take for ever.
    #[must_use]
    pub fn time_to_live(&self) -> Option<Duration> {
        self.parameters.probes.time_to_live()
    }

    /// Returns the least number of calls in the window by which its shares are judged.
    #[must_use]
    pub fn min_calls(&self) -> u32 {
        self.parameters.rules.min_calls
    }

    /// Returns at which multiples of a span the thresholds are compared, so that such a breaker may open while no call
    /// comes or ends; `None` if the ends of calls decide.
    #[must_use]
    pub fn evaluates_every(&self) -> Option<Duration> {
        match self.parameters.evaluate {
            Evaluate::Every(span) => Some(span),
            Evaluate::EachCall | Evaluate::EachFailure => None,
        }
    }

    /// Returns the largest share of calls that a breaker refuses that sheds; `None` for a breaker that opens.
    #[must_use]
    pub fn sheds_at_most(&self) -> Option<f64> {
        self.parameters.shed_at_most.map(|share| f64::from(share) / f64::from(WHOLE))
    }
}

impl Bytes for CircuitBreaker {
    fn write(&self, out: &mut Writer) {
        let parameters = &*self.parameters;
        // Breakers that shed have tags of their own, so that forms written before there were any still read the same.
        let sheds = if parameters.shed_at_most.is_some() { 2 } else { 0 };
        match parameters.window {
            Window::Calls(calls) => {
                out.u8(sheds);
                out.u32(calls);
            }
            Window::Time { span, buckets } => {
                out.u8(1 + sheds);
                out.u32(buckets);
                out.u64(nanos(span));
            }
        }
        parameters.shed_at_most.iter().for_each(|most| out.u32(*most));
        parameters.rules.write(out);
        out.u64(parameters.slow_after);
        out.u8(u8::from(parameters.overload_fails));
        match parameters.evaluate {
            Evaluate::EachCall => out.u8(0),
            Evaluate::EachFailure => out.u8(1),
            Evaluate::Every(span) => {
                out.u8(2);
                out.u64(nanos(span));
            }
        }
        out.u64(parameters.open.first);
        out.u64(parameters.open.longest);
        out.u32(parameters.open.growth);
        out.u32(parameters.open.jitter);
        out.u64(parameters.open.seed);
        out.u8(u8::from(parameters.open.strict));
        parameters.probes.write(out);
        parameters.judgement.write(out);
        out.u8(parameters.steps);
        out.u64(parameters.forget_after);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let tag = from.u8()?;
        let window = match (tag, from.u32()?) {
            (0 | 2, calls) => Window::Calls(calls),
            (1 | 3, buckets) => Window::Time { span: Duration::from_nanos(from.u64()?), buckets },
            _ => return Err(DecodeError::Value { field: "window" }),
        };
        let shed_at_most = (tag >= 2).then(|| from.u32()).transpose()?;
        let (rules, slow_after, overload_fails) =
            (BreakerThresholds::read(from)?, from.u64()?, from.u8()? != 0);
        let evaluate = match from.u8()? {
            0 => Evaluate::EachCall,
            1 => Evaluate::EachFailure,
            2 => Evaluate::Every(Duration::from_nanos(from.u64()?)),
            _ => return Err(DecodeError::Value { field: "evaluate" }),
        };
        let open = OpenTime {
            first: from.u64()?,
            longest: from.u64()?,
            growth: from.u32()?,
            jitter: from.u32()?,
            seed: from.u64()?,
            strict: from.u8()? != 0,
        };
        let (probes, judgement, steps) = (Concurrency::read(from)?, Judgement::read(from)?, from.u8()?);
        let forget_after = from.u64()?;
        let read = Parameters {
            window,
            rules,
            shed_at_most,
            slow_after,
            overload_fails,
            evaluate,
            open,
            probes,
            judgement,
            steps,
            forget_after,
        };
        let parameters = read.checked().map_err(|_| DecodeError::Value { field: "breaker" })?;
        Ok(Self { parameters: Arc::new(parameters) })
    }
}
