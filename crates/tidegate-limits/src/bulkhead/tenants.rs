//! The tenants that share a bulkhead, and how its places are divided among them.

use std::collections::HashMap;

use tidegate_core::concurrency::{Partition, Partitions};
use tidegate_core::{QuotaError, Tick};

use crate::key::Key;

/// The most tenants known at once. Bounded, since choosing the next waiter looks at all tenants that wait.
const MOST: usize = 4096;
/// The longest key that gets a share of its own, in bytes. Bounded, so that keys sent by callers do not fill the
/// memory.
const LONGEST_KEY: usize = 256;
/// The number of the partition shared by all tenants without terms of their own.
const REST: usize = 0;

/// The tenants of a [`Bulkhead`](crate::Bulkhead): how its places are divided among the callers that name their tenant
/// with [`Enter::of`](crate::Enter::of).
///
/// Named tenants are always known. Other tenants get terms of their own when they first come, up to the number given to
/// [`Tenants::each`]. A further tenant replaces an idle one; while none is idle, it shares the *rest* with all others
/// that have no terms of their own. Without [`Tenants::each`], all tenants that are not named share the rest.
///
/// # Examples
/// ```
/// use tidegate::Bulkhead;
/// use tidegate::bulkhead::Tenants;
/// use tidegate::concurrency::Partition;
///
/// let checkout = Partition::default().guaranteed(50)?.lends(0)?;
/// let tenants = Tenants::default().named("checkout", checkout)?.each(Partition::default(), 1000)?;
/// let bulkhead = Bulkhead::new(4)?.with_tenants(tenants);
///
/// let _busy: Vec<_> = (0..2).map(|_| bulkhead.enter().of("ann").now()).collect::<Result<_, _>>()?;
/// assert!(bulkhead.enter().of("ann").now().is_err(), "two of four are kept for the checkout");
/// assert!(bulkhead.enter().of("checkout").now().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tenants {
    named: Vec<(Box<[u8]>, Partition)>,
    each: Option<(Partition, usize)>,
    rest: Partition,
}

impl Tenants {
    /// Gives a tenant terms of its own.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the guarantees exceed 100 % together, there are more than 4,096 tenants, or the
    /// key has more than 256 bytes.
    pub fn named(mut self, tenant: impl Key, terms: Partition) -> Result<Self, QuotaError> {
        let key: Box<[u8]> = tenant.with_bytes(|bytes| bytes.into());
        if key.len() > LONGEST_KEY {
            let want = "bytes are too long a key; use at most 256";
            return Err(QuotaError::Parameter { name: "tenant", value: key.len().to_string(), want });
        }
        self.named.retain(|(known, _)| *known != key);
        self.named.push((key, terms));
        self.checked()
    }

    /// Gives each tenant that is not named terms of its own, for up to `most` tenants at once. `most` and the number of
    /// named tenants together are 1 to 4,096. An idle tenant is forgotten when another needs its room.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the terms have a guarantee, which cannot be kept for unknown tenants, or `most`
    /// is out of range.
    pub fn each(mut self, terms: Partition, most: usize) -> Result<Self, QuotaError> {
        if terms.get_guaranteed() > 0 {
            let value = terms.get_guaranteed().to_string();
            let want = "percent cannot be kept for tenants that are not named; guarantee 0";
            return Err(QuotaError::Parameter { name: "guaranteed", value, want });
        }
        if most == 0 {
            let want = "is not a number of tenants; use 1 to 4096";
            return Err(QuotaError::Parameter { name: "most", value: most.to_string(), want });
        }
        self.each = Some((terms, most));
        self.checked()
    }

    /// Sets the terms of the share that all other tenants have in common; by default no guarantee and a weight of 1.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the guarantees exceed 100 % together.
    pub fn rest(mut self, terms: Partition) -> Result<Self, QuotaError> {
        self.rest = terms;
        self.checked()
    }

    fn checked(self) -> Result<Self, QuotaError> {
        let known = self.named.len().saturating_add(self.each.map_or(0, |(_, most)| most));
        if known > MOST {
            let want = "tenants are more than can be told apart; use at most 4096";
            return Err(QuotaError::Parameter { name: "tenants", value: known.to_string(), want });
        }
        let mut partitions = Partitions::new(0);
        for terms in self.terms() {
            partitions.add(terms, Tick::EPOCH)?;
        }
        Ok(self)
    }

    fn terms(&self) -> impl Iterator<Item = Partition> {
        [self.rest].into_iter().chain(self.named.iter().map(|(_, terms)| *terms))
    }
}

#[derive(Debug)]
pub(super) struct KnownTenants {
    pub(super) partitions: Partitions,
    numbers: HashMap<Box<[u8]>, usize>,
    unnamed: HashMap<usize, Box<[u8]>>,
    each: Option<(Partition, usize)>,
}

impl KnownTenants {
    pub(super) fn new(tenants: &Tenants, limit: u64, now: Tick) -> Self {
        let mut partitions = Partitions::new(limit);
        let mut numbers = HashMap::new();
        for (number, terms) in tenants.terms().enumerate() {
            // Cannot fail: the terms were checked when the tenants were named. Numbers are given in order.
            let _ = partitions.add(terms, now);
            if let Some(named) = number.checked_sub(1) {
                numbers.insert(tenants.named[named].0.clone(), number);
            }
        }
        Self { partitions, numbers, unnamed: HashMap::new(), each: tenants.each }
    }

    /// Returns the number of a tenant, which becomes known if there is room. `waits` says whether a caller of a tenant
    /// waits.
    pub(super) fn number(&mut self, key: &[u8], now: Tick, waits: impl Fn(usize) -> bool) -> usize {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let Some((terms, most)) = self.each else { return REST };
        if key.is_empty() || key.len() > LONGEST_KEY {
            return REST;
        }
        if self.unnamed.len() >= most && !self.forget_one(now, waits) {
            return REST;
        }
        // Cannot fail: tenants that are not named have no guarantee.
        let Ok(number) = self.partitions.add(terms, now) else { return REST };
        self.numbers.insert(key.into(), number);
        self.unnamed.insert(number, key.into());
        number
    }

    /// Forgets a tenant that is idle and has not received more than its part, so that no tenant gains by being
    /// forgotten.
    fn forget_one(&mut self, now: Tick, waits: impl Fn(usize) -> bool) -> bool {
        let idle = |number: &usize| {
            self.partitions.in_use(*number) == 0 && !waits(*number) && !self.partitions.is_ahead(*number, now)
        };
        let Some(number) = self.unnamed.keys().copied().find(idle) else { return false };
        if let Some(key) = self.unnamed.remove(&number) {
            self.numbers.remove(&key);
        }
        self.partitions.forget(number);
        true
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn idle_tenants_are_forgotten_and_busy_ones_are_not() {
        let each = Tenants::default().each(Partition::default(), 2).unwrap();
        let mut known = KnownTenants::new(&each, 10, Tick::EPOCH);
        let nobody_waits = |_| false;
        let [ann, bob] = ["ann", "bob"].map(|key| known.number(key.as_bytes(), Tick::EPOCH, nobody_waits));
        assert!(ann != bob && ann != REST && bob != REST);
        known.partitions.enter(ann, 1, Tick::EPOCH);
        let eve = known.number(b"eve", Tick::EPOCH, nobody_waits);
        assert_eq!(eve, bob, "bob is idle, and his number is given again");
        assert_eq!(known.number(b"mallory", Tick::EPOCH, |number| number == eve), REST);
        assert_eq!(known.number(b"ann", Tick::EPOCH, nobody_waits), ann);
        assert_eq!(known.number(&[7; 257], Tick::EPOCH, nobody_waits), REST);
        assert_eq!((known.numbers.len(), known.unnamed.len()), (2, 2));
    }

    #[test]
    fn nobody_gains_by_being_forgotten() {
        let each = Tenants::default().each(Partition::default(), 1).unwrap();
        let mut known = KnownTenants::new(&each, 10, Tick::EPOCH);
        let ann = known.number(b"ann", Tick::EPOCH, |_| false);
        known.partitions.enter(ann, 5, Tick::EPOCH);
        known.partitions.leave(ann, 5, false, Tick::from_secs(1));
        assert_eq!(known.number(b"bob", Tick::from_secs(1), |_| false), REST, "ann is five seconds ahead");
    }

    #[test]
    fn terms_that_cannot_be_are_named() {
        let half = Partition::default().guaranteed(50).unwrap();
        let told = |result: Result<Tenants, QuotaError>| result.unwrap_err().to_string();
        let two = Tenants::default().named("a", half).unwrap().named("b", half).unwrap();
        assert!(two.clone().named("a", half).is_ok(), "named again, it is the same one");
        let more = told(two.rest(Partition::default().guaranteed(1).unwrap()));
        assert_eq!(more, "guaranteed 101 percent is more than all; guarantee at most 100 percent together");
        assert!(told(Tenants::default().each(half, 10)).contains("not named"));
        assert!(told(Tenants::default().each(Partition::default(), 4097)).starts_with("tenants 4097"));
        assert!(told(Tenants::default().each(Partition::default(), 0)).contains("use 1 to 4096"));
    }
}
