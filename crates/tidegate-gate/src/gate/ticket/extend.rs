//! Holds the places of a ticket longer, for work that takes longer than their time to live.
//!
//! Places lapse so that a holder who is lost does not keep them for ever. A holder who is alive says so before that: its
//! places then lapse later, and it gets a ticket in place of the one that it had. The old ticket is settled in the same
//! step, so that a copy of it, sent late or twice, cannot return or extend a place that has gone to somebody else since.
//!
//! Hence a ticket whose charges need several steps is not extended. The first step could hold its places and end its
//! ticket, and a later one be refused or fail: then nobody would have a ticket for places that are held.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Receipt, Tick};

use super::settle::{OWNER, random_id};
use super::{OpenTicket, SealError, Ticket, TicketError, TicketKeys};
use crate::gate::Gate;
use crate::gate::charged::{MadeCharge, Part};
use crate::gate::endings::PartEndings;
use crate::gate::waits::Waits;
use tidegate_limits::store::{Charge, ChargeRules, Ending, Executed};

/// A ticket whose places are held longer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extended {
    /// The ticket that settles the charges from now on; the one that was extended no longer does.
    pub ticket: Ticket,
    /// Its id.
    pub id: u128,
    /// The tick from which it can no longer be settled or extended.
    pub expires: Tick,
    /// The places that are held, in the order of the policies. Places of a policy in shadow mode that had lapsed before are
    /// missing.
    pub places: SmallVec<[HeldPlace; 1]>,
}

/// Places that are held longer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldPlace {
    /// The name of the policy.
    pub policy: Box<str>,
    /// The index of the limit within its policy.
    pub limit: usize,
    /// How many places.
    pub places: Cost,
    /// When they lapse, unless they are returned or extended before; [`Tick::MAX`] means never.
    pub lapses: Tick,
    /// Whether the places were only measured when they were taken, so that their lapse lets nobody else in.
    pub shadow: bool,
}

impl Gate {
    /// Extends a ticket for a caller that waits for engines, or cannot.
    pub(super) async fn extend_ticket(
        &self,
        ticket: &OpenTicket,
        keys: &TicketKeys,
        ttl: Duration,
        id: Option<u128>,
        waits: Waits,
    ) -> Result<Extended, TicketError> {
        if ttl.is_zero() || ttl > Ticket::MAX_TTL {
            return Err(SealError::Lifetime { ttl }.into());
        }
        let now = self.now();
        ticket.in_time(now)?;
        self.tickets().holds(ticket)?;
        let (store, tag) = self.only_place(ticket)?;
        let id = id.map_or_else(random_id, Ok)?;
        let made = ticket.made;
        let mut next = OpenTicket {
            id,
            issuer: (*self.issuer).into(),
            issued: now,
            expires: now.after(ttl).min(made.after(Ticket::MAX_TTL)),
            ..ticket.clone()
        };
        // A new receipt is as long as the former one, so after the step nothing can fail.
        let seal = keys.prepare(next.write().len())?;
        let part = if ticket.has(Part::Spent) { Part::All } else { Part::Outcome };
        let (part, answers) = match self.hold_longer(ticket, store, tag, part, waits).await {
            // What was spent may be settled already, while the work goes on.
            Err(TicketError::Settled) if part == Part::All => {
                (Part::Outcome, self.hold_longer(ticket, store, tag, Part::Outcome, waits).await?)
            }
            held => (part, held?),
        };
        let (charged, mut places) = (&mut next.charged, SmallVec::new());
        for (at, receipt) in answers {
            charged.lines[at].receipt = receipt;
            let made = &charged.lines[at];
            let line = charged.line(made);
            let lapses = made.quota.lapses_at(&receipt).unwrap_or(Tick::MAX);
            let (policy, shadow) = (line.policy.into(), made.shadow_place);
            places.push(HeldPlace { policy, limit: line.limit, places: line.charged, lapses, shadow });
        }
        charged.lines.retain(|made| part == Part::All || made.by_outcome());
        let expires = next.expires;
        self.close_ticket(made, ticket.expires);
        self.open_ticket(made, expires);
        Ok(Extended { ticket: seal.seal(&next.write()), id, expires, places })
    }

    /// Returns the store and the tag that have every charge of a ticket, and so every mark of it.
    ///
    /// # Errors
    /// [`TicketError::NotExtended`] if that is more than one, or the ticket cannot be extended for another reason that
    /// shows without asking a store.
    fn only_place(&self, ticket: &OpenTicket) -> Result<(usize, u64), TicketError> {
        let charged = &ticket.charged;
        let refuse = |why| Err(TicketError::NotExtended { why });
        if !charged.lines.iter().any(MadeCharge::is_lent) {
            return refuse("it has none");
        }
        if charged.lines.iter().any(|made| made.by_fallback) {
            return refuse(
                "some of its charges were made while the store was away; they end in this process, and the others in the store",
            );
        }
        let mut place = None;
        for made in &charged.lines {
            let store = self.routes.of(made.rules.share)?;
            let this = (store, self.routes.tag(store, charged.key(made)));
            if *place.get_or_insert(this) != this {
                return refuse(
                    "its limits are kept in several stores, or on several machines of one, and cannot be changed in one step; \
                     give these places a `ttl` that is longer than the work takes",
                );
            }
        }
        Ok(place.unwrap_or_default())
    }

    /// Marks a part of a ticket as settled, and holds its places longer, in one step. Returns the new receipt of each
    /// place that is held, by the line of the ticket.
    async fn hold_longer(
        &self,
        ticket: &OpenTicket,
        store: usize,
        tag: u64,
        part: Part,
        waits: Waits,
    ) -> Result<Vec<(usize, Receipt)>, TicketError> {
        let (keys, quota) = (ticket.marks(part), ticket.mark_quota());
        let rules = ChargeRules::new(OWNER);
        let mark = |key| Charge { rules, ..Charge::new(key, &quota, Cost::ONE) };
        let once: SmallVec<[Charge<'_>; 2]> = keys.iter().map(|key| mark(key)).collect();
        let charged = &ticket.charged;
        let (mut step, mut lines) = (PartEndings::of(store, tag), SmallVec::<[usize; 2]>::new());
        // Places are in the half for the outcome, so both parts have all of them.
        for (line, made) in charged.lines.iter().enumerate().filter(|(_, made)| made.is_lent()) {
            step.charges.push(Charge { binding: !made.shadow_place, ..charged.charge(made) });
            step.endings.push(Ending::Extend { receipt: made.receipt });
            lines.push(line);
        }
        let answer = self.settle_part(&mut step, &once, &[], waits).await;
        let executed = answer.expect("who extends a ticket waits for the answer")?;
        if !executed.allowed {
            return Err(refused(&executed, once.len()));
        }
        let made = executed.lines[once.len()..].iter().map(|line| line.receipt);
        Ok(lines.into_iter().zip(made).filter_map(|(line, made)| Some((line, made?))).collect())
    }
}

/// Returns why a step was refused: by one of its first `marks` lines, or by a place.
fn refused(executed: &Executed, marks: usize) -> TicketError {
    if executed.lines.iter().take(marks).any(|mark| !mark.decision.is_allowed()) {
        return TicketError::Settled;
    }
    TicketError::NotExtended { why: "they have lapsed, or their key was reset" }
}
