//! The protocol of shares, as two pure state machines: a node's side, and the leader's, which computes the next
//! document.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::Tick;

use super::{AVERAGED_OVER, Division, NodeShare, Reported, Shares, is_region};

/// The rounds in the time for which members are kept. Two in a row may fail before the part ends: the third begins
/// three quarters into that time, and the part ends at four fifths.
pub(super) const ROUNDS: u32 = 4;

/// The shortest time between two divisions.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// One unit, counted in the time over which demand is averaged, as a demand in thousandths of a unit per second.
const ONE_UNIT: u64 = 1000 / AVERAGED_OVER.as_secs();

/// What a node has seen of the document; 0 before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) line: u64,
    pub(super) turn: u64,
}

/// A node's side of the protocol: its part of the pool, and until when it is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    seen: Seen,
    part: u32,
    until: Tick,
}

impl Node {
    pub(super) const fn seen(&self) -> Seen {
        self.seen
    }

    pub(super) fn at(&self, now: Tick) -> u32 {
        if now < self.until { self.part } else { 0 }
    }

    pub(super) const fn until(&self) -> Tick {
        self.until
    }

    /// Applies the result of a round that began at `began`: the node was the member `joined` when it renewed, and then
    /// read the document. `None` is a document that does not exist or cannot be read. Rounds do not overlap: each has
    /// ended, or was abandoned, before the next begins.
    ///
    /// The part is used until four fifths of `keeps` after that: a fifth is left for clocks that do not run alike, and
    /// for requests decided while it ends.
    pub(super) fn read(&mut self, joined: u64, began: Tick, keeps: Duration, shares: Option<&Shares>) {
        let Some(shares) = shares else {
            self.part = 0;
            return;
        };
        self.seen = Seen { line: shares.line, turn: shares.turn };
        self.part = shares.of(joined).map_or(0, |node| node.part);
        self.until = began.after(keeps / 5 * 4);
    }

    pub(super) const fn leave(&mut self) {
        (self.part, self.seen) = (0, Seen { line: 0, turn: 0 });
    }
}

/// Returns how many units the demands were counted from; the maximum without any demand, which is certain.
fn counted(demands: &[u64]) -> u64 {
    let all = demands.iter().fold(0u64, |all, demand| all.saturating_add(*demand));
    if all == 0 { u64::MAX } else { all / ONE_UNIT }
}

/// The side of the protocol that writes the document: a node that joined before all others, or believes so.
///
/// Any node that believes that it leads may call it: the result keeps the promise of [the
/// module](super#never-more-than-the-whole) if it replaces exactly the document that was passed in.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    division: Division,
    keeps: Duration,
    /// Since when this node sees a shrink (node and turn) without acknowledgement.
    waits: BTreeMap<(u64, u64), Tick>,
    /// The line that this node has seen last, and since when.
    line: Option<(u64, Tick)>,
    target: Option<BTreeMap<u64, u32>>,
    /// When the target was last computed or confirmed.
    aimed: Option<Tick>,
    /// The turn with which all members were asked to report their demand, and since when.
    asked: Option<(u64, Tick)>,
    /// The turn that was seen last, and since when.
    turn: Option<(u64, Tick)>,
}

impl Leader {
    pub(super) const fn new(division: Division, keeps: Duration) -> Self {
        let waits = BTreeMap::new();
        Self { division, keeps, waits, line: None, target: None, aimed: None, asked: None, turn: None }
    }

    /// Returns the document to write in place of this one, if any. The members were read after it, or a node that has
    /// just joined could be missed. `None` is a document that does not exist or cannot be read.
    ///
    /// `drawn` becomes the line of a document that is begun.
    ///
    /// It is written at least twice in the time for which members are kept, so that all others see that a node leads.
    pub(super) fn next_document(
        &mut self,
        now: Tick,
        shares: Option<&Shares>,
        members: &[Reported],
        drawn: u64,
    ) -> Option<Shares> {
        let Some(shares) = shares else {
            return Some(Shares { turn: 1, line: drawn, open: false, nodes: Vec::new() });
        };
        let mut next = shares.clone();
        let begun = self.begun(now, shares);
        self.free(now, &mut next, members);
        let seen = || members.iter().all(|node| node.report.line == shares.line);
        if shares.open || seen() || now.since(begun) >= self.keeps {
            next.open = true;
            self.aim(now, &next, members);
            self.shrink(&mut next, shares.turn + 1);
            self.grow(&mut next, members, shares.turn + 1);
        }
        let since = match self.turn {
            Some((turn, since)) if turn == shares.turn => since,
            _ => {
                self.turn = Some((shares.turn, now));
                now
            }
        };
        let changed = next != *shares;
        next.turn = shares.turn + 1;
        let asks = self.asked.is_some_and(|(turn, _)| turn > shares.turn);
        (changed || asks || now.since(since) >= self.keeps / 2).then_some(next)
    }

    /// Returns whether the next look should come soon: a member still has to give something up or to report.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waits.is_empty() || self.asked.is_some()
    }

    fn free(&mut self, now: Tick, next: &mut Shares, members: &[Reported]) {
        let (mut waits, line, turn) = (BTreeMap::new(), next.line, next.turn + 1);
        next.nodes.retain_mut(|node| {
            let Some(Reported { report, .. }) = members.iter().find(|member| member.number == node.joined)
            else {
                // The node is not a member, or the region has no member left, so its part has lapsed. A region keeps
                // its row, with nothing, for one more turn: a node that joins it now may have read the document before
                // this one.
                let keeps_place = is_region(node.joined) && node.part > 0;
                if keeps_place {
                    (node.part, node.since) = (0, turn);
                }
                return keeps_place;
            };
            if node.held > node.part {
                let wait = (node.joined, node.since);
                let seen = self.waits.get(&wait).copied().unwrap_or(now);
                if report.line == line && report.turn >= node.since || now.since(seen) >= self.keeps {
                    node.held = node.part;
                } else {
                    waits.insert(wait, seen);
                }
            }
            true
        });
        self.waits = waits;
    }

    fn begun(&mut self, now: Tick, shares: &Shares) -> Tick {
        match self.line {
            Some((line, since)) if line == shares.line => since,
            _ => {
                // Turns of another document have no meaning here.
                (self.line, self.turn) = (Some((shares.line, now)), None);
                (self.target, self.aimed, self.asked) = (None, None, None);
                self.waits.clear();
                now
            }
        }
    }

    /// Computes the target of each member, if a change is worth it, and not too often.
    ///
    /// Members report at their own times, so where load moves, the first to report it would be given nearly all.
    /// Therefore a change that looks worth it is only a reason to ask: a new turn wakes all members at the same moment.
    /// One that does not answer is waited for until it would have renewed anyway.
    fn aim(&mut self, now: Tick, next: &Shares, members: &[Reported]) {
        let pool = self.division.pool(members.len());
        let demands: Vec<u64> = members.iter().map(|node| node.report.demand).collect();
        // One is added for each, so that the first few units do not decide everything (Laplace's rule of succession).
        let likely: Vec<u64> = demands.iter().map(|demand| demand.saturating_add(ONE_UNIT)).collect();
        let parts = self.division.divide(pool, &likely);
        let target: BTreeMap<u64, u32> = members.iter().map(|node| node.number).zip(parts).collect();
        let have = |joined: &u64| next.of(*joined).map_or(0, |node| node.part);
        let pairs = target.iter().map(|(joined, want)| (have(joined), *want));
        let is_worth_it = self.division.is_worth_it(pool, counted(&demands), pairs);
        if let Some((turn, since)) = self.asked {
            let heard = |node: &Reported| node.report.line == next.line && node.report.turn >= turn;
            if !members.iter().all(heard) && now.since(since) < self.keeps / ROUNDS {
                return;
            }
        } else {
            let soon = self.aimed.is_some_and(|at| now.since(at) < AT_MOST_EVERY);
            if soon || !is_worth_it && next.held() <= pool {
                return;
            }
            // A single member gets everything without being asked.
            if members.len() > 1 && next.held() <= pool {
                self.asked = Some((next.turn + 1, now));
                return;
            }
        }
        (self.asked, self.aimed) = (None, Some(now));
        if is_worth_it || next.held() > pool {
            self.target = Some(target);
        }
    }

    fn target(&self, joined: u64) -> Option<u32> {
        self.target.as_ref().and_then(|target| target.get(&joined).copied())
    }

    /// Shrinks parts to their targets, at once.
    fn shrink(&mut self, next: &mut Shares, turn: u64) {
        for node in &mut next.nodes {
            if let Some(target) = self.target(node.joined)
                && target < node.part
            {
                (node.part, node.since) = (target, turn);
            }
        }
    }

    /// Grows parts towards their targets, out of what no node holds.
    fn grow(&mut self, next: &mut Shares, members: &[Reported], turn: u64) {
        let pool = self.division.pool(members.len());
        let mut free = pool.saturating_sub(next.held());
        for Reported { number, .. } in members {
            let Some(target) = self.target(*number) else { continue };
            match next.nodes.iter_mut().find(|node| node.joined == *number) {
                Some(node) => {
                    // What the node still holds may be given back to it.
                    let part = target.min(node.held.saturating_add(free)).max(node.part);
                    free -= part.saturating_sub(node.held);
                    node.held = node.held.max(part);
                    node.part = part;
                }
                None => {
                    let part = target.min(free);
                    free -= part;
                    next.nodes.push(NodeShare { joined: *number, part, held: part, since: turn });
                }
            }
        }
        next.nodes.sort_by_key(|node| node.joined);
    }
}
