//! Carries events from the threads that decide to the one thread that counts them.
//!
//! Each thread that appends has a ring of its own, so appending takes no lock, shares no line with another writer, and
//! costs some nanoseconds. A shared queue would cost as much as the decision. A full ring drops the event and counts it:
//! nobody waits for the reader.

use std::array;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate_server::{Seen, Verdict};

/// Events in a ring: 192 KiB. At ten readings a second it holds 80,000 events a second of one thread; the reader comes
/// more often when a ring is more than a quarter full.
pub(crate) const EVENTS: usize = 8_192;

/// Rings of a feed at once, 48 MiB in all. Events of further threads are dropped and counted.
const RINGS: usize = 256;

/// Keys whose names are wanted at once.
const WANTED: usize = 256;

/// Refused keys that are remembered to have been named, by their place.
const NAMED: usize = 1_024;

/// Names of refused keys that are asked for unasked between two readings: some 640 a second, so that a flood of new keys is
/// not named.
const UNASKED: u64 = 64;

/// Feeds that a thread remembers its rings of. A process has one; tests have several.
const REMEMBERED: usize = 4;

/// What a door tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Seen(Seen),
    Ended(Ended),
}

/// A call that a policy with a canary let pass has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) policy: u16,
    pub(crate) key: u64,
    pub(crate) canary: bool,
    pub(crate) failed: bool,
}

/// The rings of all threads, and the keys whose names are wanted.
#[derive(Debug)]
pub(crate) struct Feed {
    /// Tells feeds of one process apart.
    id: u64,
    /// Taken by the reader while it reads.
    rings: Mutex<Vec<Arc<Ring>>>,
    /// Rings of threads that have come since the last reading. Its lock is only held for a push or a take, so a new
    /// thread does not wait for the reader.
    joined: Mutex<Vec<Arc<Ring>>>,
    /// Rings in both lists.
    count: AtomicUsize,
    /// Events dropped, as far as the reader knows.
    dropped: AtomicU64,
    /// By [`mark`]; 0 is empty.
    wanted: [AtomicU64; WANTED],
    /// By [`mark`]: refused keys that were named.
    refused: [AtomicU64; NAMED],
    /// How many names of refused keys may still be asked for until the next reading.
    unasked: AtomicU64,
}

/// The events of one thread.
#[derive(Debug)]
struct Ring {
    events: Box<[[AtomicU64; 3]]>,
    /// What the thread has done, which only it writes.
    written: Progress,
    /// What the reader has seen of it, which only the reader writes.
    read: Progress,
}

/// Counts since the beginning, on cache lines of their own, since one side writes them and the other reads them; two
/// lines, since processors fetch pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress {
    events: AtomicU64,
    /// Events that found the ring full. Counted here, since a count that all threads share would cost most when there is
    /// most to do.
    dropped: AtomicU64,
}

/// A thread's end of its ring.
struct Writer {
    feed: u64,
    ring: Arc<Ring>,
    /// As in the ring, which only this thread writes.
    head: u64,
    /// As read last. The ring has at least as much room as it says.
    tail: u64,
}

thread_local! {
    /// The rings of this thread, the one used last first.
    static WRITERS: RefCell<Vec<Writer>> = const { RefCell::new(Vec::new()) };
}

impl Feed {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rings: Mutex::default(),
            joined: Mutex::default(),
            count: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            wanted: array::from_fn(|_| AtomicU64::new(0)),
            refused: array::from_fn(|_| AtomicU64::new(0)),
            unasked: AtomicU64::new(UNASKED),
        }
    }

    /// Appends an event to the ring of this thread. Returns whether the name of its key is wanted: because the key is
    /// among the busiest, or because it is refused and may not come again.
    ///
    /// Never waits for the reader. The first call of a thread allocates its ring; later ones allocate nothing. The event
    /// is dropped, and counted, if the ring is full, if there are 256 rings, or if the thread is ending.
    #[inline]
    pub(crate) fn append(&self, seen: Seen) -> bool {
        self.write(packed(&seen));
        let mark = mark(seen.policy, seen.key);
        // Relaxed, here and below: a name that is told once too often, or a second later, does no harm.
        self.wanted[slot(mark)].load(Ordering::Relaxed) == mark
            || seen.verdict == Verdict::Denied && self.is_unnamed(mark)
    }

    /// Appends the end of a call, as [`Self::append`] appends a decision.
    pub(crate) fn append_ended(&self, ended: Ended) {
        self.write(packed_end(ended));
    }

    #[inline]
    fn write(&self, event: Packed) {
        let has_ring = WRITERS.try_with(|writers| {
            let Ok(mut writers) = writers.try_borrow_mut() else { return false };
            if let Some(writer) = writers.first_mut()
                && writer.feed == self.id
            {
                writer.write(event);
                return true;
            }
            self.append_first(&mut writers, event)
        });
        if !has_ring.unwrap_or(false) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether to ask for the name of a refused key.
    fn is_unnamed(&self, mark: u64) -> bool {
        let place = &self.refused[(mark % NAMED as u64) as usize];
        // Read first: a key that is refused again and again, and all of a flood, write nothing that threads share.
        if place.load(Ordering::Relaxed) == mark || self.unasked.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let one_less = |left: u64| left.checked_sub(1);
        if self.unasked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return false;
        }
        place.store(mark, Ordering::Relaxed);
        true
    }

    /// Appends with a ring that this thread used before another feed's, or with a new one. Returns whether there is one.
    #[cold]
    fn append_first(&self, writers: &mut Vec<Writer>, event: Packed) -> bool {
        if let Some(at) = writers.iter().position(|writer| writer.feed == self.id) {
            writers.swap(0, at);
        } else {
            let Some(ring) = self.join() else { return false };
            writers.truncate(REMEMBERED - 1);
            writers.insert(0, Writer { feed: self.id, ring, head: 0, tail: 0 });
        }
        if let Some(writer) = writers.first_mut() {
            writer.write(event);
        }
        true
    }

    /// Makes a ring; `None` if there are enough.
    fn join(&self) -> Option<Arc<Ring>> {
        // Read first, so that a thread without a ring writes nothing that all threads share but the count of drops.
        if self.count.load(Ordering::Relaxed) >= RINGS {
            return None;
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= RINGS {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let ring = Arc::new(Ring::new());
        self.joined.lock().push(Arc::clone(&ring));
        Some(ring)
    }

    /// Hands over all events since the last call, in the order of each thread, and lets go of the rings of threads that
    /// have ended. Returns how many events the fullest ring held.
    ///
    /// Calls from several threads take turns.
    pub(crate) fn drain(&self, mut each: impl FnMut(Event)) -> u64 {
        let mut rings = self.rings.lock();
        rings.append(&mut self.joined.lock());
        let (before, mut fullest) = (rings.len(), 0_u64);
        rings.retain_mut(|ring| {
            // Asked before the events are read: if the thread has ended, all that it wrote is read now. `get_mut`
            // synchronizes with the drop of the thread's reference; `strong_count` would not.
            let has_ended = Arc::get_mut(ring).is_some();
            let taken = ring.read(&mut each);
            fullest = fullest.max(taken.events);
            self.dropped.fetch_add(taken.dropped, Ordering::Relaxed);
            !has_ended
        });
        self.count.fetch_sub(before - rings.len(), Ordering::Relaxed);
        self.unasked.store(UNASKED, Ordering::Relaxed);
        fullest
    }

    /// Returns how many events were dropped since the start, until the last call of [`Self::drain`].
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Asks for the name of a key, instead of another key that has the same place.
    pub(crate) fn want(&self, policy: u16, key: u64) {
        let mark = mark(policy, key);
        self.wanted[slot(mark)].store(mark, Ordering::Relaxed);
    }

    /// Ends the wish for a name: it is known now.
    pub(crate) fn named(&self, policy: u16, key: u64) {
        let mark = mark(policy, key);
        // Fails if another key has the place, which then stays.
        _ = self.wanted[slot(mark)].compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Returns what stands for a policy's key in the table of wanted names; never 0. The policy is in it because policies by
/// the same attribute may share fingerprints, and the first of them would otherwise answer for all.
#[inline]
fn mark(policy: u16, key: u64) -> u64 {
    (key ^ u64::from(policy).wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1)
}

#[inline]
fn slot(mark: u64) -> usize {
    // Below 256.
    (mark % WANTED as u64) as usize
}

impl Ring {
    fn new() -> Self {
        let events = (0..EVENTS).map(|_| array::from_fn(|_| AtomicU64::new(0))).collect();
        Self { events, written: Progress::default(), read: Progress::default() }
    }

    /// Hands over the new events.
    fn read(&self, each: &mut impl FnMut(Event)) -> Taken {
        // Acquire: pairs with the Release in `write`, so the events are whole. The others are Relaxed: `read` is written
        // here only, and a drop that is not seen yet is seen the next time.
        let head = self.written.events.load(Ordering::Acquire);
        let tail = self.read.events.load(Ordering::Relaxed);
        for at in tail..head {
            let event = &self.events[at as usize % EVENTS];
            each(unpacked([
                event[0].load(Ordering::Relaxed),
                event[1].load(Ordering::Relaxed),
                event[2].load(Ordering::Relaxed),
            ]));
        }
        // Release: pairs with the Acquire in `write`, which overwrites events only after they were read.
        self.read.events.store(head, Ordering::Release);
        let dropped = self.written.dropped.load(Ordering::Relaxed);
        let known = self.read.dropped.load(Ordering::Relaxed);
        self.read.dropped.store(dropped, Ordering::Relaxed);
        Taken { events: head - tail, dropped: dropped - known }
    }
}

/// What a reading found new.
struct Taken {
    events: u64,
    dropped: u64,
}

impl Writer {
    /// Writes an event, or counts it as dropped if there is no room.
    #[inline]
    fn write(&mut self, [key, at, rest]: Packed) {
        let ring = &*self.ring;
        if self.head - self.tail >= EVENTS as u64 {
            self.tail = ring.read.events.load(Ordering::Acquire);
            if self.head - self.tail >= EVENTS as u64 {
                // No read-modify-write: only this thread writes it.
                let dropped = ring.written.dropped.load(Ordering::Relaxed);
                ring.written.dropped.store(dropped + 1, Ordering::Relaxed);
                return;
            }
        }
        let event = &ring.events[self.head as usize % EVENTS];
        event[0].store(key, Ordering::Relaxed);
        event[1].store(at, Ordering::Relaxed);
        event[2].store(rest, Ordering::Relaxed);
        self.head += 1;
        ring.written.events.store(self.head, Ordering::Release);
    }
}

/// The key, the tick, and from the lowest bit on: cost (32 bits), policy (16), verdict (8), near, canary.
type Packed = [u64; 3];

/// Whether it passed with little left, and whether the canary's limit decided.
const NEAR: u64 = 1 << 56;
const CANARY: u64 = 1 << 57;

/// In the place of the verdict: a call has ended. In the place of the cost, whether it failed.
const ENDED: u8 = 7;

#[inline]
fn packed(seen: &Seen) -> Packed {
    let rest = u64::from(seen.cost)
        | (u64::from(seen.policy) << 32)
        | (u64::from(seen.verdict as u8) << 48)
        | (u64::from(seen.near) * NEAR)
        | (u64::from(seen.canary) * CANARY);
    [seen.key, seen.at.as_nanos(), rest]
}

fn packed_end(ended: Ended) -> Packed {
    let rest = u64::from(ended.failed)
        | (u64::from(ended.policy) << 32)
        | (u64::from(ENDED) << 48)
        | (u64::from(ended.canary) * CANARY);
    [ended.key, 0, rest]
}

fn unpacked([key, at, rest]: Packed) -> Event {
    let (policy, cost, verdict) = ((rest >> 32) as u16, rest as u32, (rest >> 48) as u8);
    let canary = rest & CANARY != 0;
    if verdict == ENDED {
        return Event::Ended(Ended { policy, key, canary, failed: cost != 0 });
    }
    let (verdict, near) = (verdict_of(verdict), rest & NEAR != 0);
    Event::Seen(Seen { policy, verdict, near, canary, key, cost, at: Tick::from_nanos(at) })
}

/// Returns the verdict whose number this is.
pub(crate) fn verdict_of(number: u8) -> Verdict {
    match number {
        0 => Verdict::Allowed,
        1 => Verdict::Delayed,
        2 => Verdict::Denied,
        3 => Verdict::Over,
        4 => Verdict::Error,
        5 => Verdict::WouldDeny,
        _ => Verdict::WouldAllow,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn event(policy: u16, number: u64) -> Seen {
        let verdict = if number.is_multiple_of(2) { Verdict::Allowed } else { Verdict::WouldAllow };
        Seen {
            policy,
            verdict,
            near: number.is_multiple_of(3),
            canary: number.is_multiple_of(5),
            key: number,
            cost: number as u32 ^ 0xFFFF_0000,
            at: Tick::from_nanos(u64::MAX - number),
        }
    }

    #[test]
    fn events_come_back_as_they_were() {
        for (number, verdict) in [
            Verdict::Allowed,
            Verdict::Delayed,
            Verdict::Denied,
            Verdict::Over,
            Verdict::Error,
            Verdict::WouldDeny,
            Verdict::WouldAllow,
        ]
        .into_iter()
        .enumerate()
        {
            let seen = Seen { verdict, ..event(u16::MAX, number as u64) };
            assert_eq!(unpacked(packed(&seen)), Event::Seen(seen));
        }
        for (canary, failed) in [(false, false), (false, true), (true, false), (true, true)] {
            let ended = Ended { policy: u16::MAX, key: u64::MAX, canary, failed };
            assert_eq!(unpacked(packed_end(ended)), Event::Ended(ended));
        }
    }

    fn decided(event: Event) -> Seen {
        let Event::Seen(seen) = event else { panic!("{event:?}") };
        seen
    }

    /// The reader reads while four threads write: what arrives is whole, in the order of its thread, and never twice; what
    /// does not arrive is counted.
    #[test]
    fn events_of_four_threads_arrive_whole_and_in_order() {
        const EACH: u64 = 50_000;
        let feed = Feed::new();
        let (mut next, mut received) = ([0; 4], 0);
        let mut check = |told: Event| {
            let seen = decided(told);
            assert_eq!(seen, event(seen.policy, seen.key));
            let next: &mut u64 = &mut next[usize::from(seen.policy)];
            assert!(seen.key >= *next, "{seen:?} after {next}");
            *next = seen.key + 1;
            received += 1;
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|policy| {
                    let feed = &feed;
                    scope.spawn(move || {
                        for number in 0..EACH {
                            feed.append(event(policy, number));
                        }
                    })
                })
                .collect();
            while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
                feed.drain(&mut check);
            }
            // The scope alone would wait for the closures, not for what threads let go as they end.
            for thread in threads {
                thread.join().unwrap();
            }
        });
        feed.drain(&mut check);
        assert_eq!(received + feed.dropped(), 4 * EACH);
        assert!(received >= 4 * EVENTS as u64, "{received}");
        feed.drain(|told| panic!("{told:?} came twice"));
        assert_eq!(feed.count.load(Ordering::Relaxed), 0, "rings of ended threads are let go");
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let feed = Feed::new();
        for number in 0..EVENTS as u64 + 100 {
            feed.append(event(1, number));
        }
        let mut keys = Vec::new();
        assert_eq!(feed.drain(|told| keys.push(decided(told).key)), EVENTS as u64);
        assert_eq!(feed.dropped(), 100);
        assert!(keys.iter().copied().eq(0..EVENTS as u64));
        feed.append(event(1, 7));
        feed.append_ended(Ended { policy: 1, key: 7, canary: true, failed: true });
        assert_eq!((feed.drain(|_| ()), feed.dropped()), (2, 100));
    }

    #[test]
    fn a_thread_has_one_ring_for_each_feed_and_rings_are_bounded() {
        let (one, two) = (Feed::new(), Feed::new());
        for number in 0..10 {
            one.append(event(1, number));
            two.append(event(2, number));
        }
        assert_eq!(one.count.load(Ordering::Relaxed) + two.count.load(Ordering::Relaxed), 2);
        assert_eq!((one.drain(|_| ()), two.drain(|_| ())), (10, 10));
        let full = Feed::new();
        full.count.store(RINGS, Ordering::Relaxed);
        full.append(event(1, 1));
        assert_eq!((full.drain(|_| ()), full.dropped()), (0, 1));
    }

    #[test]
    fn a_wanted_name_is_asked_for_until_it_is_known() {
        let feed = Feed::new();
        assert!(!feed.append(event(1, 0)), "no key is wanted, not even 0");
        feed.want(1, 5);
        assert!(feed.append(event(1, 5)) && feed.append(event(1, 5)));
        assert!(!feed.append(event(2, 5)), "the same key of another policy");
        feed.named(2, 5);
        assert!(feed.append(event(1, 5)));
        feed.named(1, 5);
        assert!(!feed.append(event(1, 5)));
    }
}
