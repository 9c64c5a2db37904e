//! What stands in front of a simulated service: a bulkhead of the library itself, driven by the virtual clock.
//!
//! Nothing of the protection is written a second time here. Each call enters as a program's would, by [`Bulkhead::enter`]; it is polled when it
//! arrives, when the bulkhead wakes it and when its timer goes off; and what the service answered is said by [`Permit::leave`]. So what the
//! figures judge is what programs run. One published protection stands at the caller instead and knows no places: a throttle alone.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::clock::Sleep;
use tidegate::concurrency::Signal;
use tidegate::throttle::{Arrival, Throttle};
use tidegate::{Bulkhead, Clock, Enter, Outcome, Permit, Priority, TakeError, Tick};

/// What is decided of one who arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Enters,
    /// Waits, and has to be asked for again at this time, in nanoseconds.
    WaitsUntil(u64),
    Refused,
}

/// A throttle with its state.
trait Gatekeeper: Debug + Send {
    fn admit(&mut self, arrival: &Arrival) -> bool;
    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome);
}

#[derive(Debug)]
struct With<P, S> {
    parameters: P,
    state: S,
}

impl<T: Throttle + Send> Gatekeeper for With<T, T::State>
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

/// What a protection is made of; each part may be missing.
#[derive(Debug)]
pub struct Front {
    bulkhead: Option<Bulkhead>,
    /// At the caller: it learns how calls end for whoever made them.
    throttle: Option<Box<dyn Gatekeeper>>,
    clock: Arc<Dial>,
    line: HashMap<u32, Pin<Box<Enter>>>,
    inside: HashMap<u32, Permit>,
    /// Those whom the bulkhead has woken, in order.
    woken: (Sender<u32>, Receiver<u32>),
}

impl Default for Front {
    fn default() -> Self {
        let (line, inside) = (HashMap::new(), HashMap::new());
        Self { bulkhead: None, throttle: None, clock: Arc::default(), line, inside, woken: channel() }
    }
}

impl Front {
    /// Everyone enters.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// A bulkhead stands before the service. It begins anew, by the virtual clock.
    #[must_use]
    pub fn behind(bulkhead: Bulkhead) -> Self {
        let clock = Arc::new(Dial::default());
        Self { bulkhead: Some(bulkhead.with_clock(Arc::clone(&clock))), clock, ..Self::default() }
    }

    /// A throttle at the caller refuses a share of the calls.
    #[must_use]
    pub fn throttled<T>(throttle: T) -> Self
    where
        T: Throttle + Send + 'static,
        T::State: Send + 'static,
    {
        let state = throttle.start(Tick::EPOCH);
        Self { throttle: Some(Box::new(With { parameters: throttle, state })), ..Self::default() }
    }

    /// Returns how many may be inside; `u64::MAX` for any number.
    #[must_use]
    pub fn limit_now(&self) -> u64 {
        self.bulkhead.as_ref().map_or(u64::MAX, |bulkhead| bulkhead.standing().limit)
    }

    /// Decides about one who arrives; `draw` is its chance at a caller's throttle. Afterwards others may have been answered:
    /// [`Front::answered`].
    pub(super) fn arrive(&mut self, now: u64, call: u32, priority: Priority, draw: u32) -> Verdict {
        let at = self.clock.set(now);
        if let Some(throttle) = &mut self.throttle
            && !throttle.admit(&Arrival { at, priority, draw })
        {
            return Verdict::Refused;
        }
        let Some(bulkhead) = &self.bulkhead else { return Verdict::Enters };
        self.line.insert(call, Box::pin(bulkhead.enter().priority(priority)));
        match self.ask(call) {
            Some(true) => Verdict::Enters,
            Some(false) => Verdict::Refused,
            None => Verdict::WaitsUntil(self.clock.alarm.load(Ordering::Relaxed)),
        }
    }

    /// Asks for one who waits, whose timer has gone off: whether it enters now, or goes; `None` while it waits, or if it waits no longer.
    pub(super) fn time_is_up(&mut self, now: u64, call: u32) -> Option<bool> {
        self.clock.set(now);
        self.ask(call)
    }

    /// Returns the next of those whom the bulkhead has answered while they waited, and whether it enters.
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
        let waker = Waker::from(Arc::new(Bell { call, woken: self.woken.0.clone() }));
        let Poll::Ready(answer) = entry.as_mut().poll(&mut Context::from_waker(&waker)) else { return None };
        self.line.remove(&call);
        Some(self.keep(call, answer))
    }

    fn keep(&mut self, call: u32, answer: Result<Permit, TakeError>) -> bool {
        answer.map(|permit| self.inside.insert(call, permit)).is_ok()
    }

    /// Takes in that one who was inside has left, and how its work went.
    pub(super) fn leave(&mut self, now: u64, call: u32, outcome: Outcome) {
        self.clock.set(now);
        if let Some(permit) = self.inside.remove(&call) {
            permit.leave(outcome);
        }
    }

    /// Takes in how admitted work ended for its caller, who may have stopped waiting.
    pub(super) fn settled(&mut self, now: u64, latency: u64, outcome: Outcome) {
        if let Some(throttle) = &mut self.throttle {
            throttle.learn(Tick::from_nanos(now), Duration::from_nanos(latency), outcome);
        }
    }

    /// Takes in how busy the processors were.
    pub(super) fn sense(&mut self, now: u64, signal: Signal) {
        self.clock.set(now);
        if let Some(bulkhead) = &self.bulkhead {
            bulkhead.sense(signal);
        }
    }
}

/// The virtual clock as the bulkhead reads it. A timer is remembered, and its sleeper asked for by the world when it goes off.
#[derive(Debug, Default)]
struct Dial {
    now: AtomicU64,
    /// The timer that was set last.
    alarm: AtomicU64,
}

impl Dial {
    fn set(&self, now: u64) -> Tick {
        // Relaxed, here and below: a run is one thread.
        self.now.store(now, Ordering::Relaxed);
        Tick::from_nanos(now)
    }
}

impl Clock for Dial {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, tick: Tick) -> Sleep {
        self.alarm.store(tick.as_nanos(), Ordering::Relaxed);
        Box::pin(std::future::pending())
    }
}

struct Bell {
    call: u32,
    woken: Sender<u32>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // A run that has ended asks for nobody.
        let _ = self.woken.send(self.call);
    }
}
