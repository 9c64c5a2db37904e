//! The machine's clock, and a tick of it that the whole process shares.
//!
//! Reading a clock costs more than deciding: about 20 ns through the operating system or 8 to 10 by the processor's
//! counter, against 5 for the compare-exchange that spends a permit. It also keeps the cache misses of neighbouring
//! checks from overlapping. So while many checks are made, one thread, the *keeper*, reads the clock for all of them,
//! once a millisecond, and shares the tick. While few checks are made there is no keeper: no thread wakes, and each
//! check reads the clock itself.

mod counter;
mod shared_tick;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use counter::Counter;
use shared_tick::{LATE, SharedTick};
use tidegate_core::Tick;
use tidegate_core::time::{WallAhead, nanos};

use super::Clock;

/// How often the keeper reads the clock: often enough that a limit of ten thousand a second is off by at most ten
/// units, seldom enough to take less than half a percent of one core.
const BEAT: Duration = Duration::from_millis(1);

const BEATS_PER_QUESTION: u32 = 128;

static SHARED_TICK: SharedTick = SharedTick::new();
static COUNTER: Counter = Counter::new();
static WALL: WallSteps = WallSteps::new();

/// The machine's monotonic clock, anchored to the Unix epoch when the process first uses it.
///
/// Ticks are nanoseconds since 1970, so that calendar windows work, but they advance with the monotonic clock: setting
/// the wall clock neither adds nor blocks capacity. Calendar windows and aligned refills follow such a step within a
/// second: while the clock is in use, it looks at the wall clock once a second. All values of this type in a process
/// are one clock, so their ticks can be compared.
///
/// While many checks are made, one thread, the *keeper*, reads the clock for all of them, once a millisecond.
///
/// [`Clock::now`] reads the operating system's clock, about 20 ns. While the keeper runs, and if the kernel itself uses
/// the processor's counter (`tsc` on x86-64, the architected counter on ARM), it reads that counter relative to the
/// keeper's last reading, about 9 ns. With either source it never steps back by more than the nanosecond of rounding.
///
/// # Staleness
/// [`Clock::recent`] is at most one millisecond old, plus the time by which the keeper's thread is scheduled late.
/// While no keeper runs it reads the clock, so an idle gap never makes it old: the keeper shares the tick only while it
/// is being used, and withdraws it before it sleeps. A process whose keeper is gone (after a fork) or was stopped with
/// it (stopped and continued) notices when it next reads the clock, which is before the next refusal. Until then a
/// limit can have admitted one burst too many, but never a second one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock(());

impl SystemClock {
    /// Returns the process's clock, and anchors it to the present if it was not anchored yet.
    #[must_use]
    pub fn new() -> Self {
        anchor();
        Self(())
    }

    /// Returns the wall clock's time since 1970 at a tick of this clock: for reports to programs that go by the wall
    /// clock, such as a collector of spans.
    #[must_use]
    pub fn wall_time(tick: Tick) -> Tick {
        let ahead = WALL.ahead().nanos();
        Tick::from_nanos(tick.as_nanos().saturating_add_signed(ahead))
    }

    /// Shares the tick of this moment, as the keeper does, but does not renew it. For code that counts the instructions
    /// of a check, where waiting for the keeper would depend on the speed of the machine. The next clock reading at
    /// least 50 ms later withdraws it; if a keeper runs, its next beat renews it.
    #[doc(hidden)]
    pub fn share_tick() {
        SHARED_TICK.begin(read());
    }

    #[inline]
    pub(crate) fn shared() -> Option<Tick> {
        SHARED_TICK.tick().map(Tick::from_nanos)
    }

    /// Returns the current tick, if one is kept and the counter has the time. It is not less than the shared one, since
    /// the calibration, which is read after it, starts there or later.
    #[inline]
    pub(crate) fn fast_tick() -> Option<Tick> {
        SHARED_TICK.tick()?;
        COUNTER.fast_tick().map(Tick::from_nanos)
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Tick {
        Self::fast_tick().unwrap_or_else(now_slow)
    }

    #[inline]
    fn recent(&self) -> Tick {
        match SHARED_TICK.tick() {
            Some(tick) => Tick::from_nanos(tick),
            None => now_without_keeper(),
        }
    }

    /// Reads no clock: both count from the same origin.
    fn tick_of(&self, instant: Instant) -> Tick {
        let (origin, wall) = anchor();
        let origin_tick = Tick::from_nanos(wall);
        match instant.checked_duration_since(origin) {
            Some(after) => origin_tick.after(after),
            None => origin_tick.before(origin.duration_since(instant)),
        }
    }

    fn wall(&self) -> Option<WallAhead> {
        Some(WALL.ahead().clone())
    }
}

#[cold]
#[inline(never)]
fn now_slow() -> Tick {
    let Some(tick) = SHARED_TICK.tick() else { return now_without_keeper() };
    let now = COUNTER.now().map_or_else(read, |now| now.max(tick));
    if now - tick > LATE {
        SHARED_TICK.give_up(tick);
    }
    Tick::from_nanos(now)
}

#[cold]
#[inline(never)]
fn now_without_keeper() -> Tick {
    let now = read();
    if SHARED_TICK.missed(now) {
        wake();
    }
    if WALL.is_due(now) {
        look_at_wall();
    }
    Tick::from_nanos(now)
}

/// Reads the operating system's clock, which never steps back. Returns no less than the keeper's latest tick.
fn read() -> u64 {
    let (origin, wall) = anchor();
    wall.saturating_add(nanos(origin.elapsed())).max(SHARED_TICK.floor())
}

#[cold]
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
fn look_at_wall() {
    let before = read();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    WALL.take(before, nanos(wall), read());
}

/// The origin of all ticks, and its wall time in nanoseconds since the Unix epoch.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
fn anchor() -> (Instant, u64) {
    static ANCHOR: OnceLock<(Instant, u64)> = OnceLock::new();
    *ANCHOR.get_or_init(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        (Instant::now(), nanos(wall))
    })
}

/// Wakes the keeper's thread, or starts it. If no thread can be started, no tick is kept: checks are slower, but
/// still right.
fn wake() {
    static KEEPER: OnceLock<Option<Thread>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let spawned =
            thread::Builder::new().name("tidegate-tick".to_owned()).spawn(|| keep(&SHARED_TICK, &COUNTER));
        spawned.ok().map(|handle| handle.thread().clone())
    });
    if let Some(thread) = keeper {
        thread.unpark();
    }
}

#[allow(clippy::disallowed_methods, reason = "the keeper sleeps between beats")]
fn keep(shared: &SharedTick, counter: &Counter) {
    let mut source = counter::Source::detect();
    loop {
        shared.begin(read());
        for beat in 1u32.. {
            thread::sleep(BEAT);
            let now = match &mut source {
                Some(source) => source.beat(counter, read),
                None => read(),
            };
            shared.beat(now);
            if beat % BEATS_PER_QUESTION == 0 {
                if WALL.is_due(now) {
                    look_at_wall();
                }
                if !shared.ask() {
                    break;
                }
            }
        }
        if let Some(source) = &mut source {
            source.rest(counter);
        }
        while !shared.is_wanted() {
            thread::park();
        }
    }
}

// Steps of the wall clock, which the ticks do not follow.
//
// The system adjusts the speed of both clocks alike, so their difference changes only when the wall clock is set: by a
// person, by a time service that finds it far off, or when the machine wakes up.

const EVERY: u64 = Duration::from_secs(1).as_nanos() as u64;

/// A difference that changes by less is not followed, in nanoseconds: time services work smaller ones off by the speed.
const LEAST: u64 = Duration::from_millis(100).as_nanos() as u64;

/// Three readings that take longer, in nanoseconds, are not used: the thread was held up between them.
const LONGEST: u64 = Duration::from_millis(10).as_nanos() as u64;

#[derive(Debug)]
struct WallSteps {
    ahead: OnceLock<WallAhead>,
    looked: AtomicU64,
}

impl WallSteps {
    const fn new() -> Self {
        Self { ahead: OnceLock::new(), looked: AtomicU64::new(0) }
    }

    fn ahead(&self) -> &WallAhead {
        self.ahead.get_or_init(WallAhead::default)
    }

    /// Says whether the caller has to read the wall clock. Of several concurrent callers, only one gets `true`.
    #[inline]
    fn is_due(&self, now: u64) -> bool {
        // Relaxed: it only chooses who reads.
        let looked = self.looked.load(Ordering::Relaxed);
        now.saturating_sub(looked) >= EVERY
            && self.looked.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn take(&self, before: u64, wall: u64, after: u64) {
        if after.saturating_sub(before) > LONGEST {
            return;
        }
        let found = i64::try_from(i128::from(wall) - i128::from(before));
        let Some(found) = found.ok().filter(|found| found.abs_diff(self.ahead().nanos()) >= LEAST) else {
            return;
        };
        self.ahead().set(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_counts_from_1970_and_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(first > Tick::from_secs(1_700_000_000));
        assert!(clock.now() >= first);
    }

    /// With any number of readers, kept or not: the recent tick is never later than now.
    #[test]
    fn a_recent_tick_is_never_later_than_now_and_now_never_steps_back() {
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let clock = SystemClock::new();
                    let mut now = Tick::EPOCH;
                    for _ in 0..500_000 {
                        let recent = clock.recent();
                        let next = clock.now();
                        assert!(next >= recent, "now {next:?}, recent {recent:?}");
                        // The counter is rounded down to whole nanoseconds on both sides of a beat.
                        assert!(next.as_nanos() + 1 >= now.as_nanos(), "{next:?} after {now:?}");
                        now = next;
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod wall_tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn steps_are_followed_and_jitter_is_not() {
        let wall = WallSteps::new();
        let start = 1_700_000_000 * SECOND;
        let ahead = |wall: &WallSteps| wall.ahead().nanos();
        wall.take(start, start + 1000, start + 2000);
        assert_eq!(ahead(&wall), 0, "the two are read one after the other");
        wall.take(start, start + 99_999_999, start + 2000);
        assert_eq!(ahead(&wall), 0);
        // Started 5.5 h fast, and corrected.
        wall.take(start, start - 19_800 * SECOND, start + 2000);
        assert_eq!(ahead(&wall), -19_800_000_000_000);
        wall.take(start, start, start + LONGEST + 1);
        assert_eq!(ahead(&wall), -19_800_000_000_000, "held up between the readings");
        wall.take(start, start, start);
        assert_eq!(ahead(&wall), 0);
        wall.take(start, u64::MAX, start);
        assert_eq!(ahead(&wall), 0, "no time of this world");
    }

    #[test]
    fn one_caller_a_second_looks() {
        let wall = WallSteps::new();
        assert!(wall.is_due(5 * SECOND) && !wall.is_due(5 * SECOND) && !wall.is_due(6 * SECOND - 1));
        assert!(wall.is_due(6 * SECOND));
        assert!(!wall.is_due(4 * SECOND));
    }
}
