//! Remembers recent decisions, so that a report, a refund or a question can follow one by its id.
//!
//! Memory is bounded twice: by the number of decisions and by the bytes of their attributes; the oldest go first. Shards
//! keep callers on several cores from waiting for each other; a check takes one short lock and one allocation.
//!
//! An id is a ULID: 48 bits of time, then 80 bits that lead back to the place. These hold a keyed hash and, masked by it,
//! shard and sequence number, so that finding one is an index and neither the number of decisions nor another id can be
//! read from one.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::policy::Descriptor;
use tidegate::{Cost, Tick};
use ulid::Ulid;

/// Shards; enough that two of a handful of cores seldom meet.
const SHARDS: usize = 16;
/// Bits of the id that hold the masked place: 4 of shard, 28 of sequence.
const PLACE_BITS: u32 = 32;
const SEQUENCE_MASK: u64 = (1 << 28) - 1;
/// What an entry weighs beside its attributes.
const OVERHEAD: usize = size_of::<Entry>();

/// A bounded memory of decisions, newest kept.
#[derive(Debug)]
pub(crate) struct Recent {
    shards: [Mutex<Shard>; SHARDS],
    next: AtomicU64,
    hasher: RandomState,
    /// Entries per shard.
    entries: usize,
    /// Bytes per shard.
    bytes: usize,
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
    request: Remembered,
}

/// What is known of a decision beside the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The cost the caller gave.
    pub(crate) cost: Option<Cost>,
    /// The most that any one limit was charged; zero when nothing was.
    pub(crate) charged: u64,
    /// A report has followed.
    pub(crate) reported: bool,
    /// A refund has followed.
    pub(crate) refunded: bool,
}

/// A request on its own: one allocation for all names and values.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    text: Box<str>,
    /// Where each piece ends: name, value, name, value.
    ends: SmallVec<[u32; 12]>,
    /// The policies it was decided under by name; `None` for all, as usual.
    only: Option<Box<[Box<str>]>>,
}

impl Remembered {
    fn new(request: &Descriptor<'_>, only: Option<Box<[Box<str>]>>) -> Self {
        let length = request.pairs().map(|(name, value)| name.len() + value.len()).sum();
        let mut text = String::with_capacity(length);
        let mut ends = SmallVec::new();
        for piece in request.pairs().flat_map(|(name, value)| [name, value]) {
            text.push_str(piece);
            // A request holds far less than 4 GiB: bodies and heads are bounded.
            ends.push(text.len() as u32);
        }
        Self { text: text.into_boxed_str(), ends, only }
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
        OVERHEAD + self.text.len() + spilled + named.sum::<usize>()
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
    /// More is asked back than was charged.
    TooMuch {
        /// What was charged.
        charged: u64,
    },
}

impl Recent {
    /// Makes a memory of up to `entries` decisions and `bytes` of attributes.
    pub(crate) fn new(entries: usize, bytes: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicU64::new(0),
            hasher: RandomState::new(),
            entries: entries.div_ceil(SHARDS).max(1),
            bytes: bytes.div_ceil(SHARDS),
        }
    }

    /// Remembers a decision and returns its id.
    pub(crate) fn remember(
        &self,
        at: Tick,
        request: &Descriptor<'_>,
        only: Option<Box<[Box<str>]>>,
        cost: Option<Cost>,
        charged: u64,
    ) -> Ulid {
        let request = Remembered::new(request, only);
        let weight = request.weight();
        let told = Told { cost, charged, reported: false, refunded: false };
        // Relaxed: the number is only to be unique.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let at_shard = number as usize % SHARDS;
        let mut shard = self.shards[at_shard].lock();
        while shard.entries.len() >= self.entries
            || (shard.bytes + weight > self.bytes && !shard.entries.is_empty())
        {
            shard.forget_oldest();
        }
        let sequence = shard.first + shard.entries.len() as u64;
        let id = self.name(at, number, at_shard, sequence);
        shard.bytes += weight;
        shard.entries.push_back(Entry { id, told, request });
        id
    }

    /// Finds a decision.
    pub(crate) fn find(&self, id: Ulid) -> Option<(Told, Remembered)> {
        let (at_shard, sequence) = self.place(id);
        let shard = self.shards[at_shard].lock();
        let entry = &shard.entries[shard.index(id, sequence)?];
        Some((entry.told, entry.request.clone()))
    }

    /// Marks a decision as followed, once; `cost` is what a refund asks back.
    ///
    /// Marking comes before the deed, so that of two callers at once only one does it.
    pub(crate) fn follow(
        &self,
        id: Ulid,
        what: Follow,
        cost: Option<Cost>,
    ) -> Result<(Told, Remembered), NoFollow> {
        let (at_shard, sequence) = self.place(id);
        let mut shard = self.shards[at_shard].lock();
        let index = shard.index(id, sequence).ok_or(NoFollow::Unknown)?;
        let Entry { told, request, .. } = &mut shard.entries[index];
        match what {
            Follow::Report if told.reported => return Err(NoFollow::Twice),
            Follow::Report => told.reported = true,
            Follow::Refund if told.refunded => return Err(NoFollow::Twice),
            Follow::Refund if told.charged == 0 => return Err(NoFollow::NothingCharged),
            Follow::Refund if cost.is_some_and(|cost| cost.units() > told.charged) => {
                return Err(NoFollow::TooMuch { charged: told.charged });
            }
            Follow::Refund => told.refunded = true,
        }
        Ok((*told, request.clone()))
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
        let place = (shard as u64) << 28 | (sequence & SEQUENCE_MASK);
        let masked = place ^ self.mask(hash);
        Ulid::from_parts(at.as_nanos() / 1_000_000, u128::from(hash) << PLACE_BITS | u128::from(masked))
    }

    fn place(&self, id: Ulid) -> (usize, u64) {
        let random = id.random();
        let masked = random as u64 & 0xffff_ffff;
        let place = masked ^ self.mask((random >> PLACE_BITS) as u64);
        ((place >> 28) as usize % SHARDS, place & SEQUENCE_MASK)
    }

    fn mask(&self, hash: u64) -> u64 {
        self.hasher.hash_one((hash, "place")) & 0xffff_ffff
    }
}

impl Shard {
    /// Finds the entry of a sequence number of which the low bits are known; the whole id decides.
    fn index(&self, id: Ulid, sequence: u64) -> Option<usize> {
        let ahead = sequence.wrapping_sub(self.first) & SEQUENCE_MASK;
        let index = usize::try_from(ahead).ok()?;
        (self.entries.get(index)?.id == id).then_some(index)
    }

    fn forget_oldest(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.request.weight();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Tick = Tick::from_secs(1_800_000_000);

    fn request(value: &str) -> Descriptor<'static> {
        Descriptor::new().with("client.ip", value.to_owned()).with("user.id", "42")
    }

    #[test]
    fn a_decision_is_found_again_with_its_request() {
        let recent = Recent::new(1000, 1 << 20);
        let ids: Vec<_> = (0..100)
            .map(|at| recent.remember(NOW, &request(&format!("10.0.0.{at}")), None, Cost::new(3), 3))
            .collect();
        for (at, id) in ids.iter().enumerate() {
            let (told, found) = recent.find(*id).unwrap();
            let wanted = request(&format!("10.0.0.{at}"));
            assert!(found.descriptor().pairs().eq(wanted.pairs()));
            assert_eq!((told.cost, told.charged), (Cost::new(3), 3));
            assert_eq!(id.timestamp_ms(), 1_800_000_000_000);
        }
        assert!(recent.find(Ulid::nil()).is_none() && recent.find(Ulid::max()).is_none());
        let mut distinct = ids.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn the_oldest_go_first_by_number_and_by_bytes() {
        let few = Recent::new(32, 1 << 20);
        let ids: Vec<_> = (0..100).map(|_| few.remember(NOW, &request("a"), None, None, 1)).collect();
        assert!(ids[..68].iter().all(|id| few.find(*id).is_none()));
        assert!(ids[68..].iter().all(|id| few.find(*id).is_some()));

        let small = Recent::new(100_000, 16 * 1024);
        let long = "x".repeat(400);
        let ids: Vec<_> = (0..100).map(|_| small.remember(NOW, &request(&long), None, None, 1)).collect();
        let kept = ids.iter().filter(|id| small.find(**id).is_some()).count();
        assert!((16..=32).contains(&kept), "{kept}");
        assert!(small.find(*ids.last().unwrap()).is_some(), "the newest is always kept");
    }

    #[test]
    fn a_decision_is_followed_once() {
        let recent = Recent::new(10, 1 << 20);
        let id = recent.remember(NOW, &request("a"), None, None, 2);
        let follow = |what, cost| recent.follow(id, what, Cost::new(cost)).map(|_| ());
        assert_eq!(follow(Follow::Refund, 3), Err(NoFollow::TooMuch { charged: 2 }));
        assert_eq!(follow(Follow::Refund, 1), Ok(()));
        assert_eq!(follow(Follow::Refund, 1), Err(NoFollow::Twice));
        recent.unfollow(id, Follow::Refund);
        assert_eq!(follow(Follow::Refund, 1), Ok(()));
        assert_eq!(follow(Follow::Report, 0), Ok(()));
        assert_eq!(follow(Follow::Report, 0), Err(NoFollow::Twice));
        let denied = recent.remember(NOW, &request("a"), None, None, 0);
        assert_eq!(recent.follow(denied, Follow::Refund, None).err(), Some(NoFollow::NothingCharged));
    }

    #[test]
    fn sequence_numbers_may_pass_the_bits_of_an_id() {
        let recent = Recent::new(16, 1 << 20);
        for shard in &recent.shards {
            shard.lock().first = SEQUENCE_MASK;
        }
        let ids: Vec<_> = (0..64).map(|_| recent.remember(NOW, &request("a"), None, None, 1)).collect();
        assert!(ids[48..].iter().all(|id| recent.find(*id).is_some()));
        assert!(ids[..48].iter().all(|id| recent.find(*id).is_none()));
    }
}
