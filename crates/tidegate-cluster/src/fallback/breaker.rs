//! A circuit breaker for the engine, with the statistics of outages.
//!
//! While it is closed, every step goes to the engine. Several unanswered steps in a row open it: then one step at a
//! time, each a stated interval after the one before, goes to the engine as a probe. The first probe that is answered
//! closes it again.
//!
//! An answered step ends the row, and so does a pause longer than [`WITHIN`]. A step does not count if one that was
//! asked later was answered: then a message was lost, and the engine is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;

/// Failures further apart are not in a row: with so little traffic, the engine may have gone and come back in between.
pub(super) const WITHIN: Duration = Duration::from_secs(10);

/// The value of [`Breaker::failures`] while the engine is not asked.
const DOWN: u32 = u32::MAX;

/// The state of an engine, as a [`super::Fallback`] sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why the engine is not asked; `None` while it is.
    pub down: Option<Arc<str>>,
    /// Since when the engine has been up or down, by the fallback's clock; the epoch before the first change.
    pub since: Tick,
    /// The total number of steps decided without the engine.
    pub without_engine: u64,
}

/// A change of state, for logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Whether the engine is asked from now on.
    pub up: bool,
    /// Why the engine is no longer asked; when it is back, why it was not asked.
    pub reason: Arc<str>,
    /// The tick of the change, by the fallback's clock.
    pub at: Tick,
    /// How long the former state lasted; zero at the first change.
    pub lasted: Duration,
    /// How many steps were decided without the engine since the former change. While the engine was up, these are
    /// single steps that it could not decide.
    pub without_engine: u64,
}

pub(super) type ChangeCallback = dyn Fn(&Change) + Send + Sync;

pub(super) struct Breaker {
    /// The number of unanswered steps in a row, or [`DOWN`]. Relaxed: a step that sees an old value asks once too often
    /// or too rarely.
    failures: AtomicU32,
    /// The tick at which the latest answered step was asked, in nanoseconds. Relaxed: a missed update counts one
    /// failure too many.
    answered: AtomicU64,
    without_engine: AtomicU64,
    /// Protects the fields that change together. No foreign code is called while it is held.
    inner: Mutex<EngineHealth>,
    interval: Duration,
    opens_after: u32,
    on_change: Option<Box<ChangeCallback>>,
}

#[derive(Debug, Default)]
struct EngineHealth {
    down: Option<Arc<str>>,
    since: Option<Tick>,
    /// The value of [`Breaker::without_engine`] at the last change.
    before: u64,
    next_probe: Tick,
    probing: bool,
    /// When the last step failed while the engine was asked.
    last_failure: Tick,
}

#[derive(Debug)]
pub(super) enum Route {
    Engine,
    /// To the engine, which was gone: no other step goes there before this one has ended.
    Probe(Probe),
    WithoutEngine,
}

/// A probe under way. If it is dropped without an answer, the next probe may go.
#[derive(Debug)]
pub(super) struct Probe {
    breaker: Arc<Breaker>,
    asked: bool,
}

impl Probe {
    /// Notes that the probe asks the engine. Dropped before, it makes the next step a probe at once.
    pub(super) const fn mark_asked(&mut self) {
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
    pub(super) fn new(interval: Duration, opens_after: u32, on_change: Option<Box<ChangeCallback>>) -> Self {
        Self {
            failures: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            without_engine: AtomicU64::new(0),
            inner: Mutex::default(),
            interval,
            // At most one less than the value that means open.
            opens_after: opens_after.clamp(1, DOWN - 1),
            on_change,
        }
    }

    /// Returns where a step goes; calls `now` only while the engine is gone.
    #[inline]
    pub(super) fn route(self: &Arc<Self>, now: impl FnOnce() -> Tick) -> Route {
        if !self.is_down() {
            return Route::Engine;
        }
        let now = now();
        let mut inner = self.inner.lock();
        if inner.down.is_none() {
            return Route::Engine;
        }
        if inner.probing || now < inner.next_probe {
            return Route::WithoutEngine;
        }
        (inner.probing, inner.next_probe) = (true, now.after(self.interval));
        Route::Probe(Probe { breaker: Arc::clone(self), asked: false })
    }

    #[inline]
    pub(super) fn is_down(&self) -> bool {
        self.failures.load(Ordering::Relaxed) == DOWN
    }

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
            // A failure does not count if a later step was answered. This is not for steps refused at once, and
            // ignores an answer dated in the future, from before the clock was set back.
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
        self.call_on_change(&change);
    }

    pub(super) fn answers_late(&self, asked: Tick) {
        self.answered.fetch_max(asked.as_nanos(), Ordering::Relaxed);
        self.answers_as_ever();
    }

    /// Notes an answer to a step that was not a probe: one atomic load, unless the step before it failed.
    #[inline]
    pub(super) fn answers_as_ever(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            let inner = self.inner.lock();
            if inner.down.is_none() {
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn answers(&self, now: Tick) {
        let change = {
            let mut inner = self.inner.lock();
            let Some(reason) = inner.down.take() else { return };
            self.failures.store(0, Ordering::Relaxed);
            self.change(&mut inner, true, reason, now)
        };
        self.call_on_change(&change);
    }

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

    pub(super) fn reason(&self) -> Arc<str> {
        self.inner.lock().down.clone().unwrap_or_else(|| "it has just come back".into())
    }

    fn change(&self, inner: &mut EngineHealth, up: bool, reason: Arc<str>, at: Tick) -> Change {
        let count = self.without_engine.load(Ordering::Relaxed);
        let lasted = inner.since.map_or(Duration::ZERO, |since| at.since(since));
        let without_engine = count - inner.before;
        (inner.since, inner.before) = (Some(at), count);
        Change { up, reason, at, lasted, without_engine }
    }

    /// Reports a change. Called outside the lock, because the function may ask for the health.
    fn call_on_change(&self, change: &Change) {
        if let Some(on_change) = &self.on_change {
            on_change(change);
        }
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Breaker").field("health", &self.health()).finish_non_exhaustive()
    }
}
