//! The keys and requests, which are the same for all contenders.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;

/// The type of keys, which every peer accepts without a copy.
pub(crate) type Key = String;

/// Requests in a stream: a power of two, so that advancing costs one `and`, and so many that nearly all of a million
/// evenly drawn keys occur.
const REQUESTS: usize = 1 << 21;

/// Returns `count` keys like `user:1234567`.
pub(crate) fn keys(count: usize) -> Vec<Key> {
    let key = |number| {
        let mut key = Key::new();
        write_key(number, &mut key);
        key.shrink_to_fit();
        key
    };
    (0..count).map(key).collect()
}

/// Overwrites `key` with the key of a number.
pub(crate) fn write_key(number: usize, key: &mut Key) {
    key.clear();
    write!(key, "user:{number}").expect("a string takes what is written to it");
}

/// The keys of requests, one after the other.
///
/// Each request has a copy of its key, in the order of the requests. The processor prefetches it, as a real request's
/// key is in the cache when the request has just been parsed. If requests were indices of keys elsewhere, every
/// contender would pay two cache misses before the limiter is asked.
pub(crate) struct Stream {
    requests: Vec<Key>,
}

impl Stream {
    /// Every key is equally likely.
    pub(crate) fn uniform(keys: &[Key]) -> Self {
        let mut random = Random::new();
        Self { requests: (0..REQUESTS).map(|_| keys[random.below(keys.len())].clone()).collect() }
    }

    /// The key of rank `r` has a probability proportional to `1/r`. Ranks are spread over the keys, so that popular
    /// ones are not adjacent in memory.
    pub(crate) fn zipf(keys: &[Key]) -> Self {
        let mut shares = Vec::with_capacity(keys.len());
        let mut sum = 0.0;
        for rank in 1..=keys.len() {
            sum += 1.0 / rank as f64;
            shares.push(sum);
        }
        let mut random = Random::new();
        let requests = (0..REQUESTS)
            .map(|_| {
                let at = random.unit() * sum;
                let rank = shares.partition_point(|&share| share < at).min(keys.len() - 1);
                keys[spread(rank, keys.len())].clone()
            })
            .collect();
        Self { requests }
    }

    /// Walks the stream in circles, from a different start for each thread.
    pub(crate) fn walk<'a>(&'a self, thread: usize) -> impl FnMut() -> &'a Key {
        let mut at = thread * (REQUESTS / 2 + 77);
        move || {
            let request = &self.requests[at & (REQUESTS - 1)];
            at += 1;
            request
        }
    }
}

/// Maps ranks to keys one to one: the factor is a prime that divides no power of ten.
fn spread(rank: usize, keys: usize) -> usize {
    (rank as u64 * 2_654_435_761 % keys as u64) as usize
}

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(0)
    }

    /// The n-th number is a hash of n under a fixed seed.
    fn next(&mut self) -> u64 {
        self.0 += 1;
        foldhash::quality::FixedState::with_seed(0x7164_6567).hash_one(self.0)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}
