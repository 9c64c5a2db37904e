//! What protects a simulated service: the library's own types, on a virtual clock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::breaker::{Call, CircuitBreaker};
use tidegate::bulkhead::{Enter, Permit, Tenants};
use tidegate::clock::{Clock, Sleep};
use tidegate::concurrency::{Aimd, Bounds, Gradient, Law, MinLatency, Partition, Vegas};
use tidegate::priority::Criticality;
use tidegate::{Breaker, Bulkhead, Outcome, Tick};

use super::engine::Key;
use super::service::Service;

/// The largest limit that the published laws may set. Their own largest limits, 200 and 1000, are below what some of
/// these services need.
const MOST: u64 = 10_000;

/// A way to protect a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// What `ServerStack::self_tuning` puts around a service.
    Tidegate,
    /// The same, and a breaker with its default settings in front, as around a client.
    WithBreaker,
    Nothing,
    Gradient2,
    Aimd,
    Vegas,
    Envoy,
    /// A fixed number of places, and no queue in front.
    Fixed(u64),
}

/// The published laws, with the numbers of their authors.
pub(super) const LAWS: [Protection; 4] =
    [Protection::Gradient2, Protection::Aimd, Protection::Vegas, Protection::Envoy];

impl Protection {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::WithBreaker => "tidegate with breaker",
            Self::Nothing => "nothing",
            Self::Gradient2 => "gradient2",
            Self::Aimd => "aimd",
            Self::Vegas => "vegas",
            Self::Envoy => "envoy",
            Self::Fixed(_) => "ideal",
        }
    }

    fn bulkhead(self, service: &Service) -> Option<Bulkhead> {
        const IN_RANGE: &str = "the numbers of a law are in range";
        let from = |least| Bounds::new(least, MOST).expect(IN_RANGE);
        Some(match self {
            Self::Nothing => return None,
            Self::Tidegate | Self::WithBreaker if service.tenants => {
                Bulkhead::self_tuning().with_tenants(tenants(service))
            }
            Self::Tidegate | Self::WithBreaker => Bulkhead::self_tuning(),
            Self::Gradient2 => by_law(Gradient::netflix().bounds(from(1))),
            Self::Aimd => {
                // Its users set the time-out to what callers wait. It asks for more than that, and work that is cut off
                // takes exactly that.
                let timeout = Duration::from_secs_f64(service.callers.within * 0.99);
                by_law(Aimd::netflix().bounds(from(1)).timeout(timeout).expect(IN_RANGE))
            }
            Self::Vegas => by_law(Vegas::netflix().bounds(from(1))),
            // It measures with three at a time, and begins with that.
            Self::Envoy => by_law(MinLatency::envoy().bounds(from(3).start_at(3).expect(IN_RANGE))),
            Self::Fixed(places) => Bulkhead::new(places).expect(IN_RANGE).with_room(0),
        })
    }
}

/// Returns a limit as those libraries have it: whoever finds no place is refused at once.
fn by_law<L>(law: L) -> Bulkhead
where
    L: Law + Send + 'static,
    L::State: Send,
{
    Bulkhead::adaptive(law).with_room(0)
}

/// Returns even guarantees of nine tenths of the places. Some are left for tenants that nobody knows.
fn tenants(service: &Service) -> Tenants {
    const FIT: &str = "the guarantees fit";
    let each = u8::try_from(90 / service.classes.len()).expect(FIT);
    let terms = Partition::default().guaranteed(each).expect(FIT);
    let named = |tenants: Tenants, name: &'static str| tenants.named(name, terms).expect(FIT);
    service.classes.iter().map(|class| class.name).fold(Tenants::default(), named)
}

/// A clock that stands where the run stands.
#[derive(Clone, Debug, Default)]
struct VirtualClock {
    hands: Arc<Hands>,
}

#[derive(Debug, Default)]
struct Hands {
    now: AtomicU64,
    /// The end of the last sleep that was asked for. The run polls the sleeper again then, so no timer is needed.
    wakes: AtomicU64,
}

impl Clock for VirtualClock {
    fn now(&self) -> Tick {
        // Relaxed, here and below: a run has one thread.
        Tick::from_nanos(self.hands.now.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, tick: Tick) -> Sleep {
        self.hands.wakes.store(tick.as_nanos(), Ordering::Relaxed);
        let clock = self.clone();
        Box::pin(poll_fn(move |_| if clock.now() >= tick { Poll::Ready(()) } else { Poll::Pending }))
    }
}

/// Notes whose turn has come.
struct Bell {
    key: Key,
    rung: Arc<Mutex<Vec<Key>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.lock().push(self.key);
    }
}

pub(super) struct Guard {
    bulkhead: Option<Bulkhead>,
    breaker: Option<Breaker>,
    clock: VirtualClock,
    rung: Arc<Mutex<Vec<Key>>>,
}

/// What a request says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks {
    pub(super) level: Criticality,
    pub(super) tenant: Option<&'static str>,
    /// Nanoseconds since the start.
    pub(super) deadline: Option<u64>,
}

/// What a request inside holds. Dropped, it reports no outcome.
pub(super) struct Pass {
    permit: Option<Permit>,
    call: Option<Box<Call>>,
}

impl Pass {
    pub(super) fn leave(self, outcome: Outcome) {
        if let Some(permit) = self.permit {
            permit.leave(outcome);
        }
        if let Some(call) = self.call {
            call.leave(outcome);
        }
    }
}

/// A request that waits for a place. Dropped, it leaves the queue.
pub(super) struct Waiter {
    entry: Enter,
    call: Option<Box<Call>>,
}

pub(super) enum Answer {
    Refused,
    In(Pass),
    /// It waits, until the bell or until this time, if any; then ask again.
    Waits(Box<Waiter>, Option<u64>),
}

impl Guard {
    pub(super) fn new(protection: Protection, service: &Service) -> Self {
        let clock = VirtualClock::default();
        let bulkhead = protection.bulkhead(service).map(|bulkhead| bulkhead.with_clock(clock.clone()));
        let breaker = (protection == Protection::WithBreaker).then(|| {
            let breaker = Breaker::new(CircuitBreaker::builder()).expect("the defaults are in range");
            breaker.with_clock(clock.clone())
        });
        Self { bulkhead, breaker, clock, rung: Arc::default() }
    }

    pub(super) fn set(&self, now: u64) {
        self.clock.hands.now.store(now, Ordering::Relaxed);
    }

    pub(super) fn ask(&self, key: Key, asks: Asks) -> Answer {
        let call = match self.breaker.as_ref().map(Breaker::try_enter) {
            Some(Err(_)) => return Answer::Refused,
            Some(Ok(call)) => Some(Box::new(call)),
            None => None,
        };
        let Some(bulkhead) = &self.bulkhead else { return Answer::In(Pass { permit: None, call }) };
        let mut entry = bulkhead.enter().priority(asks.level);
        if let Some(tenant) = asks.tenant {
            entry = entry.of(tenant);
        }
        if let Some(deadline) = asks.deadline {
            entry = entry.until(Tick::from_nanos(deadline));
        }
        match entry.try_now() {
            Some(permit) => Answer::In(Pass { permit: Some(permit), call }),
            None => self.ask_again(key, Box::new(Waiter { entry, call })),
        }
    }

    /// Asks for one who waits, or who has found no place at once.
    pub(super) fn ask_again(&self, key: Key, mut waiter: Box<Waiter>) -> Answer {
        self.clock.hands.wakes.store(u64::MAX, Ordering::Relaxed);
        let waker = Waker::from(Arc::new(Bell { key, rung: Arc::clone(&self.rung) }));
        match Pin::new(&mut waiter.entry).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(permit)) => {
                let Waiter { mut call, .. } = *waiter;
                if let Some(call) = &mut call {
                    call.work_begins();
                }
                Answer::In(Pass { permit: Some(permit), call })
            }
            Poll::Ready(Err(_)) => Answer::Refused,
            Poll::Pending => {
                let wakes = self.clock.hands.wakes.load(Ordering::Relaxed);
                Answer::Waits(waiter, (wakes < u64::MAX).then_some(wakes))
            }
        }
    }

    /// Takes the requests whose bell has rung, in that order. `into` is empty before.
    pub(super) fn take_rung(&self, into: &mut Vec<Key>) {
        std::mem::swap(into, &mut *self.rung.lock());
    }
}
