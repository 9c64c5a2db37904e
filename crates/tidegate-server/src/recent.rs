//! Remembers recent decisions, so that a report, a refund or a question can follow one by its id.
//!
//! Of a decision it keeps what was charged, which is all that a report or a refund goes by, and the request for the question.
//! Memory is bounded by the number of decisions and by their bytes, and what one decision may take is bounded too; the oldest
//! go first. Decisions that wait for a report have a share of their own: whoever floods the rest does not make the server forget
//! whose attempts are under way. Shards keep callers on several cores from waiting for each other; a check takes one short lock.
//!
//! An id is a ULID: 48 bits of time, then 80 bits that lead back to the place. These hold a keyed hash and, masked by it,
//! shard and sequence number, so that finding one is an index and neither the number of decisions nor another id can be
//! read from one. Who has not seen an id can only guess 80 bits, of which one value is right.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::policy::Descriptor;
use tidegate::{Charged, Cost, Tick};
use ulid::Ulid;

/// Shards of each share; enough that two of a handful of cores seldom meet.
const SHARDS: usize = 16;
/// Bits of the id that hold the masked place: 5 of shard, 27 of sequence.
const PLACE_BITS: u32 = 32;
const SEQUENCE_BITS: u32 = 27;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
/// The longest request that is kept for a question, in bytes: one long value, or the headers of a browser twice over.
const MAX_REQUEST: usize = 8 * 1024;
/// The most that the charges of one decision may take, in bytes: hundreds of policies by addresses and names. Beyond, nothing can
/// follow the decision.
const MAX_CHARGED: usize = 64 * 1024;
/// What an entry weighs beside its attributes.
const OVERHEAD: usize = size_of::<Entry>();

/// A bounded memory of decisions, newest kept.
#[derive(Debug)]
pub(crate) struct Recent {
    /// Those of decisions that wait for a report, then those of the rest.
    shards: [Mutex<Shard>; 2 * SHARDS],
    next: AtomicU64,
    hasher: RandomState,
    waiting: Share,
    rest: Share,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Decisions.
    pub(crate) entries: usize,
    /// Bytes that they take.
    pub(crate) bytes: usize,
}

#[derive(Debug, Default)]
struct Shard {
    entries: VecDeque<Entry>,
    /// Sequence number of the front entry.
    first: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    id: Ulid,
    told: Told,
    request: Option<Remembered>,
    taken: Taken,
}

/// What a decision took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) charged: Charged,
    /// Whether it was taken from the store that stands in while the real one cannot decide.
    pub(crate) from_stand_in: bool,
}

/// What is known of a decision beside the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The cost the caller gave.
    pub(crate) cost: Option<Cost>,
    /// A report has followed.
    pub(crate) reported: bool,
    /// A refund has followed.
    pub(crate) refunded: bool,
    /// What was charged takes too much to be remembered.
    pub(crate) too_long: bool,
}

/// A request on its own: one allocation for all names and values.
#[derive(Clone)]
pub(crate) struct Remembered {
    text: Box<str>,
    /// Where each piece ends: name, value, name, value.
    ends: SmallVec<[u32; 12]>,
    /// The policies it was decided under by name; `None` for all, as usual.
    only: Option<Box<[Box<str>]>>,
}

impl Remembered {
    /// Copies a request but for what is `secret`; `None` where it is too long.
    fn new(
        request: &Descriptor<'_>,
        only: Option<Box<[Box<str>]>>,
        secret: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let pairs = || request.pairs().filter(|(name, _)| !secret(name));
        let length = pairs().map(|(name, value)| name.len() + value.len()).sum();
        if length > MAX_REQUEST {
            return None;
        }
        let mut text = String::with_capacity(length);
        let mut ends = SmallVec::new();
        for piece in pairs().flat_map(|(name, value)| [name, value]) {
            text.push_str(piece);
            // Bounded above.
            ends.push(text.len() as u32);
        }
        Some(Self { text: text.into_boxed_str(), ends, only })
    }

    /// Returns the request again.
    pub(crate) fn descriptor(&self) -> Descriptor<'_> {
        let mut start = 0;
        let mut pieces = self.ends.iter().map(|end| {
            let piece = &self.text[start..*end as usize];
            start = *end as usize;
            piece
        });
        let mut request = Descriptor::new();
        while let (Some(name), Some(value)) = (pieces.next(), pieces.next()) {
            request.push(name, value);
        }
        request
    }

    /// Returns the names of the policies it was decided under; `None` for all.
    pub(crate) fn only(&self) -> Option<&[Box<str>]> {
        self.only.as_deref()
    }

    fn weight(&self) -> usize {
        let spilled = if self.ends.spilled() { self.ends.capacity() * size_of::<u32>() } else { 0 };
        let named = self.only().unwrap_or_default().iter().map(|name| size_of::<Box<str>>() + name.len());
        self.text.len() + spilled + named.sum::<usize>()
    }
}

/// What should follow a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    Report,
    Refund,
}

/// Why nothing can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFollow {
    /// Not an id of this process, or forgotten.
    Unknown,
    /// It has happened already.
    Twice,
    /// The request was denied: nothing was charged.
    NothingCharged,
    /// What was charged waits for a report, and a refund is not one.
    AwaitsReport,
    /// What was charged took too much to be remembered.
    TooLong,
    /// More is asked back than was charged.
    TooMuch {
        /// What was charged.
        charged: u64,
    },
}

impl Entry {
    fn weight(&self) -> usize {
        OVERHEAD + self.request.as_ref().map_or(0, Remembered::weight) + self.taken.charged.weight()
    }
}

impl fmt::Debug for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without what callers sent.
        f.debug_struct("Remembered").field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

impl Recent {
    /// Makes a memory of so many decisions that wait for a report, and so many others.
    pub(crate) fn new(waiting: Share, rest: Share) -> Self {
        let each = |share: Share| Share {
            entries: share.entries.div_ceil(SHARDS).max(1),
            bytes: share.bytes.div_ceil(SHARDS),
        };
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicU64::new(0),
            hasher: RandomState::new(),
            waiting: each(waiting),
            rest: each(rest),
        }
    }

    /// Remembers a decision and returns its id. What is `secret` of the request is left out.
    pub(crate) fn remember(
        &self,
        at: Tick,
        request: &Descriptor<'_>,
        only: Option<Box<[Box<str>]>>,
        secret: impl Fn(&str) -> bool,
        cost: Option<Cost>,
        mut taken: Taken,
    ) -> Ulid {
        let too_long = taken.charged.weight() > MAX_CHARGED;
        if too_long {
            taken = Taken::default();
        }
        // Relaxed: the number is only to be unique.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (share, first) =
            if taken.charged.awaits_report() { (self.waiting, 0) } else { (self.rest, SHARDS) };
        let at_shard = first + number as usize % SHARDS;
        let told = Told { cost, reported: false, refunded: false, too_long };
        let request = Remembered::new(request, only, secret);
        let mut entry = Entry { id: Ulid::nil(), told, request, taken };
        let weight = entry.weight();
        let mut shard = self.shards[at_shard].lock();
        while shard.entries.len() >= share.entries
            || (shard.bytes + weight > share.bytes && !shard.entries.is_empty())
        {
            shard.forget_oldest();
        }
        let sequence = shard.first + shard.entries.len() as u64;
        entry.id = self.name(at, number, at_shard, sequence);
        let id = entry.id;
        shard.bytes += weight;
        shard.entries.push_back(entry);
        id
    }

    /// Finds a decision; its request is `None` where that was too long.
    pub(crate) fn find(&self, id: Ulid) -> Option<(Told, Option<Remembered>)> {
        let (at_shard, sequence) = self.place(id);
        let shard = self.shards[at_shard].lock();
        let entry = &shard.entries[shard.index(id, sequence)?];
        Some((entry.told, entry.request.clone()))
    }

    /// Marks a decision as followed, once, and returns what it took; `cost` is what a refund asks back.
    ///
    /// Marking comes before the deed, so that of two callers at once only one does it.
    pub(crate) fn follow(&self, id: Ulid, what: Follow, cost: Option<Cost>) -> Result<Taken, NoFollow> {
        let (at_shard, sequence) = self.place(id);
        let mut shard = self.shards[at_shard].lock();
        let index = shard.index(id, sequence).ok_or(NoFollow::Unknown)?;
        let Entry { told, taken, .. } = &mut shard.entries[index];
        let charged = taken.charged.refundable();
        match what {
            _ if told.too_long => return Err(NoFollow::TooLong),
            Follow::Report if told.reported => return Err(NoFollow::Twice),
            Follow::Report => told.reported = true,
            Follow::Refund if told.refunded => return Err(NoFollow::Twice),
            Follow::Refund if charged == 0 && taken.charged.awaits_report() => {
                return Err(NoFollow::AwaitsReport);
            }
            Follow::Refund if charged == 0 => return Err(NoFollow::NothingCharged),
            Follow::Refund if cost.is_some_and(|cost| cost.units() > charged) => {
                return Err(NoFollow::TooMuch { charged });
            }
            Follow::Refund => told.refunded = true,
        }
        Ok(taken.clone())
    }

    /// Takes a mark back: the deed failed and may be tried again.
    pub(crate) fn unfollow(&self, id: Ulid, what: Follow) {
        let (at_shard, sequence) = self.place(id);
        let mut shard = self.shards[at_shard].lock();
        if let Some(index) = shard.index(id, sequence) {
            let told = &mut shard.entries[index].told;
            match what {
                Follow::Report => told.reported = false,
                Follow::Refund => told.refunded = false,
            }
        }
    }

    fn name(&self, at: Tick, number: u64, shard: usize, sequence: u64) -> Ulid {
        let hash = self.hasher.hash_one(number) & 0xffff_ffff_ffff;
        let place = (shard as u64) << SEQUENCE_BITS | (sequence & SEQUENCE_MASK);
        let masked = place ^ self.mask(hash);
        Ulid::from_parts(at.as_nanos() / 1_000_000, u128::from(hash) << PLACE_BITS | u128::from(masked))
    }

    fn place(&self, id: Ulid) -> (usize, u64) {
        let random = id.random();
        let masked = random as u64 & 0xffff_ffff;
        let place = masked ^ self.mask((random >> PLACE_BITS) as u64);
        ((place >> SEQUENCE_BITS) as usize % (2 * SHARDS), place & SEQUENCE_MASK)
    }

    fn mask(&self, hash: u64) -> u64 {
        self.hasher.hash_one((hash, "place")) & 0xffff_ffff
    }
}

impl Shard {
    /// Finds an entry by the sequence's low bits; the full id confirms.
    fn index(&self, id: Ulid, sequence: u64) -> Option<usize> {
        let ahead = sequence.wrapping_sub(self.first) & SEQUENCE_MASK;
        let index = usize::try_from(ahead).ok()?;
        (self.entries.get(index)?.id == id).then_some(index)
    }

    fn forget_oldest(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.weight();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::policy::{ChargeOn, Limit, Policy, PolicySet};
    use tidegate::{Gate, ManualClock, Quota};

    use super::*;

    const NOW: Tick = Tick::from_secs(1_800_000_000);

    fn request(value: &str) -> Descriptor<'static> {
        Descriptor::new().with("client.ip", value.to_owned()).with("user.id", "42")
    }

    fn recent(entries: usize, bytes: usize) -> Recent {
        Recent::new(Share { entries, bytes }, Share { entries, bytes })
    }

    fn gate(charge: ChargeOn, by: &[&str]) -> Gate {
        let mut policy = Policy::new("p", Limit::new(Quota::per_hour(1000).gcra().unwrap(), "p"));
        (policy.charge, policy.by) = (charge, by.iter().map(|by| (*by).to_owned()).collect());
        Gate::in_memory(PolicySet::new(vec![policy]).unwrap(), 1000).with_clock(ManualClock::at(NOW))
    }

    fn taken(gate: &Gate, request: &Descriptor<'_>, cost: u64) -> Taken {
        let mut taken = Taken::default();
        assert!(gate.charge(request, Cost::new(cost), &mut taken.charged).unwrap().allowed);
        taken
    }

    fn keep(recent: &Recent, request: &Descriptor<'_>, taken: Taken) -> Ulid {
        recent.remember(NOW, request, None, |_| false, Cost::new(3), taken)
    }

    #[test]
    fn a_decision_is_found_again_with_its_request_but_for_secrets() {
        let recent = recent(1000, 1 << 20);
        let nothing = Taken::default;
        let ids: Vec<_> =
            (0..100).map(|at| keep(&recent, &request(&format!("10.0.0.{at}")), nothing())).collect();
        for (at, id) in ids.iter().enumerate() {
            let (told, found) = recent.find(*id).unwrap();
            let wanted = request(&format!("10.0.0.{at}"));
            assert!(found.unwrap().descriptor().pairs().eq(wanted.pairs()));
            assert_eq!((told.cost, id.timestamp_ms()), (Cost::new(3), 1_800_000_000_000));
        }
        assert!(recent.find(Ulid::nil()).is_none() && recent.find(Ulid::max()).is_none());
        let mut distinct = ids.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len());

        let id = recent.remember(NOW, &request("a"), None, |name| name == "user.id", None, nothing());
        let found = recent.find(id).unwrap().1.unwrap();
        assert!(found.descriptor().pairs().eq([("client.ip", "a")]));
    }

    #[test]
    fn the_oldest_go_first_by_number_and_by_bytes() {
        let few = recent(32, 1 << 20);
        let ids: Vec<_> = (0..100).map(|_| keep(&few, &request("a"), Taken::default())).collect();
        assert!(ids[..68].iter().all(|id| few.find(*id).is_none()));
        assert!(ids[68..].iter().all(|id| few.find(*id).is_some()));

        let small = recent(100_000, 64 * 1024);
        let long = "x".repeat(1600);
        let ids: Vec<_> = (0..100).map(|_| keep(&small, &request(&long), Taken::default())).collect();
        let kept = ids.iter().filter(|id| small.find(**id).is_some()).count();
        assert!((16..=40).contains(&kept), "{kept}");
        assert!(small.find(*ids.last().unwrap()).is_some(), "the newest is always kept");
    }

    /// A flood of other decisions made the server forget the attempts under way, whose places then stayed taken.
    #[test]
    fn a_flood_does_not_wash_out_what_waits_for_a_report() {
        let recent = recent(64, 1 << 20);
        let (login, flood) = (gate(ChargeOn::Failure, &[]), gate(ChargeOn::Check, &[]));
        let id = keep(&recent, &request("a"), taken(&login, &request("a"), 1));
        for _ in 0..900 {
            keep(&recent, &request("b"), taken(&flood, &request("b"), 1));
        }
        assert!(recent.follow(id, Follow::Report, None).is_ok());
    }

    #[test]
    fn what_one_decision_takes_is_bounded() {
        let recent = recent(1000, 8 << 20);
        let long = "x".repeat(MAX_REQUEST);
        let id = keep(&recent, &request(&long), Taken::default());
        assert!(recent.find(id).unwrap().1.is_none(), "too long for a question");
        let gate = gate(ChargeOn::Check, &["client.ip"]);
        let fits = request(&"y".repeat(MAX_CHARGED - 100));
        let id = keep(&recent, &fits, taken(&gate, &fits, 1));
        assert!(recent.follow(id, Follow::Refund, None).is_ok());
        let endless = request(&"z".repeat(MAX_CHARGED));
        let id = keep(&recent, &endless, taken(&gate, &endless, 1));
        for what in [Follow::Refund, Follow::Report] {
            assert_eq!(recent.follow(id, what, None).err(), Some(NoFollow::TooLong));
        }
    }

    #[test]
    fn a_decision_is_followed_once() {
        let recent = recent(10, 1 << 20);
        let gate = gate(ChargeOn::Check, &[]);
        let id = keep(&recent, &request("a"), taken(&gate, &request("a"), 2));
        let follow = |what, cost| recent.follow(id, what, Cost::new(cost)).map(|_| ());
        assert_eq!(follow(Follow::Refund, 3), Err(NoFollow::TooMuch { charged: 2 }));
        assert_eq!(follow(Follow::Refund, 1), Ok(()));
        assert_eq!(follow(Follow::Refund, 1), Err(NoFollow::Twice));
        recent.unfollow(id, Follow::Refund);
        assert_eq!(follow(Follow::Refund, 1), Ok(()));
        assert_eq!(follow(Follow::Report, 0), Ok(()));
        assert_eq!(follow(Follow::Report, 0), Err(NoFollow::Twice));
        let denied = keep(&recent, &request("a"), Taken::default());
        assert_eq!(recent.follow(denied, Follow::Refund, None).err(), Some(NoFollow::NothingCharged));
    }

    #[test]
    fn sequence_numbers_may_pass_the_bits_of_an_id() {
        let recent = recent(16, 1 << 20);
        for shard in &recent.shards {
            shard.lock().first = SEQUENCE_MASK;
        }
        let ids: Vec<_> = (0..64).map(|_| keep(&recent, &request("a"), Taken::default())).collect();
        assert!(ids[48..].iter().all(|id| recent.find(*id).is_some()));
        assert!(ids[..48].iter().all(|id| recent.find(*id).is_none()));
    }
}
