//! Tickets at the gate: made there, and settled once.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Outcome, Quota, Tick};

use super::{OpenTicket, SealError, Ticket, TicketError, TicketKeys};
use crate::gate::charged::{Charged, ChargedLine, Part};
use crate::gate::endings::{Claims, Endings, Settles};
use crate::gate::waits::{Waits, now};
use crate::gate::{Finished, Gate};
use crate::policy::key_space;
use crate::store::{Charge, Home};

/// The owner of the marks of settled tickets, so that they have a share of a full store for themselves. A policy has the same number with
/// odds of 2⁻³² only.
const OWNER: u32 = u32::MAX;

/// The key of one mark: no policy's, for those have names.
type MarkKey = [u8; 19];

impl Gate {
    /// Seals what a check charged as a ticket, which can be settled once within `ttl`.
    ///
    /// Seal each charge once, and do not settle it otherwise: what is remembered is that a ticket was settled, and two tickets of one
    /// charge are two. [`super::super::Admission::into_ticket`] sees to that; here the caller does, who may keep `charged` to undo what was
    /// charged where the ticket reaches nobody.
    ///
    /// `id` tells the ticket from all others of the store, and is drawn at random where it is not given. One that is given must be fresh,
    /// as the number of a decision is: of two tickets of one id, only one can be settled.
    ///
    /// Where policies go by `in-flight`, the ticket counts until it is settled here or expires.
    ///
    /// # Errors
    /// [`SealError`]; the charges stay as they are.
    pub fn seal(
        &self,
        charged: &Charged,
        keys: &TicketKeys,
        ttl: Duration,
        id: Option<u128>,
    ) -> Result<Ticket, SealError> {
        if ttl.is_zero() || ttl > Ticket::MAX_TTL {
            return Err(SealError::Lifetime { ttl });
        }
        let id = match id {
            Some(id) => id,
            None => {
                let mut id = [0; 16];
                getrandom::fill(&mut id).map_err(|_| SealError::Random)?;
                u128::from_le_bytes(id)
            }
        };
        let made = self.now();
        let expires = made.after(ttl);
        let ticket = OpenTicket {
            id,
            issuer: (*self.issuer).into(),
            home: self.routes.home(charged.of(Part::All)),
            made,
            expires,
            charged: charged.clone(),
        };
        let sealed = keys.seal(&ticket.write())?;
        self.open_ticket(made, expires);
        Ok(sealed)
    }

    /// Says that a ticket reached nobody, as where its caller hung up: no work is done under it, so policies that go by `in-flight` count it
    /// no longer. What it charged stays; see [`Gate::undo_unwatched`]. Say so once, and of no ticket that is settled.
    pub fn withdraw(&self, ticket: &OpenTicket) {
        self.close_ticket(ticket.made, ticket.expires);
    }

    /// Says whether what a ticket charged lies in this gate's store.
    ///
    /// # Errors
    /// [`TicketError::Elsewhere`] names the node where it does.
    pub fn holds(&self, ticket: &OpenTicket) -> Result<(), TicketError> {
        let ours = ticket.issuer == (*self.issuer).into();
        match (ticket.home, self.routes.home(ticket.charged.of(Part::All))) {
            (Home::Nodes, Home::Nodes) => Ok(()),
            (Home::Process { store }, Home::Process { store: here }) if store == here && ours => Ok(()),
            _ => Err(TicketError::Elsewhere { issuer: ticket.issuer.clone(), restarted: ours }),
        }
    }

    /// Settles a ticket, or one part of it, as [`Gate::finish`] settles charges: once, and before it expires.
    ///
    /// One step of the store, all or nothing: it marks the ticket as settled, for all who share the store, and settles what was charged.
    /// So of many who try at once one does, and a ticket whose settlement failed half-way is settled or is not. Where its charges lie in
    /// several stores, each has a mark of its own: told again after one of them has failed, the ticket is settled there and nowhere twice.
    ///
    /// # Errors
    /// [`TicketError`]: nothing was given back or booked. Only where the store was [`Unavailable`](crate::store::StoreError::Unavailable)
    /// nobody can say whether its answer was lost: try again, and [`TicketError::Settled`] says that the settlement before had been done.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::gate::ticket::{TicketError, TicketKeys};
    /// use tidegate::gate::{Check, Entry, Part};
    /// use tidegate::policy::Limit;
    /// use tidegate::{Cost, Descriptor, Gate, ManualClock, Outcome, Policy, PolicySet, Quota};
    ///
    /// let tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let keys = TicketKeys::random()?;
    /// let Entry::Admitted(admission) = gate.admit(Check::of(&Descriptor::new()).cost(800))? else { panic!("800 of 1000") };
    /// let text = admission.into_ticket(&keys, Duration::from_secs(600)).map_err(|refused| refused.0)?.to_string();
    ///
    /// let ticket = keys.open(&text.parse()?, gate.now())?;
    /// let told = gate.settle(&ticket, Part::All, Outcome::Success, |_| Some(1300))?;
    /// assert_eq!(told[0].standing.debt, 300);
    /// assert_eq!(gate.settle(&ticket, Part::All, Outcome::Success, |_| Some(0)), Err(TicketError::Settled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'t>, TicketError> {
        now(self.settle_ticket(ticket, part, outcome, used, Waits::No))
    }

    /// Settles a ticket like [`Gate::settle`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::settle`].
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may have settled the ticket or not: try again, and [`TicketError::Settled`] says that it had.
    pub async fn settle_async<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'t>, TicketError> {
        self.settle_ticket(ticket, part, outcome, used, Waits::Yes).await
    }

    /// Settles a ticket for a caller who waits for engines, or cannot.
    pub(in crate::gate) async fn settle_ticket<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
        waits: Waits,
    ) -> Result<Finished<'t>, TicketError> {
        ticket.in_time(self.now())?;
        self.holds(ticket)?;
        let marks = ticket.marks(part);
        let quota = ticket.mark_quota();
        let charges: SmallVec<[Charge<'_>; 2]> =
            marks.iter().map(|key| Charge { owner: OWNER, ..Charge::new(key, &quota, Cost::ONE) }).collect();
        let lines = (&ticket.charged, ticket.charged.of(part));
        let Endings { mut finished, mut parts } =
            self.endings(lines, outcome, used, Claims::No, Settles::All)?;
        if !self.settle_parts(&mut finished, &mut parts, &charges, waits).await? {
            return Err(TicketError::Settled);
        }
        // The half that says how the work ended; where there is none, the other one does.
        if part != Part::Spent || !ticket.has(Part::Outcome) {
            self.close_ticket(ticket.made, ticket.expires);
        }
        if part != Part::Spent && outcome != Outcome::Ignored {
            self.took(self.now().since(ticket.made));
        }
        Ok(finished)
    }
}

impl OpenTicket {
    pub(super) fn in_time(&self, now: Tick) -> Result<(), TicketError> {
        if now < self.expires { Ok(()) } else { Err(TicketError::Expired { ago: now.since(self.expires) }) }
    }

    /// Returns the keys of the marks of a part: one for each half that has charges, and one at least.
    fn marks(&self, part: Part) -> SmallVec<[MarkKey; 2]> {
        let halves: &[Part] = match part {
            Part::All if !self.has(Part::Outcome) => &[Part::Spent],
            Part::All if !self.has(Part::Spent) => &[Part::Outcome],
            Part::All => &[Part::Spent, Part::Outcome],
            Part::Spent => &[Part::Spent],
            Part::Outcome => &[Part::Outcome],
        };
        let mark = |half: &Part| {
            let mut key = [0; 19];
            key[..2].copy_from_slice(&key_space::TICKET_MARK);
            key[2] = u8::from(*half == Part::Outcome);
            key[3..].copy_from_slice(&self.id.to_le_bytes());
            key
        };
        halves.iter().map(mark).collect()
    }

    /// Returns the limit of a mark: one, for at least as long as the ticket can be settled.
    ///
    /// A power of two, in seconds: few limits for all tickets, so that each mark is a word in a table.
    fn mark_quota(&self) -> Arc<Quota> {
        let ttl = self.expires.since(self.made).as_secs().saturating_add(1).next_power_of_two();
        // At most 2^22 s, for no ticket lives longer than a month; the bound keeps the time of one that says otherwise from overflowing.
        let quota = Quota::per(1, Duration::from_secs(ttl.min(1 << 32))).gcra();
        Arc::new(quota.expect("one in a time that is not zero"))
    }
}
