//! One limit divided among partitions: each has a guaranteed part, lends its idle places, and borrows others' by
//! weight.
//!
//! A place within a partition's guarantee is its own; places beyond it are borrowed from those that are idle. When a
//! partition wants its own places back, it is served before all borrowers as places are returned; the limit is not
//! exceeded meanwhile. Borrowers are served by *start-time fair queueing*. Service is measured as the time for which
//! places are held: counted in calls, the partition with the slowest calls would hold most of the places.

#[cfg(test)]
use core::time::Duration;

use crate::error::QuotaError;
use crate::time::{Tick, nanos};

/// The cost of entering with a borrowed place, in nanoseconds, added to the time it is held. Without it, all places
/// that become free at one tick would go to one partition. Much shorter work is shared by the number of entries, much
/// longer work by time.
const ENTRY_COST: u64 = 1_000_000;

/// Service is counted in 1/`SCALE` nanoseconds, so that dividing it by a weight loses nothing that matters.
const SCALE: u128 = 1 << 20;

/// The terms of one partition.
///
/// | parameter | default | range |
/// |---|---|---|
/// | `weight`: its share of the borrowed places, relative to other borrowers | 1 | 1 to 1,000,000 |
/// | `guaranteed`: its own part of the limit, in percent | 0 | 0 to 100, all partitions together at most 100 |
/// | `lends`: how much of its own part others may use while it is idle, in percent | 100 | 0 to 100 |
/// | `dynamic_threshold`: beyond its own part it holds at most as many places as it finds free | off | |
///
/// A partition whose callers wait gets its own part back as others leave, so it can lend all of it. If its callers do
/// not wait, a lent place is missing when they come: lend less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    weight: u32,
    guaranteed: u8,
    lends: u8,
    dynamic_threshold: bool,
}

impl Default for Partition {
    fn default() -> Self {
        Self { weight: 1, guaranteed: 0, lends: 100, dynamic_threshold: false }
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

    /// Sets the partition's own part, in percent of the limit.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is above 100.
    pub fn guaranteed(self, percent: u8) -> Result<Self, QuotaError> {
        Ok(Self { guaranteed: checked("guaranteed", percent)?, ..self })
    }

    /// Sets how much of its own part the partition lends, in percent of that part.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is above 100.
    pub fn lends(self, percent: u8) -> Result<Self, QuotaError> {
        Ok(Self { lends: checked("lends", percent)?, ..self })
    }

    /// Bounds what the partition holds beyond its own part: it enters only while it holds fewer places than are free. Of
    /// partitions whose work hangs, one then holds half of the limit, and `n` hold `n / (n + 1)` of it together: places are
    /// always left for others. A partition that is alone has half of the limit as well; a law that moves the limit by the
    /// work that ends finds the double one.
    ///
    /// An ask for several places waits until so many are free. Nobody saves them up for it.
    ///
    /// # Source
    /// A. Choudhury, E. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions
    /// on Networking 6(2), 1998, with an α of 1.
    #[must_use]
    pub const fn dynamic_threshold(self) -> Self {
        Self { dynamic_threshold: true, ..self }
    }

    /// Returns the partition's own part of the limit, in percent.
    #[must_use]
    pub const fn get_guaranteed(&self) -> u8 {
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

/// A limit, its partitions, who holds its places, and which partition is next. 64 bytes per partition.
///
/// # Laws
/// * *Never above the limit*: work enters only if enough places are free; after the limit was lowered, the excess
///   drains.
/// * *Own places come first*: a waiting partition within its guarantee is served before all borrowers. The part that
///   it does not lend is free for it at once, whoever else waits.
/// * *Work-conserving*: no place stays idle while somebody waits for it, except for places that are not lent, for those
///   that a [dynamic threshold](Partition::dynamic_threshold) leaves free, and for fewer places than the next ask takes.
/// * *Fair by weight*: between two partitions that both wait throughout a span and have no guarantee, the place-time
///   that each received, divided by its weight, differs by at most twice
///   `limit × (longest hold + 1 ms) / least weight`, however long the span.
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
/// P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996. Charging service as it is used, and the
/// bound of twice the amount that can be in flight, as in Y. Sheng et al., "Fairness in Serving Large Language
/// Models" (VTC), OSDI 2024. Lending as in Kubernetes' API priority and fairness (`lendablePercent`).
#[derive(Clone, Debug)]
pub struct Partitions {
    limit: u64,
    in_use: u64,
    /// The start tag of the last borrower served. A partition that comes back after idling starts from it.
    served: u128,
    members: Vec<Option<Member>>,
    /// The numbers of the partitions with a guarantee: at most a hundred, since each has at least 1 %.
    guaranteed: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Member {
    terms: Partition,
    /// How many places are its own under the current limit, and how many of those it does not lend (`unlent`).
    own: u64,
    unlent: u64,
    own_in_use: u64,
    borrowed: u64,
    /// Service received until `at`, divided by the weight, in 1/[`SCALE`] nanoseconds.
    service: u128,
    at: Tick,
}

impl Member {
    fn charge(&mut self, now: Tick) {
        self.service = self.tag(now);
        self.at = self.at.max(now);
    }

    fn tag(&self, now: Tick) -> u128 {
        // One step adds less than 2²⁴ · 2⁶⁴ · 2²⁰; the sum saturates, after centuries of all places in use.
        let held = u128::from(self.borrowed) * u128::from(nanos(now.since(self.at)));
        self.service.saturating_add(self.by_weight(held))
    }

    fn by_weight(&self, nanos: u128) -> u128 {
        nanos * SCALE / u128::from(self.terms.weight)
    }

    const fn is_own(&self, places: u64) -> bool {
        self.own_in_use.saturating_add(places) <= self.own
    }

    const fn in_use(&self) -> u64 {
        self.own_in_use + self.borrowed
    }

    /// Says whether its threshold lets it take this many more places while `free` are free.
    const fn is_below_threshold(&self, places: u64, free: u64) -> bool {
        !self.terms.dynamic_threshold || self.is_own(places) || self.in_use().saturating_add(places) <= free
    }

    /// Returns how many places of the part that it does not lend are idle.
    const fn unlent_left(&self) -> u64 {
        self.unlent.saturating_sub(self.in_use())
    }
}

impl Partitions {
    /// Makes a limit without partitions, and with no place in use.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, in_use: 0, served: 0, members: Vec::new(), guaranteed: Vec::new() }
    }

    /// Adds a partition and returns its number. Numbers of forgotten partitions are reused.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the guarantees would exceed 100 % in all.
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

    /// Forgets a partition that holds no place; otherwise does nothing. If the partition [is
    /// ahead](Partitions::is_ahead), forgetting it also forgets that it received more than its part.
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

    /// Changes the limit. Places in use stay in use.
    pub fn change(&mut self, limit: u64) {
        self.limit = limit;
        self.divide();
    }

    /// Divides the limit among the guarantees: exact parts, rounded to whole places so that their sum is not
    /// exceeded.
    fn divide(&mut self) {
        let (limit, mut percent) = (u128::from(self.limit), 0);
        for number in &self.guaranteed {
            let Some(Some(member)) = self.members.get_mut(*number) else { continue };
            let below = limit * percent / 100;
            percent += u128::from(member.terms.guaranteed);
            // A part of a `u64`, so it fits.
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

    /// Returns how many places a partition holds; 0 if there is no such partition.
    #[must_use]
    pub fn in_use(&self, number: usize) -> u64 {
        self.member(number).map_or(0, Member::in_use)
    }

    /// Returns the weight of a partition; 0 if there is no such partition.
    #[must_use]
    pub fn weight(&self, number: usize) -> u32 {
        self.member(number).map_or(0, |member| member.terms.weight)
    }

    /// Returns how many places are a partition's own under the current limit.
    #[cfg(test)]
    fn own(&self, number: usize) -> u64 {
        self.member(number).map_or(0, |member| member.own)
    }

    /// Says whether a partition has received more than its part, in which case forgetting it would be to its
    /// advantage.
    #[must_use]
    pub fn is_ahead(&self, number: usize, now: Tick) -> bool {
        self.member(number).is_some_and(|member| member.tag(now) > self.served)
    }

    /// Says whether this many places are free for a partition, ignoring who waits. Looks at each partition that has a
    /// guarantee.
    #[must_use]
    pub fn has_room(&self, number: usize, places: u64) -> bool {
        self.fits(number, places, self.kept())
    }

    /// Returns the most places that a partition can have at once: all but those that others do not lend. Looks at each
    /// partition that has a guarantee.
    #[must_use]
    pub fn most(&self, number: usize) -> u64 {
        let others = self.guarantees().filter(|(other, _)| *other != number);
        self.limit
            .saturating_sub(others.fold(0, |unlent: u64, (_, other)| unlent.saturating_add(other.unlent)))
    }

    const fn free(&self) -> u64 {
        self.limit.saturating_sub(self.in_use)
    }

    fn kept(&self) -> u64 {
        self.guarantees().fold(0, |kept, (_, member)| kept.saturating_add(member.unlent_left()))
    }

    /// Says whether this many places are free for a partition while `kept` idle places are not lent, its own included.
    fn fits(&self, number: usize, places: u64, kept: u64) -> bool {
        let Some(member) = self.member(number) else { return false };
        if !member.is_below_threshold(places, self.free()) {
            return false;
        }
        let kept_by_others = kept - member.unlent_left().min(kept);
        self.in_use.saturating_add(places).saturating_add(kept_by_others) <= self.limit
    }

    /// Takes places for a partition and returns whether they are its own. The caller has checked that there is room
    /// and that it is this partition's turn. A `now` before an earlier one counts as the earlier one.
    pub fn enter(&mut self, number: usize, places: u64, now: Tick) -> bool {
        let served = self.served;
        let Some(Some(member)) = self.members.get_mut(number) else { return false };
        self.in_use = self.in_use.saturating_add(places);
        if member.is_own(places) {
            member.own_in_use += places;
            return true;
        }
        member.charge(now);
        // A partition that idled does not catch up on that time.
        let start = member.service.max(served);
        let cost = u128::from(places) * u128::from(ENTRY_COST);
        member.service = start.saturating_add(member.by_weight(cost));
        member.borrowed = member.borrowed.saturating_add(places);
        self.served = start;
        false
    }

    /// Returns places; `own` is the value that [`Partitions::enter`] returned for them.
    pub fn leave(&mut self, number: usize, places: u64, own: bool, now: Tick) {
        let Some(Some(member)) = self.members.get_mut(number) else { return };
        member.charge(now);
        let held = if own { &mut member.own_in_use } else { &mut member.borrowed };
        *held = held.saturating_sub(places);
        self.in_use = self.in_use.saturating_sub(places);
    }

    /// Records that a partition begins to wait. It does not catch up on the time before, in which it wanted nothing.
    pub fn wait(&mut self, number: usize, now: Tick) {
        let served = self.served;
        if let Some(Some(member)) = self.members.get_mut(number) {
            member.charge(now);
            member.service = member.service.max(served);
        }
    }

    /// Returns the largest difference in service between two partitions that both wait: half of the fairness bound
    /// stated above.
    #[cfg(test)]
    fn bound(&self, longest_hold: Duration) -> u128 {
        let weights = self.members.iter().flatten().map(|member| member.terms.weight);
        let cost = u128::from(nanos(longest_hold)) + u128::from(ENTRY_COST);
        u128::from(self.limit) * cost / u128::from(weights.min().unwrap_or(1))
    }
}

/// The order of an ask among those that wait: whether it borrows, the service that its partition has received for its
/// weight, and the partition's number.
type Rank = (bool, u128, usize);

impl Partitions {
    /// Returns which of the waiting partitions enters next, given how many places each asks for; `None` if nobody can
    /// enter now. Partitions within their guarantee come first; among equals, the one that has received the least
    /// service for its weight. If that one lacks room, others are next only within the parts that they do not lend:
    /// nobody else waits for those. One that its threshold holds back holds up nobody. Looks at each that waits.
    #[must_use]
    pub fn next(&self, waiting: impl Iterator<Item = (usize, u64)>, now: Tick) -> Option<usize> {
        self.first_with_room(waiting.filter_map(|ask| Some((self.rank(ask, now)?, ask.1))))
    }

    /// Says whether a partition that begins to wait now would be the [next](Partitions::next), beside others that wait.
    #[must_use]
    pub fn is_next(
        &self,
        (number, places): (usize, u64),
        others: impl Iterator<Item = (usize, u64)>,
        now: Tick,
    ) -> bool {
        let Some((borrows, tag, _)) = self.rank((number, places), now) else { return false };
        // As in `wait`: it does not catch up on the time in which it wanted nothing.
        let newcomer = ((borrows, tag.max(self.served), number), places);
        let others = others.filter_map(|ask| Some((self.rank(ask, now)?, ask.1)));
        self.first_with_room(others.chain([newcomer])) == Some(number)
    }

    fn rank(&self, (number, places): (usize, u64), now: Tick) -> Option<Rank> {
        let member = self.member(number)?;
        Some((!member.is_own(places), member.tag(now), number))
    }

    fn first_with_room(&self, waiting: impl Iterator<Item = (Rank, u64)>) -> Option<usize> {
        let (mut first, mut within_unlent) = (None, None);
        let first_of = |best: Option<(Rank, u64)>, ask: (Rank, u64)| {
            Some(best.filter(|best| best.0 <= ask.0).unwrap_or(ask))
        };
        let kept = self.kept();
        for (rank, places) in waiting {
            let Some(member) = self.member(rank.2) else { continue };
            if !member.is_below_threshold(places, self.free()) {
                continue;
            }
            first = first_of(first, (rank, places));
            if places <= member.unlent_left() && self.fits(rank.2, places, kept) {
                within_unlent = first_of(within_unlent, (rank, places));
            }
        }
        let first = first.filter(|((_, _, number), places)| self.fits(*number, *places, kept));
        first.or(within_unlent).map(|((_, _, number), _)| number)
    }
}

#[cfg(test)]
mod tests;
