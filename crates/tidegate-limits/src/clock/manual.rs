//! A clock that is set by hand.
//!
//! Moving the time wakes the sleepers that are due, in the order of their ticks.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::time::WallAhead;

use super::{Clock, Sleep};
use crate::block_on::block_on;

/// A clock that moves only when told to; clones share the time.
///
/// Waits on it end only when the time is moved past their tick. [`ManualClock::sleepers`] shows a test that a waiter on
/// another thread or task has gone to sleep.
///
/// # Examples
///
/// A wait of an hour, tested in no time:
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tidegate::clock::ManualClock;
/// use tidegate::{Cost, Limiter, Quota};
///
/// let clock = ManualClock::default();
/// let limiter = Limiter::new(Quota::per_hour(1))?.with_clock(clock.clone());
/// assert!(limiter.allow().is_allowed());
/// let waiter = std::thread::spawn(move || limiter.wait(Cost::ONE).within(Duration::MAX).blocking());
/// while clock.sleepers() == 0 {
///     std::thread::yield_now();
/// }
/// clock.advance(Duration::from_secs(3600));
/// assert!(waiter.join().unwrap().is_ok());
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    hands: Arc<Hands>,
}

#[derive(Debug, Default)]
struct Hands {
    nanos: AtomicU64,
    wall: WallAhead,
    /// Protects the register of sleepers; wakers are called after it is released.
    sleepers: Mutex<Sleepers>,
}

#[derive(Debug, Default)]
struct Sleepers {
    arrivals: u64,
    wakers: BTreeMap<(Tick, u64), Waker>,
}

impl ManualClock {
    /// Makes a clock that stands at `tick`.
    #[must_use]
    pub fn at(tick: Tick) -> Self {
        let clock = Self::default();
        clock.set(tick);
        clock
    }

    /// Moves the time forward and wakes the sleepers that are due; saturates at [`Tick::MAX`].
    pub fn advance(&self, by: Duration) {
        let by = tidegate_core::time::nanos(by);
        // Relaxed: the tick publishes only itself; sleepers read it under the lock that `wake` takes next.
        let step = |now: u64| Some(now.saturating_add(by));
        let _ = self.hands.nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        self.wake();
    }

    /// Sets the time to `tick`, forward or back, and wakes the sleepers that are due.
    pub fn set(&self, tick: Tick) {
        self.hands.nanos.store(tick.as_nanos(), Ordering::Relaxed);
        self.wake();
    }

    /// Sets the wall clock to `wall`, a tick that counts from 1970. The clock's own time does not move: only calendar
    /// windows and aligned refills follow.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::limiter::rate::CalendarUnit;
    /// use tidegate::{Limiter, Quota, Tick};
    ///
    /// let clock = ManualClock::at(Tick::from_secs(86_400));
    /// let daily = Limiter::new(Quota::per_day(1).calendar_window(CalendarUnit::Day, "UTC")?)?.with_clock(clock.clone());
    /// assert!(daily.allow().is_allowed());
    /// clock.set_wall(Tick::from_secs(2 * 86_400));
    /// assert!(daily.allow().is_allowed(), "it is the next day");
    /// clock.set_wall(Tick::from_secs(2 * 86_400 - 3600));
    /// assert!(!daily.allow().is_allowed(), "neither day is granted twice");
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn set_wall(&self, wall: Tick) {
        let ahead = i128::from(wall.as_nanos()) - i128::from(self.now().as_nanos());
        self.hands.wall.set(i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX }));
    }

    /// Moves the time to the earliest tick of a sleeper and returns it; `None` if there is no sleeper.
    pub fn advance_to_next(&self) -> Option<Tick> {
        let (tick, _) = *self.hands.sleepers.lock().wakers.keys().next()?;
        self.advance(tick.since(self.now()));
        Some(tick)
    }

    /// Returns the earliest tick of a sleeper, for code that moves several clocks in step; `None` if there is no
    /// sleeper.
    #[must_use]
    pub fn next_wake(&self) -> Option<Tick> {
        self.hands.sleepers.lock().wakers.keys().next().map(|(tick, _)| *tick)
    }

    /// Returns the number of sleeps in progress.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.hands.sleepers.lock().wakers.len()
    }

    fn wake(&self) {
        let due = {
            let mut sleepers = self.hands.sleepers.lock();
            // Read under the lock: another thread may have moved the time meanwhile.
            let later = sleepers.wakers.split_off(&(self.now(), u64::MAX));
            std::mem::replace(&mut sleepers.wakers, later)
        };
        due.into_values().for_each(Waker::wake);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.hands.nanos.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Option<WallAhead> {
        Some(self.hands.wall.clone())
    }

    fn sleep_until(&self, tick: Tick) -> Sleep {
        Box::pin(ManualSleep { clock: self.clone(), tick, arrival: None })
    }

    fn block_until(&self, tick: Tick) {
        block_on(self.sleep_until(tick));
    }
}

#[derive(Debug)]
struct ManualSleep {
    clock: ManualClock,
    tick: Tick,
    arrival: Option<u64>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut sleepers = this.clock.hands.sleepers.lock();
        // Checked under the lock, so that a thread that moves the time after this check finds the waker.
        if this.clock.now() >= this.tick {
            return Poll::Ready(());
        }
        let arrival = *this.arrival.get_or_insert_with(|| {
            sleepers.arrivals += 1;
            sleepers.arrivals
        });
        sleepers.wakers.insert((this.tick, arrival), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(arrival) = self.arrival {
            let waker = self.clock.hands.sleepers.lock().wakers.remove(&(self.tick, arrival));
            // After the lock is released: dropping a waker may run foreign code.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_wake_in_the_order_of_their_ticks() {
        let clock = ManualClock::default();
        let mut sleeps: Vec<Sleep> =
            [3, 1, 2].map(|secs| clock.sleep_until(Tick::from_secs(secs))).into_iter().collect();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sleeps.iter_mut().all(|sleep| sleep.as_mut().poll(&mut cx).is_pending()));
        assert_eq!(clock.sleepers(), 3);
        assert_eq!(clock.next_wake(), Some(Tick::from_secs(1)));
        assert_eq!(clock.advance_to_next(), Some(Tick::from_secs(1)));
        let done: Vec<bool> =
            sleeps.iter_mut().map(|sleep| sleep.as_mut().poll(&mut cx).is_ready()).collect();
        assert_eq!(done, [false, true, false]);
        drop(sleeps);
        assert_eq!(clock.sleepers(), 0, "a dropped sleep leaves the register");
        assert_eq!(clock.advance_to_next(), None);
    }

    #[test]
    fn the_last_tick_wakes_too() {
        let clock = ManualClock::default();
        let mut sleep = clock.sleep_until(Tick::MAX);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut cx).is_pending());
        clock.set(Tick::MAX);
        assert_eq!(clock.sleepers(), 0, "woken");
        assert!(sleep.as_mut().poll(&mut cx).is_ready());
    }
}
