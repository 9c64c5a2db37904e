//! One limit divided among many: a guaranteed part each, idle places lent, and what is lent shared by weight.
//!
//! A place within a partition's guarantee is its own. Places beyond it are borrowed, from whatever is idle: a partition that wants its own
//! back is served before all who borrow, as places are left, and the limit is never exceeded meanwhile. Those who borrow are served by
//! *start-time fair queueing*, and what counts as service is the time for which places were held, not how many calls were let in: otherwise
//! whoever makes the slowest calls would hold most of the places.

use core::time::Duration;

use crate::error::QuotaError;
use crate::time::{Tick, nanos};

/// What a borrowed place costs beside the time it is held: without it, all places that become free at one tick would go to one partition.
/// Work that is much shorter is shared by how often it enters, work that is much longer by how long it holds its places.
const ENTRY_COST: u64 = 1_000_000;

/// Service is counted in fractions of a nanosecond, so that dividing it by a weight loses nothing that matters.
const SCALE: u128 = 1 << 20;

/// The terms of one partition.
///
/// | knob | default | range |
/// |---|---|---|
/// | `weight`: of what is borrowed, how much it gets beside others who borrow | 1 | 1 to 1,000,000 |
/// | `guaranteed`: its own part of the limit, in percent | 0 | 0 to 100, all together at most 100 |
/// | `lends`: how much of its own part others may use while it is idle, in percent | 100 | 0 to 100 |
///
/// A partition whose callers wait gets its own part back as others leave, so it can lend all of it. Where its callers do not wait, a
/// place that is lent is not there when they come: lend less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    weight: u32,
    guaranteed: u8,
    lends: u8,
}

impl Default for Partition {
    fn default() -> Self {
        Self { weight: 1, guaranteed: 0, lends: 100 }
    }
}

impl Partition {
    /// Sets the weight.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn weight(self, weight: u32) -> Result<Self, QuotaError> {
        if !(1..=1_000_000).contains(&weight) {
            let want = "is not a weight; use 1 to 1000000";
            return Err(QuotaError::Parameter { name: "weight", value: weight.to_string(), want });
        }
        Ok(Self { weight, ..self })
    }

    /// Sets its own part, in percent of the limit.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn guaranteed(self, percent: u8) -> Result<Self, QuotaError> {
        Ok(Self { guaranteed: checked("guaranteed", percent)?, ..self })
    }

    /// Sets how much of its own part it lends, in percent of that part.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn lends(self, percent: u8) -> Result<Self, QuotaError> {
        Ok(Self { lends: checked("lends", percent)?, ..self })
    }

    /// Returns the weight.
    #[must_use]
    pub const fn weighs(&self) -> u32 {
        self.weight
    }

    /// Returns its own part of the limit, in percent.
    #[must_use]
    pub const fn guarantee(&self) -> u8 {
        self.guaranteed
    }
}

fn checked(name: &'static str, percent: u8) -> Result<u8, QuotaError> {
    if percent > 100 {
        let want = "is more than all of it; use 0 to 100 percent";
        return Err(QuotaError::Parameter { name, value: percent.to_string(), want });
    }
    Ok(percent)
}

/// A limit, who holds its places, and whose turn is next. 80 bytes per partition.
///
/// # Laws
/// * *Never above the limit*: whoever enters finds so many places free; a lowered limit drains.
/// * *Own places come first*: a partition within its guarantee that waits is served before all who borrow. What it does not lend is free
///   for it at once.
/// * *Nothing is left idle* that somebody waits for, but for what is not lent, and for places that add up to less than the next
///   one asks for.
/// * *Fair by weight*: between two partitions that both wait throughout a span and have nothing guaranteed, the place-time that each
///   received, divided by its weight, differs by at most twice `limit × (longest hold + 1 ms) / least weight`, however long the span.
///
/// # Examples
/// ```
/// use tidegate_core::Tick;
/// use tidegate_core::concurrency::{Partition, Partitions};
///
/// let mut places = Partitions::new(4);
/// let reports = places.add(Partition::default(), Tick::EPOCH)?;
/// let checkout = places.add(Partition::default().guaranteed(50)?, Tick::EPOCH)?;
/// for _ in 0..4 {
///     assert!(places.has_room(reports, 1), "idle places are lent");
///     places.enter(reports, 1, Tick::EPOCH);
/// }
/// assert!(!places.has_room(checkout, 1), "all four are lent");
/// places.leave(reports, 1, false, Tick::from_secs(1));
/// let next = places.next([(reports, 1), (checkout, 1)].into_iter(), Tick::from_secs(1));
/// assert_eq!(next, Some(checkout), "what was lent comes back as it is left");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
///
/// # Source
/// P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996; service charged as it is used, and the bound of twice what can be
/// in flight, as in Y. Sheng et al., "Fairness in Serving Large Language Models" (VTC), OSDI 2024. Lending as in Kubernetes' API priority
/// and fairness (`lendablePercent`).
#[derive(Clone, Debug)]
pub struct Partitions {
    limit: u64,
    in_use: u64,
    /// The largest start tag that was served: who comes back after idling starts from it.
    served: u128,
    members: Vec<Option<Member>>,
    /// Those with a guarantee: at most a hundred, for each has at least 1 %.
    guaranteed: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Member {
    terms: Partition,
    /// Its own places under the current limit, and how many of them are not lent.
    own: u64,
    unlent: u64,
    own_in_use: u64,
    borrowed: u64,
    /// Service received until `at`, by weight.
    service: u128,
    at: Tick,
}

impl Member {
    /// Brings the service up to `now`.
    fn charge(&mut self, now: Tick) {
        self.service = self.tag(now);
        self.at = self.at.max(now);
    }

    fn tag(&self, now: Tick) -> u128 {
        // Below 2²⁴ · 2⁶⁴ · 2²⁰ for one step; the sum saturates, after centuries of all places.
        let held = u128::from(self.borrowed) * u128::from(nanos(now.since(self.at)));
        self.service.saturating_add(self.by_weight(held))
    }

    fn by_weight(&self, nanos: u128) -> u128 {
        nanos * SCALE / u128::from(self.terms.weight)
    }

    const fn is_own(&self, places: u64) -> bool {
        self.own_in_use.saturating_add(places) <= self.own
    }
}

impl Partitions {
    /// Makes a limit that nobody holds a place of and that has no partitions yet.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, in_use: 0, served: 0, members: Vec::new(), guaranteed: Vec::new() }
    }

    /// Adds a partition and returns its number; numbers of forgotten ones are given again.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when more than 100 % would be guaranteed in all.
    pub fn add(&mut self, terms: Partition, now: Tick) -> Result<usize, QuotaError> {
        let sum = self.guarantees().map(|(_, member)| u64::from(member.terms.guaranteed)).sum::<u64>();
        if sum + u64::from(terms.guaranteed) > 100 {
            let value = (sum + u64::from(terms.guaranteed)).to_string();
            let want = "percent is more than all; guarantee at most 100 percent together";
            return Err(QuotaError::Parameter { name: "guaranteed", value, want });
        }
        let member =
            Member { terms, own: 0, unlent: 0, own_in_use: 0, borrowed: 0, service: self.served, at: now };
        let number = match self.members.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.members.push(None);
                self.members.len() - 1
            }
        };
        self.members[number] = Some(member);
        if terms.guaranteed > 0 {
            self.guaranteed.push(number);
            self.divide();
        }
        Ok(number)
    }

    /// Forgets a partition that holds no place; otherwise nothing changes. Nothing is lost by it unless the partition
    /// [is ahead](Partitions::is_ahead).
    pub fn forget(&mut self, number: usize) {
        if self.in_use(number) == 0
            && let Some(member) = self.members.get_mut(number)
        {
            *member = None;
            let had = self.guaranteed.len();
            self.guaranteed.retain(|one| *one != number);
            if had != self.guaranteed.len() {
                self.divide();
            }
        }
    }

    /// Changes the limit. Whoever holds a place keeps it.
    pub fn change(&mut self, limit: u64) {
        self.limit = limit;
        self.divide();
    }

    /// Divides the limit among the guarantees: each gets its exact part up to less than a place, and all together no more than theirs.
    fn divide(&mut self) {
        let (limit, mut percent) = (u128::from(self.limit), 0);
        for number in &self.guaranteed {
            let Some(Some(member)) = self.members.get_mut(*number) else { continue };
            let below = limit * percent / 100;
            percent += u128::from(member.terms.guaranteed);
            // A part of a `u64`.
            member.own = (limit * percent / 100 - below) as u64;
            let lent = u128::from(member.own) * u128::from(member.terms.lends) / 100;
            member.unlent = member.own - lent as u64;
        }
    }

    fn guarantees(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.guaranteed.iter().filter_map(|number| Some((*number, self.member(*number)?)))
    }

    fn member(&self, number: usize) -> Option<&Member> {
        self.members.get(number)?.as_ref()
    }

    /// Returns how many places a partition holds; 0 for one that is not there.
    #[must_use]
    pub fn in_use(&self, number: usize) -> u64 {
        self.member(number).map_or(0, |member| member.own_in_use + member.borrowed)
    }

    /// Returns the weight of a partition; 0 for one that is not there.
    #[must_use]
    pub fn weight(&self, number: usize) -> u32 {
        self.member(number).map_or(0, |member| member.terms.weight)
    }

    /// Returns how many places are a partition's own under the current limit.
    #[must_use]
    pub fn own(&self, number: usize) -> u64 {
        self.member(number).map_or(0, |member| member.own)
    }

    /// Says whether so many more places would be within a partition's guarantee.
    #[must_use]
    pub fn is_own(&self, number: usize, places: u64) -> bool {
        self.member(number).is_some_and(|member| member.is_own(places))
    }

    /// Says whether a partition has received more than its part, so that forgetting it would be to its advantage.
    #[must_use]
    pub fn is_ahead(&self, number: usize, now: Tick) -> bool {
        self.member(number).is_some_and(|member| member.tag(now) > self.served)
    }

    /// Says whether so many places are free for a partition, without regard to who waits. Looks at each partition that has a guarantee.
    #[must_use]
    pub fn has_room(&self, number: usize, places: u64) -> bool {
        let others = self.guarantees().filter(|(other, _)| *other != number);
        let kept = others.fold(0u64, |kept, (_, other)| {
            kept.saturating_add(other.unlent.saturating_sub(other.own_in_use + other.borrowed))
        });
        let needed = self.in_use.saturating_add(places).saturating_add(kept);
        self.member(number).is_some() && needed <= self.limit
    }

    /// Takes places for a partition; says whether they are its own. For whoever found room and is next. `now` before an earlier one counts
    /// as that.
    pub fn enter(&mut self, number: usize, places: u64, now: Tick) -> bool {
        let served = self.served;
        let Some(Some(member)) = self.members.get_mut(number) else { return false };
        self.in_use = self.in_use.saturating_add(places);
        if member.is_own(places) {
            member.own_in_use += places;
            return true;
        }
        member.charge(now);
        // Whoever idled does not catch up on it.
        let start = member.service.max(served);
        let cost = u128::from(places) * u128::from(ENTRY_COST);
        member.service = start.saturating_add(member.by_weight(cost));
        member.borrowed = member.borrowed.saturating_add(places);
        self.served = start;
        false
    }

    /// Returns places; `own` is what [`Partitions::enter`] said.
    pub fn leave(&mut self, number: usize, places: u64, own: bool, now: Tick) {
        let Some(Some(member)) = self.members.get_mut(number) else { return };
        member.charge(now);
        let held = if own { &mut member.own_in_use } else { &mut member.borrowed };
        *held = held.saturating_sub(places);
        self.in_use = self.in_use.saturating_sub(places);
    }

    /// Takes in that a partition begins to wait: it does not catch up on the time for which it wanted nothing.
    pub fn wait(&mut self, number: usize, now: Tick) {
        let served = self.served;
        if let Some(Some(member)) = self.members.get_mut(number) {
            member.charge(now);
            member.service = member.service.max(served);
        }
    }

    /// Returns whose turn is next of those who wait, each with the places it asks for: one within its guarantee before all others, among
    /// equals the one that has received least by its weight. Looks at each.
    #[must_use]
    pub fn next(&self, waiting: impl Iterator<Item = (usize, u64)>, now: Tick) -> Option<usize> {
        let rank = |(number, places): (usize, u64)| {
            let member = self.member(number)?;
            Some((!member.is_own(places), member.tag(now), number))
        };
        waiting.filter_map(rank).min().map(|(_, _, number)| number)
    }

    /// Returns the largest difference between the service, in nanoseconds by weight, that two partitions who both wait can be apart: half of
    /// the bound that is stated above.
    #[must_use]
    pub fn bound(&self, longest_hold: Duration) -> u128 {
        let weights = self.members.iter().flatten().map(|member| member.terms.weight);
        let cost = u128::from(nanos(longest_hold)) + u128::from(ENTRY_COST);
        u128::from(self.limit) * cost / u128::from(weights.min().unwrap_or(1))
    }
}

#[cfg(test)]
mod tests;
