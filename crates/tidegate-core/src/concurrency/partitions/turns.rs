//! Which of the partitions that wait enters next.

use super::Partitions;
use crate::time::Tick;

/// The order of an ask among those that wait, the first one first: whether it borrows, the service that the partition
/// has received for its weight, and the partition's number.
type Rank = (bool, u128, usize);

impl Partitions {
    /// Returns which of the waiting partitions enters next, given how many places each asks for. Partitions within their
    /// guarantee come first; among equals, the one that has received the least service for its weight. If that one
    /// lacks room, the places are left to it, and the others are next only within the parts that they do not lend:
    /// nobody else waits for those. `None` if nobody can enter now. Looks at each that waits.
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

    /// Returns the order of an ask among those that wait: own places before borrowed ones, then by service.
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
            first = first_of(first, (rank, places));
            if self.member(rank.2).is_some_and(|member| places <= member.unlent_left())
                && self.fits(rank.2, places, kept)
            {
                within_unlent = first_of(within_unlent, (rank, places));
            }
        }
        let first = first.filter(|((_, _, number), places)| self.fits(*number, *places, kept));
        first.or(within_unlent).map(|((_, _, number), _)| number)
    }
}
