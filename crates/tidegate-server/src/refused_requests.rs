//! Gives decisions their ids, and remembers refused requests.
//!
//! Only refusals are remembered, because those are asked about: a request that passes is copied nowhere and takes
//! no lock. The memory is bounded by requests and by bytes, and each request is bounded too; the oldest go first.
//! Shards keep callers on several cores apart.
//!
//! An id is a ULID: 48 bits of time, then a keyed hash and, masked by it, the shard and the sequence number. So a
//! look-up is an index, and an id reveals neither the number of decisions nor other ids.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::limiter::Retry;
use tidegate::policy::{Descriptor, Mode};
use tidegate::priority::Priority;
use tidegate::{Cost, Tick};
use ulid::Ulid;

use crate::decided_again::AskedLimit;

/// The number of shards: enough that two of a handful of cores seldom need the same one.
const SHARDS: usize = 16;
/// The bits of the masked place: 5 for the shard, 27 for the sequence. 5 bits number twice as many shards as there
/// are, so the id of a request that is not remembered names none.
const PLACE_BITS: u32 = 32;
const SEQUENCE_BITS: u32 = 27;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
/// Headers that hold secrets. They are remembered only if a policy's key is made of them.
const SECRET: [&str; 4] = [
    "request.header.authorization",
    "request.header.cookie",
    "request.header.proxy-authorization",
    "request.header.x-api-key",
];
/// The longest request that is kept, in bytes: one long value, or twice the headers of a browser.
const MAX_REQUEST: usize = 8 * 1024;
/// The size of an entry beside its attributes.
const OVERHEAD: usize = size_of::<KeptRequest>();

/// Returns whether an attribute holds a secret.
pub(crate) fn is_secret(attribute: &str) -> bool {
    SECRET.contains(&attribute)
}

/// Returns whether a key, or the entry of a list, holds a secret: `name=value`, several separated by commas.
pub(crate) fn holds_secret(text: &str) -> bool {
    let is_named =
        |name: &&str| text.match_indices(*name).any(|(at, _)| text[at + name.len()..].starts_with('='));
    SECRET.iter().any(is_named)
}

/// A bounded memory of refused requests; keeps the newest.
#[derive(Debug)]
pub(crate) struct RefusedRequests {
    shards: [Mutex<Shard>; SHARDS],
    next: AtomicU64,
    hasher: RandomState,
    /// The most entries in a shard.
    entries: usize,
    /// The most bytes in a shard.
    bytes: usize,
}

#[derive(Debug, Default)]
struct Shard {
    entries: VecDeque<KeptRequest>,
    /// The sequence number of the first entry.
    first: u64,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stated {
    /// The cost that the caller gave.
    pub(crate) cost: Option<Cost>,
    pub(crate) priority: Priority,
}

/// How a request was refused, and what was seen then: nothing that changes later alters it. `T` is a text.
#[derive(Clone, Debug)]
pub(crate) struct Record<T = Box<str>> {
    pub(crate) at: Tick,
    /// The number of the configuration that decided.
    pub(crate) configuration: u64,
    /// What refused, in the words of the denial log.
    pub(crate) by: &'static str,
    pub(crate) policy: Option<T>,
    /// The key that the policy refused; `None` if no policy did.
    pub(crate) key: Option<T>,
    /// The reason of a block, the entry of a list, or the error of a store.
    pub(crate) cause: T,
    pub(crate) retry: Retry,
    /// The first limits that were asked.
    pub(crate) limits: SmallVec<[SeenLimit<T>; 1]>,
    /// How many further limits were asked.
    pub(crate) more_limits: usize,
}

/// One limit as a refused request met it.
#[derive(Clone, Debug)]
pub(crate) struct SeenLimit<T = Box<str>> {
    pub(crate) policy: T,
    /// The limit in short form.
    pub(crate) limit: T,
    pub(crate) mode: Mode,
    pub(crate) shadow_limit: bool,
    /// Whether the limit is the canary's, which decided in the place of the first.
    pub(crate) canary: bool,
    /// `allowed`, `DENIED`, `would deny`, `marked` or `demoted`.
    pub(crate) result: &'static str,
    pub(crate) counts_places: bool,
    pub(crate) needs: Option<u64>,
    pub(crate) has: u64,
    pub(crate) kept_back: u64,
    pub(crate) of: u64,
    /// `None` if the limit allowed the request.
    pub(crate) retry: Option<Retry>,
    /// What it takes to decide it again; `None` if no limit applied, or the cost was not known.
    pub(crate) asked: Option<AskedLimit>,
}

/// A place in the texts of a refusal, which are kept in one piece of memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    start: u32,
    end: u32,
}

impl Piece {
    /// Appends a text.
    pub(crate) fn of(text: &str, texts: &mut String) -> Self {
        Self::made(texts, |texts| texts.push_str(text))
    }

    /// Returns the place of what `append` appends.
    pub(crate) fn made(texts: &mut String, append: impl FnOnce(&mut String)) -> Self {
        // Cannot truncate: requests are bounded, names are those of a file, and keys are cut.
        let start = texts.len() as u32;
        append(texts);
        Self { start, end: texts.len() as u32 }
    }

    fn read(self, texts: &str) -> Box<str> {
        texts[self.start as usize..self.end as usize].into()
    }
}

impl Record<Piece> {
    fn read(&self, texts: &str) -> Record {
        let limit = |seen: &SeenLimit<Piece>| SeenLimit {
            policy: seen.policy.read(texts),
            limit: seen.limit.read(texts),
            mode: seen.mode,
            shadow_limit: seen.shadow_limit,
            canary: seen.canary,
            result: seen.result,
            counts_places: seen.counts_places,
            needs: seen.needs,
            has: seen.has,
            kept_back: seen.kept_back,
            of: seen.of,
            retry: seen.retry,
            asked: seen.asked.clone(),
        };
        Record {
            at: self.at,
            configuration: self.configuration,
            by: self.by,
            policy: self.policy.map(|piece| piece.read(texts)),
            key: self.key.map(|piece| piece.read(texts)),
            cause: self.cause.read(texts),
            retry: self.retry,
            limits: self.limits.iter().map(limit).collect(),
            more_limits: self.more_limits,
        }
    }
}

/// A refused request, as it is remembered.
#[derive(Clone, Debug)]
pub(crate) struct RememberedRefusal {
    pub(crate) record: Record,
    pub(crate) stated: Stated,
    /// `None` if it was too long.
    pub(crate) request: Option<RefusedRequest>,
}

/// A remembered refusal with one allocation for all its texts: in a flood one is forgotten for each that is remembered.
#[derive(Debug)]
struct KeptRequest {
    id: Ulid,
    record: Record<Piece>,
    stated: Stated,
    /// The ends of the request's pieces, with which the texts begin; `None` if it was too long.
    request: Option<Ends>,
    only: Option<Box<[Box<str>]>>,
    texts: String,
}

/// The end of each piece of a request: name, value, name, value.
type Ends = SmallVec<[u32; 12]>;

/// Room for the texts of a record beside those of its request, in bytes; they may need more.
const ROOM: usize = 128;

/// An owned copy of a request; one allocation holds all names and values.
#[derive(Clone)]
pub(crate) struct RefusedRequest {
    text: Box<str>,
    ends: Ends,
    /// The policies that were asked; usually `None`, for all.
    only: Option<Box<[Box<str>]>>,
}

impl RefusedRequest {
    /// Copies a request; `None` if it is too long.
    pub(crate) fn new(request: &Descriptor<'_>, only: Option<Box<[Box<str>]>>) -> Option<Self> {
        let mut text = String::new();
        let ends = append(request, |_| false, &mut text)?;
        Some(Self { text: text.into_boxed_str(), ends, only })
    }

    /// Returns the request as a descriptor.
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

    pub(crate) fn only(&self) -> Option<&[Box<str>]> {
        self.only.as_deref()
    }
}

/// Appends the names and values of a request without its `secret` attributes, and makes room for those of its record.
/// Returns their ends in `texts`, which are empty before; `None` if the request is too long.
fn append(request: &Descriptor<'_>, secret: impl Fn(&str) -> bool, texts: &mut String) -> Option<Ends> {
    let pairs = || request.pairs().filter(|(name, _)| !secret(name));
    let (length, count) =
        pairs().fold((0, 0), |(length, count), (name, value)| (length + name.len() + value.len(), count + 1));
    if length > MAX_REQUEST {
        return None;
    }
    texts.reserve(length + ROOM);
    let mut ends = SmallVec::with_capacity(2 * count);
    for piece in pairs().flat_map(|(name, value)| [name, value]) {
        texts.push_str(piece);
        // Cannot truncate: the length is bounded above.
        ends.push(texts.len() as u32);
    }
    Some(ends)
}

impl KeptRequest {
    fn weight(&self) -> usize {
        let limits = if self.record.limits.spilled() { self.record.limits.capacity() } else { 0 };
        let ends = self.request.as_ref().filter(|ends| ends.spilled()).map_or(0, SmallVec::capacity);
        let named = self.only.iter().flatten().map(|name| size_of::<Box<str>>() + name.len());
        OVERHEAD
            + self.texts.capacity()
            + limits * size_of::<SeenLimit<Piece>>()
            + ends * size_of::<u32>()
            + named.sum::<usize>()
    }

    fn read(&self) -> RememberedRefusal {
        let request = self.request.as_ref().map(|ends| {
            let end = ends.last().map_or(0, |end| *end as usize);
            RefusedRequest { text: self.texts[..end].into(), ends: ends.clone(), only: self.only.clone() }
        });
        RememberedRefusal { record: self.record.read(&self.texts), stated: self.stated, request }
    }
}

impl fmt::Debug for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out data from callers.
        f.debug_struct("RefusedRequest").field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

impl RefusedRequests {
    /// Makes a memory for at most this many requests and bytes.
    pub(crate) fn new(entries: usize, bytes: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicU64::new(0),
            hasher: RandomState::new(),
            entries: entries.div_ceil(SHARDS).max(1),
            bytes: bytes.div_ceil(SHARDS),
        }
    }

    /// Returns the id of a decision that is not remembered. Takes two hashes and no lock.
    pub(crate) fn name(&self, at: Tick) -> Ulid {
        // Relaxed: the number only has to be unique.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.id(at, number, SHARDS, number)
    }

    /// Remembers a decision and its request without `secret` attributes. `record` appends its texts.
    pub(crate) fn remember(
        &self,
        request: &Descriptor<'_>,
        only: Option<Box<[Box<str>]>>,
        secret: impl Fn(&str) -> bool,
        stated: Stated,
        record: impl FnOnce(&mut String) -> Record<Piece>,
    ) -> Ulid {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let at_shard = number as usize % SHARDS;
        let mut texts = String::new();
        let request = append(request, secret, &mut texts);
        let record = record(&mut texts);
        if texts.capacity() > 2 * (texts.len() + ROOM) {
            // A long key was cut.
            texts.shrink_to_fit();
        }
        let at = record.at;
        let mut entry = KeptRequest { id: Ulid::nil(), record, stated, request, only, texts };
        let weight = entry.weight();
        let mut shard = self.shards[at_shard].lock();
        while shard.entries.len() >= self.entries
            || (shard.bytes + weight > self.bytes && !shard.entries.is_empty())
        {
            shard.forget_oldest();
        }
        let sequence = shard.first + shard.entries.len() as u64;
        let id = self.id(at, number, at_shard, sequence);
        entry.id = id;
        shard.bytes += weight;
        shard.entries.push_back(entry);
        id
    }

    /// Returns what is remembered of a decision.
    pub(crate) fn find(&self, id: Ulid) -> Option<RememberedRefusal> {
        let (at_shard, sequence) = self.place(id);
        let shard = self.shards.get(at_shard)?.lock();
        Some(shard.entries[shard.index(id, sequence)?].read())
    }

    fn id(&self, at: Tick, number: u64, shard: usize, sequence: u64) -> Ulid {
        let hash = self.hasher.hash_one(number) & 0xffff_ffff_ffff;
        let place = (shard as u64) << SEQUENCE_BITS | (sequence & SEQUENCE_MASK);
        let masked = place ^ self.mask(hash);
        Ulid::from_parts(at.as_nanos() / 1_000_000, u128::from(hash) << PLACE_BITS | u128::from(masked))
    }

    fn place(&self, id: Ulid) -> (usize, u64) {
        let random = id.random();
        let masked = random as u64 & 0xffff_ffff;
        let place = masked ^ self.mask((random >> PLACE_BITS) as u64);
        ((place >> SEQUENCE_BITS) as usize, place & SEQUENCE_MASK)
    }

    fn mask(&self, hash: u64) -> u64 {
        self.hasher.hash_one((hash, "place")) & 0xffff_ffff
    }
}

impl Shard {
    /// Finds an entry by the low bits of its sequence number, and verifies the id.
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
    use tidegate::priority::Criticality;

    use super::*;

    const NOW: Tick = Tick::from_secs(1_800_000_000);
    const STATED: Stated = Stated { cost: Cost::new(3), priority: Priority::of(Criticality::Sheddable) };

    fn request(value: &str) -> Descriptor<'static> {
        Descriptor::new().with("client.ip", value.to_owned()).with("user.id", "42")
    }

    fn record(texts: &mut String) -> Record<Piece> {
        Record {
            at: NOW,
            configuration: 3,
            by: "limit",
            policy: Some(Piece::of("per-ip", texts)),
            key: None,
            cause: Piece::default(),
            retry: Retry::Unknown,
            limits: SmallVec::new(),
            more_limits: 0,
        }
    }

    fn keep(recent: &RefusedRequests, request: &Descriptor<'_>) -> Ulid {
        recent.remember(request, None, |_| false, STATED, record)
    }

    #[test]
    fn a_refused_request_is_found_again_but_for_its_secrets() {
        let recent = RefusedRequests::new(1000, 1 << 20);
        let ids: Vec<_> = (0..100).map(|at| keep(&recent, &request(&format!("10.0.0.{at}")))).collect();
        for (at, id) in ids.iter().enumerate() {
            let RememberedRefusal { record, stated, request: found } = recent.find(*id).unwrap();
            assert_eq!((record.at, record.configuration, record.by), (NOW, 3, "limit"));
            assert_eq!(
                (record.policy.as_deref(), record.key.as_deref(), &*record.cause),
                (Some("per-ip"), None, "")
            );
            let wanted = request(&format!("10.0.0.{at}"));
            assert!(found.unwrap().descriptor().pairs().eq(wanted.pairs()));
            assert_eq!((stated, id.timestamp_ms()), (STATED, 1_800_000_000_000));
        }
        assert!(recent.find(Ulid::nil()).is_none() && recent.find(Ulid::max()).is_none());
        let named: Vec<_> = (0..100).map(|_| recent.name(NOW)).collect();
        assert!(named.iter().all(|id| recent.find(*id).is_none()));
        let mut distinct = [ids, named].concat();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 200);

        let id = recent.remember(&request("a"), None, |name| name == "user.id", Stated::default(), record);
        let found = recent.find(id).unwrap().request.unwrap();
        assert!(found.descriptor().pairs().eq([("client.ip", "a")]));
    }

    #[test]
    fn the_oldest_go_first_by_number_and_by_bytes() {
        let few = RefusedRequests::new(32, 1 << 20);
        let ids: Vec<_> = (0..100).map(|_| keep(&few, &request("a"))).collect();
        assert!(ids[..68].iter().all(|id| few.find(*id).is_none()));
        assert!(ids[68..].iter().all(|id| few.find(*id).is_some()));

        let small = RefusedRequests::new(100_000, 64 * 1024);
        let long = "x".repeat(1600);
        let ids: Vec<_> = (0..100).map(|_| keep(&small, &request(&long))).collect();
        let kept = ids.iter().filter(|id| small.find(**id).is_some()).count();
        assert!((16..=40).contains(&kept), "{kept}");
        assert!(small.find(*ids.last().unwrap()).is_some(), "the newest is always kept");
        let id = keep(&small, &request(&"x".repeat(MAX_REQUEST)));
        assert!(small.find(id).unwrap().request.is_none(), "too long for a question");
    }

    #[test]
    fn sequence_numbers_may_pass_the_bits_of_an_id() {
        let recent = RefusedRequests::new(16, 1 << 20);
        for shard in &recent.shards {
            shard.lock().first = SEQUENCE_MASK;
        }
        let ids: Vec<_> = (0..64).map(|_| keep(&recent, &request("a"))).collect();
        assert!(ids[48..].iter().all(|id| recent.find(*id).is_some()));
        assert!(ids[..48].iter().all(|id| recent.find(*id).is_none()));
    }
}
