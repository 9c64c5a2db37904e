//! Holds the places of a ticket longer, for work that takes longer than their time to live.
//!
//! Places lapse so that a holder who is lost does not keep them for ever. A holder who is alive says so before that: its
//! places then lapse later, and it gets a ticket in place of the one that it had. The old ticket is settled in the same
//! step, so that a copy of it, sent late or twice, cannot return or extend a place that has gone to somebody else since.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Receipt, Tick};

use super::settle::{OWNER, random_id};
use super::{OpenTicket, SealError, Ticket, TicketError, TicketKeys};
use crate::gate::Gate;
use crate::gate::charged::{MadeCharge, Part};
use crate::gate::endings::PartEndings;
use crate::gate::waits::{Waits, run_without_waiting};
use crate::store::{Charge, Ending, Settled};

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
    /// The places, in the order of the policies.
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
}

/// The steps of one extension, one for each store and tag: in each the lines of its places.
type Steps<'t> = SmallVec<[(PartEndings<'t>, SmallVec<[usize; 2]>); 1]>;

impl Gate {
    /// Holds the places of a ticket for another time to live of their limits, counted from now, and seals a ticket in
    /// place of this one. The new ticket lives for `ttl` from now, but at most until [`Ticket::MAX_TTL`] after the check:
    /// for that long work can be kept alive. `id` identifies it; `None`: a random id.
    ///
    /// The new ticket has all charges of this one that are not settled yet. The duration of the work counts from the
    /// check, as without an extension. A breaker's place as a probe is not extended.
    ///
    /// One step of each store that has charges of the ticket, all or nothing. If the places lie in several stores and
    /// one of them fails, those of the others are held, and lapse after their time to live.
    ///
    /// # Errors
    /// [`TicketError::NotExtended`] if the ticket has no places, or they have lapsed or were taken while the store was
    /// away; [`TicketError::Settled`] if it was settled or extended before. Nothing changes then. If the store was
    /// [`Unavailable`](crate::store::StoreError::Unavailable), the answer may have been lost: try again, and
    /// [`TicketError::Settled`] means that the places lapse after their time to live.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::gate::ticket::{TicketError, TicketKeys};
    /// use tidegate::gate::{Entry, Part};
    /// use tidegate::policy::Limit;
    /// use tidegate::{Descriptor, Gate, ManualClock, Outcome, Policy, PolicySet, Quota};
    ///
    /// let (clock, minute) = (ManualClock::default(), Duration::from_secs(60));
    /// let one = Policy::new("reports", Limit::new(Quota::concurrency(1, minute)?, "concurrency 1"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![one])?, 1000)?.with_clock(clock.clone());
    /// let keys = TicketKeys::random()?;
    /// let Entry::Admitted(admission) = gate.admit(&Descriptor::new())? else { panic!("a free place") };
    /// let ticket = admission.into_ticket(&keys, 2 * minute).map_err(|refused| refused.0)?;
    ///
    /// clock.advance(minute / 2);
    /// let open = keys.open(&ticket, gate.now())?;
    /// let extended = gate.extend(&open, &keys, 2 * minute, None)?;
    /// assert_eq!(gate.extend(&open, &keys, 2 * minute, None), Err(TicketError::Settled), "by the other ticket");
    ///
    /// clock.advance(minute - Duration::from_secs(1));
    /// assert!(!gate.check(&Descriptor::new())?.allowed, "the place is held");
    /// let open = keys.open(&extended.ticket, gate.now())?;
    /// gate.settle(&open, Part::All, Outcome::Success, |_| None)?;
    /// assert!(gate.check(&Descriptor::new())?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn extend(
        &self,
        ticket: &OpenTicket,
        keys: &TicketKeys,
        ttl: Duration,
        id: Option<u128>,
    ) -> Result<Extended, TicketError> {
        run_without_waiting(self.extend_ticket(ticket, keys, (ttl, id), Waits::No))
    }

    /// Extends a ticket like [`Gate::extend`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::extend`].
    ///
    /// # Cancel safety
    /// If dropped before completion, the places may or may not be held longer, as after
    /// [`Unavailable`](crate::store::StoreError::Unavailable).
    pub async fn extend_async(
        &self,
        ticket: &OpenTicket,
        keys: &TicketKeys,
        ttl: Duration,
        id: Option<u128>,
    ) -> Result<Extended, TicketError> {
        self.extend_ticket(ticket, keys, (ttl, id), Waits::Yes).await
    }

    async fn extend_ticket(
        &self,
        ticket: &OpenTicket,
        keys: &TicketKeys,
        (ttl, id): (Duration, Option<u128>),
        waits: Waits,
    ) -> Result<Extended, TicketError> {
        if ttl.is_zero() || ttl > Ticket::MAX_TTL {
            return Err(SealError::Lifetime { ttl }.into());
        }
        let now = self.now();
        ticket.in_time(now)?;
        self.holds(ticket)?;
        let places = || ticket.charged.of(Part::Outcome).filter(|made| is_held(made));
        let refuse = |why| Err(TicketError::NotExtended { why });
        if places().next().is_none() {
            return refuse("it has none");
        }
        if places().any(|made| made.by_fallback) {
            return refuse("they were taken while the store was away, and lapse after their time to live");
        }
        let id = id.map_or_else(random_id, Ok)?;
        let part = if ticket.has(Part::Spent) { Part::All } else { Part::Outcome };
        let (part, answers) = match self.hold_longer(ticket, part, waits).await {
            // What was spent may be settled already, while the work goes on.
            Err(TicketError::Settled) if part == Part::All => {
                (Part::Outcome, self.hold_longer(ticket, Part::Outcome, waits).await?)
            }
            held => (part, held?),
        };
        let mut charged = ticket.charged.clone();
        for (line, receipt) in answers {
            charged.lines[line].receipt = receipt;
        }
        charged.lines.retain(|made| part == Part::All || made.by_outcome());
        let places = charged.of(Part::Outcome).filter(|made| is_held(made)).map(|made| {
            let line = charged.line(made);
            let lapses = made.quota.lapses_at(&made.receipt).unwrap_or(Tick::MAX);
            HeldPlace { policy: line.policy.into(), limit: line.limit, places: line.charged, lapses }
        });
        let places = places.collect();
        let expires = now.after(ttl).min(ticket.made.after(Ticket::MAX_TTL));
        let home = self.routes.home(charged.of(Part::All));
        let made = ticket.made;
        let next = OpenTicket { id, issuer: (*self.issuer).into(), home, made, expires, charged };
        let sealed = keys.seal(&next.write())?;
        self.close_ticket(made, ticket.expires);
        self.open_ticket(made, expires);
        Ok(Extended { ticket: sealed, id, expires, places })
    }

    /// Marks a part of a ticket as settled, and holds its places longer, in the same steps. Returns the new receipt of
    /// each place, by the line of the ticket.
    async fn hold_longer(
        &self,
        ticket: &OpenTicket,
        part: Part,
        waits: Waits,
    ) -> Result<Vec<(usize, Receipt)>, TicketError> {
        let (keys, quota) = (ticket.marks(part), ticket.mark_quota());
        let mark = |key| Charge { owner: OWNER, ..Charge::new(key, &quota, Cost::ONE) };
        let once: SmallVec<[Charge<'_>; 2]> = keys.iter().map(|key| mark(key)).collect();
        let mut steps = self.steps(ticket, part)?;
        // Places first: these steps may be refused, and then nothing has changed.
        steps.sort_by_key(|(_, lines)| lines.is_empty());
        let mut receipts = Vec::new();
        for (step, lines) in &mut steps {
            let Some(answer) = self.settle_part(step, (&once, &[]), waits).await else { continue };
            let settled = answer?;
            if !settled.allowed {
                return Err(refused(&settled, once.len()));
            }
            let made = settled.lines[once.len()..].iter().map(|line| line.receipt);
            receipts.extend(lines.iter().copied().zip(made).filter_map(|(line, made)| Some((line, made?))));
        }
        Ok(receipts)
    }

    /// Returns the steps that hold the places of a part longer. A store that has only other charges of the part has a
    /// step too, for the marks.
    fn steps<'t>(&self, ticket: &'t OpenTicket, part: Part) -> Result<Steps<'t>, TicketError> {
        let mut steps = Steps::new();
        let charged = &ticket.charged;
        let all = charged.lines.iter().enumerate();
        for (line, made) in all.filter(|(_, made)| part == Part::All || made.by_outcome()) {
            let store = self.routes.of(made.share)?;
            let tag = self.routes.tag(store, charged.key(made));
            let at = steps.iter().position(|(step, _)| step.store == store && step.tag == tag);
            let at = at.unwrap_or_else(|| {
                steps.push((PartEndings::of((store, tag)), SmallVec::new()));
                steps.len() - 1
            });
            if is_held(made) {
                let (step, lines) = &mut steps[at];
                step.charges.push(charged.charge(made));
                step.endings.push(Ending::Extend { receipt: made.receipt });
                lines.push(line);
            }
        }
        Ok(steps)
    }
}

/// Reports whether a charge is a place that can be held longer.
fn is_held(made: &MadeCharge) -> bool {
    matches!(*made.quota, Quota::Concurrency(_) | Quota::Adaptive(_))
}

/// Returns why a step was refused: by one of its first `marks` lines, or by a place.
fn refused(settled: &Settled, marks: usize) -> TicketError {
    if settled.lines.iter().take(marks).any(|mark| !mark.decision.is_allowed()) {
        return TicketError::Settled;
    }
    TicketError::NotExtended { why: "they have lapsed, or their key was reset" }
}
