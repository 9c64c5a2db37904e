//! Decides which connections have a place, and which give theirs up when all are taken.
//!
//! A new connection then gets the place of a waiting one: of one that is closing, the one idle longest, the oldest
//! with an incomplete head, or the one that has longest not read its answers. One whose request is being answered
//! is never interrupted. An address (IPv6: a /64, which is what one customer has) has at most three quarters of the
//! places; beyond, its new connections take its own, so that no single caller can keep others out. If none waits,
//! the new one goes to the reserve, which answers health checks and administration
//! ([`super::Handler::is_operational`]), refuses the rest, and makes room for itself in the same way.
//!
//! The answers that are held for peers that do not read have a bound over all connections, [`UNREAD`]. Beyond it,
//! those that have longest not read are cut, so that whoever reads is never among them.
//!
//! The state of a connection is one atomic, written by its own task. All are scanned only when the server is full,
//! and then several places are vacated at once.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tidegate::policy::canonical;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Connections beyond the ordinary places, for health and administration.
pub(crate) const RESERVE: usize = 64;
/// A scan, which visits every connection, vacates one of this many places: it should free several.
const AT_ONCE: usize = 256;
/// The most bytes that all connections hold for peers that do not read.
pub(crate) const UNREAD: usize = 32 << 20;

/// The stage of a connection. Earlier stages give up their place first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum ConnectionStage {
    /// The last answer was sent; waiting for the peer to close.
    Closing,
    /// Between requests.
    Idle,
    /// A request's head is incomplete, or has not begun on a new connection.
    Head,
    /// The peer does not read its answer.
    Stalled,
    /// A request is being answered.
    Busy,
}

/// An order of the server to a connection; a later variant overrides an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Order {
    /// Continue.
    Stay,
    /// Answer what is in flight, then close.
    Finish,
    /// As `Finish`, but wait for nothing else: the place is given away.
    Yield,
    /// Close at once.
    Cut,
}

#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    share: usize,
    start: Instant,
    /// The bytes held for peers that do not read.
    unread: AtomicUsize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    last: u64,
    seats: HashMap<u64, Taker>,
    ordinary: usize,
    reserved: usize,
    /// Ordinary places by address; never zero.
    of: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Taker {
    seat: Arc<Seat>,
    /// Given away already; the connection is about to close.
    vacated: bool,
}

#[derive(Debug)]
struct Seat {
    address: IpAddr,
    reserved: bool,
    /// The stage in the three lowest bits; above, when it began, in microseconds since the start.
    state: AtomicU64,
    /// The connection's part of [`Places::unread`].
    unread: AtomicUsize,
    /// Since when it is not 0, likewise.
    unread_since: AtomicU64,
    order: AtomicU8,
    waker: AtomicWaker,
}

/// A connection's place; released when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    places: Arc<Places>,
    number: u64,
    seat: Arc<Seat>,
}

impl Places {
    /// Makes so many ordinary places, at least 1, and the reserve.
    pub(super) fn new(most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize) - RESERVE);
        let share = (most - most / 4).max(1);
        Self { most, share, start: now(), unread: AtomicUsize::new(0), taken: Mutex::default() }
    }

    /// The most open connections at once, the reserve included.
    pub(super) fn sockets(&self) -> usize {
        self.most + RESERVE
    }

    /// Gives a new connection a free place, one of a waiting connection, or one in the reserve.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> ConnectionPlace {
        let address = block(address);
        let mut taken = self.taken.lock();
        let over = taken.of.get(&address).is_some_and(|own| *own >= self.share);
        let reserved = if over {
            taken.vacate(self.at_once(), |seat| !seat.reserved && seat.address == address) == 0
        } else {
            taken.ordinary >= self.most && taken.vacate(self.at_once(), |seat| !seat.reserved) == 0
        };
        if reserved && taken.reserved >= RESERVE - RESERVE / 4 {
            taken.vacate(RESERVE / 4, |seat| seat.reserved);
        }
        taken.last += 1;
        let number = taken.last;
        let seat = Arc::new(Seat {
            address,
            reserved,
            state: AtomicU64::new(0),
            unread: AtomicUsize::new(0),
            unread_since: AtomicU64::new(0),
            order: AtomicU8::new(Order::Stay as u8),
            waker: AtomicWaker::new(),
        });
        seat.note(ConnectionStage::Head, self.start, now());
        taken.count(&seat);
        taken.seats.insert(number, Taker { seat: Arc::clone(&seat), vacated: false });
        ConnectionPlace { places: Arc::clone(self), number, seat }
    }

    /// Vacates some places of waiting connections, without giving them to another.
    pub(super) fn make_room(&self) {
        self.taken.lock().vacate(self.at_once(), |_| true);
    }

    pub(super) fn order(&self, order: Order) {
        for taker in self.taken.lock().seats.values() {
            taker.seat.send_order(order);
        }
    }

    /// Cuts connections whose peers do not read, the longest wait first, until `excess` bytes are free.
    fn cut_unread(&self, mut excess: usize) {
        let mut taken = self.taken.lock();
        let holders = taken.seats.iter().filter(|(_, taker)| !taker.vacated);
        let mut holders: Vec<(u64, u64, usize)> = holders
            .map(|(number, Taker { seat, .. })| {
                let since = seat.unread_since.load(Ordering::Relaxed);
                (since, *number, seat.unread.load(Ordering::Relaxed))
            })
            .filter(|(.., unread)| *unread > 0)
            .collect();
        holders.sort_unstable();
        for (_, number, unread) in holders {
            if excess == 0 {
                break;
            }
            if taken.give_away(number) {
                excess = excess.saturating_sub(unread);
            }
        }
    }

    fn at_once(&self) -> usize {
        (self.most / AT_ONCE).max(1)
    }
}

impl TakenPlaces {
    /// Orders waiting connections that qualify to yield, the earliest stage and longest wait first. Returns how many.
    /// Linear in the number of connections.
    fn vacate(&mut self, most: usize, qualifies: impl Fn(&Seat) -> bool) -> usize {
        let takers = self.seats.iter().filter(|(_, taker)| !taker.vacated && qualifies(&taker.seat));
        let mut waiting: Vec<(ConnectionStage, u64, u64)> = takers
            .filter_map(|(number, taker)| {
                let (stage, since) = taker.seat.state();
                (stage < ConnectionStage::Busy).then_some((stage, since, *number))
            })
            .collect();
        if waiting.len() > most {
            waiting.select_nth_unstable(most - 1);
            waiting.truncate(most);
        }
        for (.., number) in &waiting {
            self.give_away(*number);
        }
        waiting.len()
    }

    /// Orders a connection to yield. Returns whether it exists.
    fn give_away(&mut self, number: u64) -> bool {
        let Some(taker) = self.seats.get_mut(&number) else { return false };
        taker.vacated = true;
        let seat = Arc::clone(&taker.seat);
        seat.send_order(Order::Yield);
        self.discount(&seat);
        true
    }

    fn count(&mut self, seat: &Seat) {
        if seat.reserved {
            self.reserved += 1;
        } else {
            self.ordinary += 1;
            *self.of.entry(seat.address).or_default() += 1;
        }
    }

    fn discount(&mut self, seat: &Seat) {
        if seat.reserved {
            self.reserved -= 1;
            return;
        }
        self.ordinary -= 1;
        if let Some(own) = self.of.get_mut(&seat.address) {
            *own -= 1;
            if *own == 0 {
                self.of.remove(&seat.address);
            }
        }
    }
}

impl Seat {
    // Relaxed throughout: these stand alone. The waker's ordering makes an order visible to the task that it wakes.
    fn note(&self, stage: ConnectionStage, start: Instant, since: Instant) {
        let micros = since.saturating_duration_since(start).as_micros() as u64;
        self.state.store(micros << 3 | stage as u64, Ordering::Relaxed);
    }

    fn state(&self) -> (ConnectionStage, u64) {
        let state = self.state.load(Ordering::Relaxed);
        let stage = match state & 7 {
            0 => ConnectionStage::Closing,
            1 => ConnectionStage::Idle,
            2 => ConnectionStage::Head,
            3 => ConnectionStage::Stalled,
            _ => ConnectionStage::Busy,
        };
        (stage, state >> 3)
    }

    fn order(&self) -> Order {
        match self.order.load(Ordering::Relaxed) {
            0 => Order::Stay,
            1 => Order::Finish,
            2 => Order::Yield,
            _ => Order::Cut,
        }
    }

    fn send_order(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::Relaxed);
        self.waker.wake();
    }
}

impl ConnectionPlace {
    pub(crate) fn is_reserved(&self) -> bool {
        self.seat.reserved
    }

    pub(super) fn is_vacated(&self) -> bool {
        self.seat.order() == Order::Yield
    }

    /// Records the stage, and when it began.
    pub(crate) fn note(&self, stage: ConnectionStage, since: Instant) {
        self.seat.note(stage, self.places.start, since);
    }

    /// Records that a request is being answered; since when does not matter.
    pub(crate) fn note_busy(&self) {
        self.seat.state.store(ConnectionStage::Busy as u64, Ordering::Relaxed);
    }

    /// Records that the peer does not read, and how many bytes are held for it. Cuts those that have longest not read
    /// if all hold more than [`UNREAD`].
    pub(crate) fn note_unread(&self, since: Instant, bytes: usize) {
        self.note(ConnectionStage::Stalled, since);
        // Relaxed: the numbers order nothing else. Each connection takes back what it has added.
        self.note_read();
        self.hold_since(since, bytes);
    }

    /// Records how many bytes are held for the peer in any stage: answers not taken, messages not finished. Cuts as
    /// [`ConnectionPlace::note_unread`].
    pub(crate) fn hold(&self, bytes: usize) {
        let before = self.seat.unread.swap(0, Ordering::Relaxed);
        self.places.unread.fetch_sub(before, Ordering::Relaxed);
        if bytes > 0 && before > 0 {
            self.hold_more(bytes);
        } else if bytes > 0 {
            self.hold_since(now(), bytes);
        }
    }

    /// Returns whether anything is held for a peer that does not read, or does not finish its messages.
    #[cfg(feature = "grpc")]
    pub(crate) fn holds(&self) -> bool {
        self.seat.unread.load(Ordering::Relaxed) > 0
    }

    fn hold_since(&self, since: Instant, bytes: usize) {
        let micros = since.saturating_duration_since(self.places.start).as_micros() as u64;
        self.seat.unread_since.store(micros, Ordering::Relaxed);
        self.hold_more(bytes);
    }

    fn hold_more(&self, bytes: usize) {
        self.seat.unread.store(bytes, Ordering::Relaxed);
        let all = self.places.unread.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if all > UNREAD {
            // Some more, since each look visits every connection.
            self.places.cut_unread(all.saturating_sub(UNREAD - UNREAD / 8));
        }
    }

    /// Records that the peer has read what it had not.
    pub(crate) fn note_read(&self) {
        let before = self.seat.unread.swap(0, Ordering::Relaxed);
        self.places.unread.fetch_sub(before, Ordering::Relaxed);
    }

    pub(crate) fn order_now(&self) -> Order {
        self.seat.order()
    }

    /// Waits for an order of at least `least`. Only the connection's own task may wait: a second waiter would replace
    /// its waker.
    ///
    /// # Cancel safety
    /// Cancel safe: an order stays in force until the connection is gone.
    pub(crate) async fn ordered(&self, least: Order) {
        let wanted = |cx: &mut Context<'_>| {
            if self.order(cx.waker()) >= least { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(wanted).await;
    }

    /// Returns the present order; the task is woken when it changes.
    pub(crate) fn order(&self, waker: &Waker) -> Order {
        self.seat.waker.register(waker);
        self.seat.order()
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.note_read();
        let mut taken = self.places.taken.lock();
        if taken.seats.remove(&self.number).is_some_and(|taker| !taker.vacated) {
            taken.discount(&self.seat);
        }
    }
}

/// Reads the clock that measures how long connections wait.
#[allow(clippy::disallowed_methods, reason = "the clock of connections, which tests pause")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The longest timeout, a hundred years: an `Instant` cannot hold more.
pub(crate) const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Returns the instant `time` after `since`.
pub(crate) fn after(since: Instant, time: Duration) -> Instant {
    since.checked_add(time.min(NEVER)).unwrap_or(since)
}

/// Returns what counts as one address: the /64 of an IPv6 address, or the IPv4 address.
fn block(address: IpAddr) -> IpAddr {
    match canonical(address) {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: [IpAddr; 5] = {
        const fn at(last: u8) -> IpAddr {
            IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, last))
        }
        [at(1), at(2), at(3), at(4), at(5)]
    };

    fn order(place: &ConnectionPlace) -> Order {
        place.order(Waker::noop())
    }

    #[tokio::test]
    async fn whoever_waits_gives_way_in_the_stated_order_and_nobody_who_is_answered() {
        let places = Arc::new(Places::new(4));
        let [closing, idle, head, stalled] = [0, 1, 2, 3].map(|at| places.admit(MANY[at]));
        let later = |seconds| places.start + Duration::from_secs(seconds);
        // The later in the order, the longer it has waited.
        closing.note(ConnectionStage::Closing, later(4));
        idle.note(ConnectionStage::Idle, later(3));
        head.note(ConnectionStage::Head, later(2));
        stalled.note(ConnectionStage::Stalled, later(1));
        let mut admitted = Vec::new();
        for victim in [&closing, &idle, &head, &stalled] {
            assert_eq!(order(victim), Order::Stay);
            let place = places.admit(MANY[4]);
            place.note_busy();
            assert!(!place.is_reserved());
            assert_eq!(order(victim), Order::Yield);
            admitted.push(place);
            // One address may have three of the four places.
            if admitted.len() == 3 {
                break;
            }
        }
        assert!(places.admit(MANY[4]).is_reserved(), "a fourth of one address, all three busy");
        let last = places.admit(MANY[0]);
        last.note_busy();
        assert!(!last.is_reserved());
        assert_eq!(order(&stalled), Order::Yield);
        assert!(places.admit(MANY[1]).is_reserved(), "all four are busy");
        // A connection that lost its place releases none when it is dropped.
        drop((closing, idle, head, stalled));
        assert!(places.admit(MANY[1]).is_reserved());
        drop(last);
        assert!(!places.admit(MANY[1]).is_reserved());
    }

    #[tokio::test]
    async fn the_reserve_makes_room_in_itself() {
        let places = Arc::new(Places::new(1));
        let busy = places.admit(MANY[0]);
        busy.note_busy();
        let held: Vec<_> = (0..1000).map(|_| places.admit(MANY[1])).collect();
        let staying = held.iter().filter(|place| order(place) == Order::Stay).count();
        assert!(staying < RESERVE, "{staying}");
        assert_eq!(order(&held[999]), Order::Stay);
        assert_eq!(order(&busy), Order::Stay);
    }

    #[tokio::test]
    async fn answers_that_nobody_reads_are_bounded_over_all_connections() {
        let places = Arc::new(Places::new(1000));
        let later = |seconds| places.start + Duration::from_secs(seconds);
        let each = UNREAD / 64;
        let held: Vec<_> = (0..64).map(|_| places.admit(MANY[0])).collect();
        for (number, place) in held.iter().enumerate() {
            place.note_unread(later(1 + number as u64), each);
        }
        assert!(held.iter().all(|place| order(place) == Order::Stay), "exactly the bound");
        held[0].note_read();
        held[0].note_unread(later(100), each);
        assert!(held.iter().all(|place| order(place) == Order::Stay), "read meanwhile: {:?}", places.unread);
        let next = places.admit(MANY[1]);
        next.note_unread(later(101), each);
        let cut: Vec<_> = (0..64).filter(|at| order(&held[*at]) == Order::Yield).collect();
        assert_eq!(cut, (1..=9).collect::<Vec<_>>(), "an eighth and the excess, the longest wait first");
        assert_eq!(order(&next), Order::Stay);
        drop((held, next));
        assert_eq!(places.unread.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_address_of_ipv6_counts_with_its_64() {
        let of = |text: &str| block(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:203.0.113.9"), of("203.0.113.9"));
        assert_ne!(of("203.0.113.9"), of("203.0.113.8"));
    }
}
