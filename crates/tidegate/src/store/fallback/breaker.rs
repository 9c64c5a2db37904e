//! Whether the engine is asked, and what is counted while it is not.
//!
//! Closed, every step goes to the engine. Several in a row that stay without an answer open it: from then on steps are decided without
//! the engine, and one step at a time, each a stated interval after the one before, goes to the engine as a probe. The first probe
//! that is answered closes it again. So an outage costs each caller that is under way one deadline, and afterwards one caller per interval;
//! and an engine that comes back meets one step, and the others only when it has answered that one.
//!
//! In a row: a step that is answered begins the count anew, and so does a pause between two failures that is longer than [`WITHIN`]. A
//! step that stays without an answer while one is answered that was asked later does not count: its message was lost, and the engine is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;

/// Failures that are further apart say nothing together: with so little traffic an engine may have gone and come back in between.
pub(super) const WITHIN: Duration = Duration::from_secs(10);

/// What [`Breaker::failures`] is while the engine is not asked.
const DOWN: u32 = u32::MAX;

/// Whether an engine is asked, as a [`super::Fallback`] has found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why the engine is not asked; `None` while it is.
    pub down: Option<Arc<str>>,
    /// Since when this is so, by the fallback's clock; the epoch while nothing has changed yet.
    pub since: Tick,
    /// How many steps were decided without the engine, ever.
    pub without_engine: u64,
}

impl Health {
    /// Says whether the engine is asked.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.down.is_none()
    }
}

/// A change of state, for a log and for metrics: there is one when an engine goes, and one when it is back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Whether the engine is asked from now on.
    pub up: bool,
    /// Why the engine is not asked any more; when it is back, why it had been away.
    pub reason: Arc<str>,
    /// The tick of the change, by the fallback's clock.
    pub at: Tick,
    /// How long the state before had lasted; zero at the first change.
    pub lasted: Duration,
    /// How many steps were decided without the engine since the change before. While it was asked, these are single steps that it could not
    /// decide.
    pub without_engine: u64,
}

/// The function that is told of changes.
pub(super) type Told = dyn Fn(&Change) + Send + Sync;

/// The breaker of one engine.
pub(super) struct Breaker {
    /// How many steps in a row had no answer, or [`DOWN`]. Read by every step. Relaxed: a step that sees an old value asks once more than
    /// it had to, or once less.
    failures: AtomicU32,
    /// When the latest step was asked that was waited for and answered, in nanoseconds. Relaxed: one that is missed counts a failure more.
    answered: AtomicU64,
    without_engine: AtomicU64,
    /// Protects the fields that change together. No foreign code is called while it is held.
    inner: Mutex<Inner>,
    interval: Duration,
    /// How many failures in a row open it.
    opens_after: u32,
    told: Option<Box<Told>>,
}

#[derive(Debug, Default)]
struct Inner {
    down: Option<Arc<str>>,
    since: Option<Tick>,
    /// The value of [`Breaker::without_engine`] at the last change.
    before: u64,
    next_probe: Tick,
    probing: bool,
    /// When the last step failed while the engine was asked.
    last_failure: Tick,
}

/// Where a step goes.
#[derive(Debug)]
pub(super) enum Way {
    /// To the engine.
    Engine,
    /// To the engine, which was away: no other goes there before this one has ended.
    Probe(Probe),
    /// Not to the engine.
    Without,
}

/// A probe under way; dropped without an answer, it lets the next one go.
#[derive(Debug)]
pub(super) struct Probe {
    breaker: Arc<Breaker>,
    asked: bool,
}

impl Probe {
    /// Notes that the probe asks the engine. If a probe is dropped before this, nothing was asked, and the next step becomes a probe at
    /// once.
    pub(super) const fn asks(&mut self) {
        self.asked = true;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let mut inner = self.breaker.inner.lock();
        inner.probing = false;
        if !self.asked {
            inner.next_probe = Tick::EPOCH;
        }
    }
}

impl Breaker {
    pub(super) fn new(interval: Duration, opens_after: u32, told: Option<Box<Told>>) -> Self {
        Self {
            failures: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            without_engine: AtomicU64::new(0),
            inner: Mutex::default(),
            interval,
            // One less than what says that it is open.
            opens_after: opens_after.clamp(1, DOWN - 1),
            told,
        }
    }

    /// Says where a step goes; `now` is asked for only while the engine is away.
    #[inline]
    pub(super) fn way(self: &Arc<Self>, now: impl FnOnce() -> Tick) -> Way {
        if !self.is_down() {
            return Way::Engine;
        }
        let now = now();
        let mut inner = self.inner.lock();
        if inner.down.is_none() {
            return Way::Engine;
        }
        if inner.probing || now < inner.next_probe {
            return Way::Without;
        }
        (inner.probing, inner.next_probe) = (true, now.after(self.interval));
        Way::Probe(Probe { breaker: Arc::clone(self), asked: false })
    }

    #[inline]
    pub(super) fn is_down(&self) -> bool {
        self.failures.load(Ordering::Relaxed) == DOWN
    }

    /// Notes that the engine has not answered a step that was asked at a tick.
    pub(super) fn fails(&self, reason: &str, asked: Tick, now: Tick) {
        let change = {
            let mut inner = self.inner.lock();
            inner.next_probe = now.after(self.interval);
            if let Some(known) = &mut inner.down {
                if **known != *reason {
                    *known = reason.into();
                }
                return;
            }
            let answered = Tick::from_nanos(self.answered.load(Ordering::Relaxed));
            // Not for what was refused at once. A tick to come is of before the clock was set back, and says nothing.
            if asked < now && asked <= answered && answered <= now {
                return;
            }
            let before = self.failures.load(Ordering::Relaxed);
            let together = before > 0 && now.since(inner.last_failure) <= WITHIN;
            inner.last_failure = now;
            let failures = if together { before + 1 } else { 1 };
            if failures < self.opens_after {
                self.failures.store(failures, Ordering::Relaxed);
                return;
            }
            inner.down = Some(reason.into());
            self.failures.store(DOWN, Ordering::Relaxed);
            self.change(&mut inner, false, reason.into(), now)
        };
        self.tell(&change);
    }

    /// Notes that the engine has answered a step that was waited for since a tick.
    pub(super) fn answers_late(&self, asked: Tick) {
        self.answered.fetch_max(asked.as_nanos(), Ordering::Relaxed);
        self.answers_as_ever();
    }

    /// Notes that the engine has answered a step that was no probe. One load, unless the step before it failed.
    #[inline]
    pub(super) fn answers_as_ever(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            let inner = self.inner.lock();
            if inner.down.is_none() {
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Notes that a probe was answered.
    pub(super) fn answers(&self, now: Tick) {
        let change = {
            let mut inner = self.inner.lock();
            let Some(reason) = inner.down.take() else { return };
            self.failures.store(0, Ordering::Relaxed);
            self.change(&mut inner, true, reason, now)
        };
        self.tell(&change);
    }

    /// Notes that a step was decided without the engine.
    pub(super) fn counts(&self) {
        self.without_engine.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn health(&self) -> Health {
        let inner = self.inner.lock();
        Health {
            down: inner.down.clone(),
            since: inner.since.unwrap_or(Tick::EPOCH),
            without_engine: self.without_engine.load(Ordering::Relaxed),
        }
    }

    /// Returns why the engine is away; if it is back by now, says that.
    pub(super) fn reason(&self) -> Arc<str> {
        self.inner.lock().down.clone().unwrap_or_else(|| "it has just come back".into())
    }

    fn change(&self, inner: &mut Inner, up: bool, reason: Arc<str>, at: Tick) -> Change {
        let count = self.without_engine.load(Ordering::Relaxed);
        let lasted = inner.since.map_or(Duration::ZERO, |since| at.since(since));
        let without_engine = count - inner.before;
        (inner.since, inner.before) = (Some(at), count);
        Change { up, reason, at, lasted, without_engine }
    }

    /// Outside the lock: the function that is told may ask for the health.
    fn tell(&self, change: &Change) {
        if let Some(told) = &self.told {
            told(change);
        }
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Breaker").field("health", &self.health()).finish_non_exhaustive()
    }
}
