//! Issues tickets at a gate, and settles each of them once.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Outcome, Quota, Tick};

use super::{OpenTicket, SealError, Ticket, TicketError, TicketKeys};
use crate::gate::charged::{Charged, ChargedLine, Part};
use crate::gate::endings::{Claims, Endings, Settles};
use crate::gate::waits::{Waits, run_without_waiting};
use crate::gate::{Finished, Gate};
use crate::policy::key_space;
use crate::store::{Charge, Home};

/// The owner number of the marks of settled tickets, which gives them a share of a full store. A policy has the same
/// number with probability 2⁻³².
const OWNER: u32 = u32::MAX;

/// The key of one mark. It is not the key of a policy, since those contain a name.
type MarkKey = [u8; 19];

impl Gate {
    /// Seals what a check charged as a ticket, which can be settled once within `ttl`.
    ///
    /// Seal each charge only once, and do not settle it in another way: the store remembers that a ticket was settled,
    /// so two tickets of one charge count as two. [`super::super::Admission::into_ticket`] ensures that; with this
    /// method the caller must. The caller may keep `charged` to undo the charges if the ticket cannot be delivered.
    ///
    /// `id` identifies the ticket among all others of the store; `None`: a random id. A given id must be new, such as
    /// the number of a decision: of two tickets with the same id, only one can be settled.
    ///
    /// If policies use `in-flight`, the ticket counts until it is settled here or expires.
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

    /// Reports that a ticket could not be delivered, for example because its caller hung up. No work is done under it,
    /// so policies that use `in-flight` stop counting it. Its charges stay; see [`Gate::undo_unwatched`]. Call it at
    /// most once per ticket, and not for a ticket that is settled.
    pub fn withdraw(&self, ticket: &OpenTicket) {
        self.close_ticket(ticket.made, ticket.expires);
    }

    /// Checks that what a ticket charged lies in this gate's stores.
    ///
    /// # Errors
    /// [`TicketError::Elsewhere`] with the name of the node that has it.
    pub fn holds(&self, ticket: &OpenTicket) -> Result<(), TicketError> {
        let ours = ticket.issuer == (*self.issuer).into();
        match (ticket.home, self.routes.home(ticket.charged.of(Part::All))) {
            (Home::Nodes, Home::Nodes) => Ok(()),
            (Home::Process { store }, Home::Process { store: here }) if store == here && ours => Ok(()),
            _ => Err(TicketError::Elsewhere { issuer: ticket.issuer.clone(), restarted: ours }),
        }
    }

    /// Settles a ticket or one part of it, as [`Gate::finish`] settles charges: once, and before it expires.
    ///
    /// Takes one step of the store, all or nothing, which marks the ticket as settled for all nodes that share the
    /// store and settles the charges. So of several concurrent attempts exactly one succeeds, and a failed attempt
    /// leaves the ticket either settled or unsettled, never half settled. If the charges lie in several stores, each
    /// store has a mark of its own: when settled again after one store failed, the ticket is settled there and nowhere
    /// twice.
    ///
    /// # Errors
    /// [`TicketError`]: nothing was given back or booked. Only if the store was
    /// [`Unavailable`](crate::store::StoreError::Unavailable), it is unknown whether just its answer was lost: try
    /// again, and [`TicketError::Settled`] means that the first attempt succeeded.
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
        run_without_waiting(self.settle_ticket(ticket, part, outcome, used, Waits::No))
    }

    /// Settles a ticket like [`Gate::settle`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::settle`].
    ///
    /// # Cancel safety
    /// If dropped before completion, the ticket may or may not be settled: try again, and [`TicketError::Settled`]
    /// means that it was.
    pub async fn settle_async<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'t>, TicketError> {
        self.settle_ticket(ticket, part, outcome, used, Waits::Yes).await
    }

    /// Settles a ticket for a caller that waits for engines, or cannot.
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
        // The half for the outcome closes the ticket; if there is none, the other half does.
        if part != Part::Spent || !ticket.has(Part::Outcome) {
            self.close_ticket(ticket.made, ticket.expires);
        }
        if part != Part::Spent && outcome != Outcome::Ignored {
            self.took(ticket.charged.duration(ticket.made, self.now()));
        }
        Ok(finished)
    }
}

impl OpenTicket {
    pub(super) fn in_time(&self, now: Tick) -> Result<(), TicketError> {
        if now < self.expires { Ok(()) } else { Err(TicketError::Expired { ago: now.since(self.expires) }) }
    }

    /// Returns the keys of the marks of a part: one for each half that has charges, and at least one.
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

    /// Returns the quota of a mark: one unit, for at least as long as the ticket can be settled.
    ///
    /// The period is a power of two, in seconds, so that all tickets share few quotas and each mark is a word in a
    /// table.
    fn mark_quota(&self) -> Arc<Quota> {
        let ttl = self.expires.since(self.made).as_secs().saturating_add(1).next_power_of_two();
        // At most 2^22 s, since no ticket lives longer than a month. The bound prevents an overflow for a ticket that
        // claims more.
        let quota = Quota::per(1, Duration::from_secs(ttl.min(1 << 32))).gcra();
        Arc::new(quota.expect("one in a time that is not zero"))
    }
}
