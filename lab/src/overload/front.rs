//! The protection in front of a simulated service: a real bulkhead of the library, driven by the virtual clock.
//!
//! Each call enters by [`Bulkhead::enter`] and is polled when it arrives, when the bulkhead wakes it, and when its
//! timer fires. So the figures judge the code that programs run. One published law works at the caller instead and has
//! no places: a throttle alone.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::bulkhead::{Enter, Permit};
use tidegate::clock::{Clock, Sleep};
use tidegate::concurrency::Signal;
use tidegate::concurrency::throttle::{Arrival, Throttle};
use tidegate::limiter::TakeError;
use tidegate::priority::Priority;
use tidegate::{Bulkhead, Outcome, Tick};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Enters,
    /// Asked about again at this time, in nanoseconds.
    WaitsUntil(u64),
    Refused,
}

trait ErasedThrottle: Debug + Send {
    fn admit(&mut self, arrival: &Arrival) -> bool;
    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome);
}

#[derive(Debug)]
struct ThrottleWithState<P, S> {
    parameters: P,
    state: S,
}

impl<T: Throttle + Send> ErasedThrottle for ThrottleWithState<T, T::State>
where
    T::State: Send,
{
    fn admit(&mut self, arrival: &Arrival) -> bool {
        self.parameters.admit(&mut self.state, arrival)
    }

    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome) {
        self.parameters.learn(&mut self.state, at, latency, outcome);
    }
}

#[derive(Debug)]
pub(crate) struct Front {
    bulkhead: Option<Bulkhead>,
    told_deadlines: bool,
    told_priorities: bool,
    /// The throttle at the caller. It learns the outcomes that the caller sees.
    throttle: Option<Box<dyn ErasedThrottle>>,
    clock: Arc<VirtualClock>,
    line: HashMap<u32, Pin<Box<Enter>>>,
    inside: HashMap<u32, Permit>,
    /// The calls that the bulkhead has woken, in order.
    woken: (Sender<u32>, Receiver<u32>),
}

impl Default for Front {
    fn default() -> Self {
        let (line, inside) = (HashMap::new(), HashMap::new());
        let (told_deadlines, told_priorities) = (true, true);
        Self {
            bulkhead: None,
            told_deadlines,
            told_priorities,
            throttle: None,
            clock: Arc::default(),
            line,
            inside,
            woken: channel(),
        }
    }
}

impl Front {
    pub(crate) fn open() -> Self {
        Self::default()
    }

    /// The bulkhead starts afresh, on the virtual clock.
    pub(crate) fn behind(bulkhead: Bulkhead) -> Self {
        let clock = Arc::new(VirtualClock::default());
        Self { bulkhead: Some(bulkhead.with_clock(Arc::clone(&clock))), clock, ..Self::default() }
    }

    /// A throttle at the caller, which refuses a share of the calls.
    pub(crate) fn throttled<T>(throttle: T) -> Self
    where
        T: Throttle + Send + 'static,
        T::State: Send + 'static,
    {
        let state = throttle.start(Tick::EPOCH);
        Self {
            throttle: Some(Box::new(ThrottleWithState { parameters: throttle, state })),
            ..Self::default()
        }
    }

    /// The calls do not say until when their callers wait.
    pub(crate) fn without_deadlines(self) -> Self {
        Self { told_deadlines: false, ..self }
    }

    /// The calls have one priority: only the order of the queue decides who is next.
    pub(crate) fn without_priorities(self) -> Self {
        Self { told_priorities: false, ..self }
    }

    pub(crate) fn limit_now(&self) -> u64 {
        self.bulkhead.as_ref().map_or(u64::MAX, |bulkhead| bulkhead.standing().limit)
    }

    /// Decides about a call that arrives; times are in nanoseconds, `draw` is random for a throttle at the caller. The
    /// bulkhead may answer waiting calls too: call [`Front::answered`] afterwards.
    pub(super) fn arrive(
        &mut self,
        now: u64,
        deadline: u64,
        call: u32,
        priority: Priority,
        draw: u32,
    ) -> Admission {
        let at = self.clock.set(now);
        if let Some(throttle) = &mut self.throttle
            && !throttle.admit(&Arrival { at, priority, draw })
        {
            return Admission::Refused;
        }
        let Some(bulkhead) = &self.bulkhead else { return Admission::Enters };
        let mut entry = bulkhead.enter();
        if self.told_priorities {
            entry = entry.priority(priority);
        }
        if self.told_deadlines {
            entry = entry.until(Tick::from_nanos(deadline));
        }
        self.line.insert(call, Box::pin(entry));
        match self.ask(call) {
            Some(true) => Admission::Enters,
            Some(false) => Admission::Refused,
            None => Admission::WaitsUntil(self.clock.alarm.load(Ordering::Relaxed)),
        }
    }

    /// Asks about a call whose timer has fired: whether it enters; `None` if it still waits, or no longer waits.
    pub(super) fn time_is_up(&mut self, now: u64, call: u32) -> Option<bool> {
        self.clock.set(now);
        self.ask(call)
    }

    /// Returns the next call that the bulkhead has answered, and whether it enters.
    pub(super) fn answered(&mut self) -> Option<(u32, bool)> {
        loop {
            let call = self.woken.1.try_recv().ok()?;
            if let Some(enters) = self.ask(call) {
                return Some((call, enters));
            }
        }
    }

    fn ask(&mut self, call: u32) -> Option<bool> {
        let entry = self.line.get_mut(&call)?;
        let waker = Waker::from(Arc::new(CallWaker { call, woken: self.woken.0.clone() }));
        let Poll::Ready(answer) = entry.as_mut().poll(&mut Context::from_waker(&waker)) else { return None };
        self.line.remove(&call);
        Some(self.keep(call, answer))
    }

    fn keep(&mut self, call: u32, answer: Result<Permit, TakeError>) -> bool {
        answer.map(|permit| self.inside.insert(call, permit)).is_ok()
    }

    pub(super) fn leave(&mut self, now: u64, call: u32, outcome: Outcome) {
        self.clock.set(now);
        if let Some(permit) = self.inside.remove(&call) {
            permit.leave(outcome);
        }
    }

    /// Tells the throttle how an admitted call ended for its caller, who may have stopped waiting.
    pub(super) fn settled(&mut self, now: u64, latency: u64, outcome: Outcome) {
        if let Some(throttle) = &mut self.throttle {
            throttle.learn(Tick::from_nanos(now), Duration::from_nanos(latency), outcome);
        }
    }

    pub(super) fn sense(&mut self, now: u64, signal: Signal) {
        self.clock.set(now);
        if let Some(bulkhead) = &self.bulkhead {
            bulkhead.sense(signal);
        }
    }
}

/// Remembers the timer that was set; the world polls the sleeping call when it fires.
#[derive(Debug, Default)]
struct VirtualClock {
    now: AtomicU64,
    alarm: AtomicU64,
}

impl VirtualClock {
    fn set(&self, now: u64) -> Tick {
        // Relaxed, here and below: a run uses one thread.
        self.now.store(now, Ordering::Relaxed);
        Tick::from_nanos(now)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, tick: Tick) -> Sleep {
        self.alarm.store(tick.as_nanos(), Ordering::Relaxed);
        Box::pin(std::future::pending())
    }
}

struct CallWaker {
    call: u32,
    woken: Sender<u32>,
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        // Fails only after the run has ended, when no call is polled any more.
        let _ = self.woken.send(self.call);
    }
}
