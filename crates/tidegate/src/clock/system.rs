//! The machine's clock, and a tick of it that the whole process shares.
//!
//! Reading a clock costs more than deciding: about 20 ns by way of the operating system, 8 to 10 by the processor's counter,
//! against 5 for the compare-exchange that spends a permit; and it keeps the cache misses of neighbouring checks from
//! overlapping. So while many checks are made, one thread, the *keeper*, reads the clock for all of them, once a
//! millisecond, and shares the tick; while few are made nobody keeps it, no thread wakes, and each check reads for itself.
//!
//! What that costs in exactness is one number, [`SystemClock::recent`]'s staleness, and it is told there.

mod counter;
mod shared_tick;

use std::sync::OnceLock;
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::Tick;
use tidegate_core::time::nanos;

use super::Clock;
use counter::Counter;
use shared_tick::{LATE, SharedTick};

/// How often the keeper reads the clock: often enough that a limit of ten thousand a second is off by ten units at most, seldom
/// enough to take less than half a percent of one core.
const BEAT: Duration = Duration::from_millis(1);

/// Beats between two questions of the keeper whether anybody still wants the tick.
const BEATS_PER_QUESTION: u32 = 128;

static SHARED_TICK: SharedTick = SharedTick::new();
static COUNTER: Counter = Counter::new();

/// The machine's monotonic clock, anchored to the Unix epoch when the process first asks for it.
///
/// Ticks are nanoseconds since 1970, so that calendar windows work, but they advance with the monotonic clock: setting the wall clock
/// neither mints nor blocks capacity. After such a step, calendar windows keep the old wall time until the process restarts. All values of
/// this type in a process are one clock, so their ticks can be compared.
///
/// [`Clock::now`] reads the operating system's clock, about 20 ns; while the keeper runs and the kernel itself goes by the
/// processor's counter (`tsc` on x86-64, the architected counter on ARM), that counter against the keeper's last reading,
/// about 9 ns. It never steps back by more than the nanosecond of rounding, whichever of the two answers.
///
/// # Staleness
/// [`Clock::recent`] is at most one millisecond old, plus the time by which the keeper's thread is scheduled late. Where
/// nobody keeps the tick it reads the clock, so an idle gap never makes it old: the keeper hands it out only while it goes on
/// being asked for, and says so before it sleeps. A process whose keeper is gone (forked) or was held up with it (stopped and
/// continued) finds out when it next reads the clock, which is before the next refusal: until then a limit can have let
/// through one burst more than it should have, never a second one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock(());

impl SystemClock {
    /// Returns the process's clock, which is anchored to the present if it was not yet.
    #[must_use]
    pub fn new() -> Self {
        anchor();
        Self(())
    }

    /// Shares the tick of this moment, as the keeper does, and does not renew it: for whoever counts the instructions of a check,
    /// where waiting for the keeper would depend on how fast the machine is. The next reading of the clock that is 50 ms later takes
    /// it away again; where a keeper runs, its next beat renews it.
    #[doc(hidden)]
    pub fn share_tick() {
        SHARED_TICK.begin(read());
    }

    /// Returns the shared tick, if it is kept.
    #[inline]
    pub(crate) fn shared() -> Option<Tick> {
        SHARED_TICK.tick().map(Tick::from_nanos)
    }

    /// Returns now, if the tick is kept and the counter tells it. Not less than the tick, since the bearings that are read after it
    /// start there or later.
    #[inline]
    pub(crate) fn fast_tick() -> Option<Tick> {
        SHARED_TICK.tick()?;
        COUNTER.fast_tick().map(Tick::from_nanos)
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Tick {
        Self::fast_tick().unwrap_or_else(otherwise)
    }

    #[inline]
    fn recent(&self) -> Tick {
        match SHARED_TICK.tick() {
            Some(tick) => Tick::from_nanos(tick),
            None => unkept(),
        }
    }
}

/// Reads the clock where the counter has no quick answer, and finds out whether the keeper is gone.
#[cold]
#[inline(never)]
fn otherwise() -> Tick {
    let Some(tick) = SHARED_TICK.tick() else { return unkept() };
    let now = COUNTER.now().map_or_else(read, |now| now.max(tick));
    if now - tick > LATE {
        SHARED_TICK.give_up(tick);
    }
    Tick::from_nanos(now)
}

/// Reads the clock where nobody keeps the tick, and sees to it that somebody does if this happens often.
#[cold]
#[inline(never)]
fn unkept() -> Tick {
    let now = read();
    if SHARED_TICK.missed(now) {
        wake();
    }
    Tick::from_nanos(now)
}

/// Reads the operating system's clock, which never steps back, and never less than the keeper has said.
fn read() -> u64 {
    let (origin, wall) = anchor();
    wall.saturating_add(nanos(origin.elapsed())).max(SHARED_TICK.floor())
}

/// The moment that all ticks are counted from, and its wall time in nanoseconds since the Unix epoch.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
fn anchor() -> (Instant, u64) {
    static ANCHOR: OnceLock<(Instant, u64)> = OnceLock::new();
    *ANCHOR.get_or_init(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        (Instant::now(), nanos(wall))
    })
}

/// Wakes the keeper's thread, or starts it. Where no thread can be started, nobody keeps the tick: checks are slower, and still right.
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

/// What the keeper's thread does: sleeps until woken, then shares a tick each millisecond until nobody asks any more.
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
            if beat % BEATS_PER_QUESTION == 0 && !shared.ask() {
                break;
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

    /// However often it is asked, by however many threads, kept or not: what is recent is never later than now.
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
                        // The counter is rounded down to whole nanoseconds on either side of a beat.
                        assert!(next.as_nanos() + 1 >= now.as_nanos(), "{next:?} after {now:?}");
                        now = next;
                    }
                });
            }
        });
    }
}
