//! Issues tickets at a gate, and settles each of them once.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Outcome, Quota, Tick};

use super::{Extended, OpenTicket, SealError, Ticket, TicketError, TicketKeys};
use crate::gate::charged::{Charged, ChargedLine, Part};
use crate::gate::endings::{Claims, Endings, Settles};
use crate::gate::finishing::RealCosts;
use crate::gate::settling::Marks;
use crate::gate::waits::{Asking, Waits};
use crate::gate::{Finished, Gate, SettledCharge};
use crate::policy::{CostError, Source, TICKET_MARK, Usage};
use tidegate_limits::store::{Charge, ChargeRules, Home, StoreError};

/// The owner number of the marks of settled tickets, which gives them a share of a full store. A policy has the same
/// number with probability 2⁻³².
pub(super) const OWNER: u32 = u32::MAX;

/// The key of one mark. It is not the key of a policy, since those contain a name.
type MarkKey = [u8; 19];

/// The charges that were settled by usage, in the order of the policies, each with the reason if its real cost could
/// not be computed.
pub type FinishedBy<'c> = SmallVec<[(SettledCharge<'c>, Option<CostError>); 2]>;

/// What a gate does with tickets, see [`Gate::tickets`].
#[derive(Clone, Copy, Debug)]
pub struct Tickets<'g>(&'g Gate);

impl<'g> Tickets<'g> {
    /// Seals what a check charged as a ticket, which can be settled once within `ttl`.
    ///
    /// Seal each charge only once, and do not settle it in another way: the store remembers that a ticket was settled,
    /// so two tickets of one charge count as two.
    /// [`Admission::into_ticket`](super::super::Admission::into_ticket) ensures that; with this method the caller
    /// must. The caller may keep `charged` to undo the charges if the ticket cannot be delivered.
    ///
    /// `id` identifies the ticket among all others of the store; `None`: a random id. A given id must be new, such as
    /// the number of a decision: of two tickets with the same id, only one can be settled.
    ///
    /// If policies use `in-flight`, the ticket counts until its work ends: until the outcome is settled, or, if no
    /// charge waits for one, either [`Part`]; or until it expires. Each ticket ends once, however often it is settled. To
    /// know that, the store keeps up to two more marks of a ticket while policies read `in-flight` or `latency`.
    ///
    /// # Errors
    /// [`SealError`]; the charges stay as they are.
    pub fn seal(
        self,
        charged: &Charged,
        keys: &TicketKeys,
        ttl: Duration,
        id: Option<u128>,
    ) -> Result<Ticket, SealError> {
        if ttl.is_zero() || ttl > Ticket::MAX_TTL {
            return Err(SealError::Lifetime { ttl });
        }
        let id = id.map_or_else(random_id, Ok)?;
        let made = self.0.now();
        let expires = made.after(ttl);
        let ticket = OpenTicket {
            id,
            issuer: (*self.0.issuer).into(),
            home: self.0.routes.home(charged.of(Part::All)),
            made,
            issued: made,
            expires,
            charged: charged.clone(),
        };
        let sealed = keys.seal(&ticket.write())?;
        self.0.open_ticket(made, expires);
        Ok(sealed)
    }

    /// Reports that a ticket could not be delivered, for example because its caller hung up. No work is done under it,
    /// so policies that use `in-flight` stop counting it. Its charges stay; see [`Gate::undo_unwatched`]. Call it at
    /// most once per ticket, and not for a ticket that is settled.
    pub fn withdraw(self, ticket: &OpenTicket) {
        self.0.close_ticket(ticket.made, ticket.expires);
    }

    /// Checks that what a ticket charged lies in this gate's stores.
    ///
    /// # Errors
    /// [`TicketError::Elsewhere`] with the name of the node that has it.
    pub fn holds(self, ticket: &OpenTicket) -> Result<(), TicketError> {
        let ours = ticket.issuer == (*self.0.issuer).into();
        match (ticket.home, self.0.routes.home(ticket.charged.of(Part::All))) {
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
    /// [`Unavailable`](tidegate_limits::store::StoreError::Unavailable), it is unknown whether just its answer was lost: try
    /// again, and [`TicketError::Settled`] means that the first attempt succeeded.
    ///
    /// # Cancel safety
    /// If dropped before completion, the ticket may or may not be settled: try again, and [`TicketError::Settled`]
    /// means that it was.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::gate::{Check, Entry, Part};
    /// use tidegate::gate::ticket::{TicketError, TicketKeys};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Cost, Gate, Outcome, Quota};
    ///
    /// let tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let keys = TicketKeys::random()?;
    /// let Entry::Admitted(admission) = gate.admit(Check::of(&Descriptor::new()).cost(800)).now()? else { panic!("800 of 1000") };
    /// let text = admission.into_ticket(&keys, Duration::from_secs(600)).map_err(|refused| refused.0)?.to_string();
    ///
    /// let ticket = keys.open(&text.parse()?, gate.now())?;
    /// let told = gate.tickets().settle(&ticket, Part::All, Outcome::Success, |_| Some(1300)).now()?;
    /// assert_eq!(told[0].standing.debt, 300);
    /// assert_eq!(gate.tickets().settle(&ticket, Part::All, Outcome::Success, |_| Some(0)).now(), Err(TicketError::Settled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle<'t: 'g>(
        self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64> + Send + 'g,
    ) -> Asking<'g, Result<Finished<'t>, TicketError>> {
        let gate = self.0;
        Asking::new(move |waits| gate.settle_ticket(ticket, part, outcome, used, waits))
    }

    /// Settles a ticket like [`Tickets::settle`], by the usage that the work reported. Each policy in force computes its
    /// real cost from the usage ([`Policy::real_cost`](crate::Policy::real_cost)) and settles it; policies that learn
    /// an estimate learn it.
    ///
    /// A charge stays as it was made if no usage for its policy was reported, or if the usage yields no valid cost; in
    /// the latter case the reason is returned with the charge. [`PolicySet::check_usage`](crate::PolicySet::check_usage) reports names that no policy
    /// uses.
    ///
    /// # Errors
    /// As [`Tickets::settle`]; nothing is learned then.
    ///
    /// # Cancel safety
    /// As [`Tickets::settle`]; nothing is learned then.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::gate::{Entry, Part};
    /// use tidegate::gate::ticket::TicketKeys;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, SettleBy, SettleRule, Usage};
    /// use tidegate::{Cost, Gate, Outcome, Quota};
    ///
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Value("llm.output".to_owned())));
    /// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let keys = TicketKeys::random()?;
    /// let Entry::Admitted(call) = gate.admit(&Descriptor::new()).now()? else { panic!("a full limit") };
    /// let ticket = call.into_ticket(&keys, Duration::from_secs(600)).map_err(|refused| refused.0)?;
    ///
    /// let open = keys.open(&ticket, gate.now())?;
    /// let usage = Usage::default().with("llm.output", 300);
    /// let settled = gate.tickets().settle_by(&open, Part::All, Outcome::Success, &usage).now()?;
    /// assert_eq!((settled[0].0.used, &settled[0].1), (300, &None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_by<'t: 'g, 'u: 'g>(
        self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        usage: &'g Usage<'u>,
    ) -> Asking<'g, Result<FinishedBy<'t>, TicketError>> {
        let gate = self.0;
        Asking::new(move |waits| gate.settle_by_usage(ticket, part, outcome, usage, waits))
    }

    /// Holds the places of a ticket for another time to live of their limits, counted from now, and seals a ticket in
    /// place of this one. The new ticket lives for `ttl` from now, but at most until [`Ticket::MAX_TTL`] after the check:
    /// for that long work can be kept alive. `id` identifies it; `None`: a random id.
    ///
    /// The new ticket has all charges of this one that are not settled yet. The duration of the work counts from the
    /// check, as without an extension. A breaker's place as a probe is not extended. Places that are only measured, as
    /// in shadow mode, are held longer where they have not lapsed, and refuse nothing.
    ///
    /// Takes one step of the store, all or nothing; a second one if what was spent is settled already.
    ///
    /// # Errors
    /// [`TicketError::NotExtended`] if the ticket has no places; if they have lapsed, or their key was reset; if some of
    /// its charges were made while the store was away; or if its charges lie in several stores, or on several tags of
    /// one ([`Caps::one_tag`](tidegate_limits::store::Caps::one_tag)), which no single step can change.
    /// [`TicketError::Seal`] if there can be no ticket in place of this one, which takes 16 bytes more than one that was
    /// never extended. [`TicketError::Settled`] if it was settled or extended before. Nothing changes then. If the store was
    /// [`Unavailable`](tidegate_limits::store::StoreError::Unavailable), the answer may have been lost: try again, and
    /// [`TicketError::Settled`] means that the places lapse after their time to live.
    ///
    /// # Cancel safety
    /// If dropped before completion, the places may or may not be held longer, as after
    /// [`Unavailable`](tidegate_limits::store::StoreError::Unavailable).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::gate::{Entry, Part};
    /// use tidegate::gate::ticket::{TicketError, TicketKeys};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Outcome, Quota};
    ///
    /// let (clock, minute) = (ManualClock::default(), Duration::from_secs(60));
    /// let one = Policy::new("reports", Limit::new(Quota::concurrency(1, minute)?, "concurrency 1"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![one])?, 1000)?.with_clock(clock.clone());
    /// let keys = TicketKeys::random()?;
    /// let Entry::Admitted(admission) = gate.admit(&Descriptor::new()).now()? else { panic!("a free place") };
    /// let ticket = admission.into_ticket(&keys, 2 * minute).map_err(|refused| refused.0)?;
    ///
    /// clock.advance(minute / 2);
    /// let open = keys.open(&ticket, gate.now())?;
    /// let extended = gate.tickets().extend(&open, &keys, 2 * minute, None).now()?;
    /// assert_eq!(gate.tickets().extend(&open, &keys, 2 * minute, None).now(), Err(TicketError::Settled), "by the other ticket");
    ///
    /// clock.advance(minute - Duration::from_secs(1));
    /// assert!(!gate.check(&Descriptor::new()).now()?.allowed, "the place is held");
    /// let open = keys.open(&extended.ticket, gate.now())?;
    /// gate.tickets().settle(&open, Part::All, Outcome::Success, |_| None).now()?;
    /// assert!(gate.check(&Descriptor::new()).now()?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn extend(
        self,
        ticket: &'g OpenTicket,
        keys: &'g TicketKeys,
        ttl: Duration,
        id: Option<u128>,
    ) -> Asking<'g, Result<Extended, TicketError>> {
        let gate = self.0;
        Asking::new(move |waits| gate.extend_ticket(ticket, keys, ttl, id, waits))
    }
}

impl Gate {
    /// Returns what this gate does with tickets: it seals what a check charged, and settles it once.
    #[must_use]
    pub const fn tickets(&self) -> Tickets<'_> {
        Tickets(self)
    }

    /// Settles a ticket by the usage that the work reported.
    async fn settle_by_usage<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        usage: &Usage<'_>,
        waits: Waits,
    ) -> Result<FinishedBy<'t>, TicketError> {
        let policies = self.policies();
        let charged = ticket.charged();
        let real = RealCosts::of(&policies, usage, charged.of(part).map(|made| charged.line(made)));
        let settled = self.settle_ticket(ticket, part, outcome, real.used(), waits).await?;
        // Learned once it is settled: a settlement that fails, or is repeated, teaches and counts nothing.
        real.teach(&policies);
        Ok(settled.into_iter().zip(real.unknown()).collect())
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
        self.tickets().holds(ticket)?;
        let keys = ticket.marks(part);
        let quota = ticket.mark_quota();
        let mut notes = ticket.notes(part, outcome);
        notes.retain(|note| match note {
            Mark::Ended => self.reads(&Source::InFlight),
            _ => self.reads(&Source::Latency),
        });
        let note_keys: SmallVec<[MarkKey; 2]> = notes.iter().map(|note| ticket.mark(*note)).collect();
        let rules = ChargeRules::new(OWNER);
        let charge = |key, binding| Charge { rules, binding, ..Charge::new(key, &quota, Cost::ONE) };
        let once: SmallVec<[Charge<'_>; 2]> = keys.iter().map(|key| charge(key, true)).collect();
        let noting: SmallVec<[Charge<'_>; 2]> = note_keys.iter().map(|key| charge(key, false)).collect();
        let (store, tag) = self.place_of(&ticket.charged)?;
        let mut marks = Marks { once: &once, notes: &noting, store, tag, noted: SmallVec::new() };
        let charged = &ticket.charged;
        let Endings { mut finished, mut parts } =
            self.endings(charged, charged.of(part), outcome, used, Claims::No, Settles::All)?;
        let settled = self.settle_parts(&mut finished, &mut parts, Some(&mut marks), waits).await;
        // Also where another store failed: no later call finds these notes free.
        for (note, _) in notes.iter().zip(&marks.noted).filter(|(_, first)| **first) {
            match note {
                Mark::Timed => self.took(ticket.charged.duration(ticket.made, self.now())),
                _ => self.close_ticket(ticket.made, ticket.expires),
            }
        }
        if settled? { Ok(finished) } else { Err(TicketError::Settled) }
    }

    /// Returns the store and the tag that keep the notes of a ticket: those of its first charge that the outcome
    /// decides, which each call that ends its work settles; without such charges those of its first charge.
    fn place_of(&self, charged: &Charged) -> Result<(usize, u64), StoreError> {
        let Some(first) = charged.of(Part::Outcome).chain(charged.of(Part::All)).next() else {
            return Ok((0, 0));
        };
        let store = self.routes.of(first.rules.share)?;
        Ok((store, self.routes.tag(store, charged.key(first))))
    }
}

/// Returns a random id of a ticket.
pub(super) fn random_id() -> Result<u128, SealError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| SealError::Random)?;
    Ok(u128::from_le_bytes(id))
}

/// A mark that the stores keep of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// The charges that settle by what was spent are settled.
    Spent = 0,
    /// The charges that the outcome decides are settled.
    Outcome = 1,
    /// A note: the ticket no longer counts as in flight. Without it, each half of a ticket that no outcome decides would
    /// end it once.
    Ended = 2,
    /// A note: the duration of the work was counted.
    Timed = 3,
}

impl OpenTicket {
    pub(super) fn in_time(&self, now: Tick) -> Result<(), TicketError> {
        if now < self.expires { Ok(()) } else { Err(TicketError::Expired { ago: now.since(self.expires) }) }
    }

    /// Returns the keys of the marks of a part: one for each half that has charges, and at least one.
    pub(super) fn marks(&self, part: Part) -> SmallVec<[MarkKey; 2]> {
        let halves: &[Mark] = match part {
            Part::All if !self.has(Part::Outcome) => &[Mark::Spent],
            Part::All if !self.has(Part::Spent) => &[Mark::Outcome],
            Part::All => &[Mark::Spent, Mark::Outcome],
            Part::Spent => &[Mark::Spent],
            Part::Outcome => &[Mark::Outcome],
        };
        halves.iter().map(|half| self.mark(*half)).collect()
    }

    /// Returns the notes of a settlement. The half for the outcome ends the work; if no charge waits for an outcome, the
    /// first half that is settled does.
    fn notes(&self, part: Part, outcome: Outcome) -> SmallVec<[Mark; 2]> {
        let ends = part != Part::Spent || !self.has(Part::Outcome);
        let times = part != Part::Spent && outcome != Outcome::Ignored;
        [(ends, Mark::Ended), (times, Mark::Timed)]
            .into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, note)| note)
            .collect()
    }

    fn mark(&self, mark: Mark) -> MarkKey {
        let mut key = [0; 19];
        key[..2].copy_from_slice(&TICKET_MARK);
        key[2] = mark as u8;
        key[3..].copy_from_slice(&self.id.to_le_bytes());
        key
    }

    /// Returns the quota of a mark: one unit, for at least as long as the ticket can be settled.
    ///
    /// The period is a power of two, in seconds, so that all tickets share few quotas and each mark is a word in a
    /// table. It counts from the last extension: work that is kept alive for weeks leaves a mark with each extension.
    pub(super) fn mark_quota(&self) -> Arc<Quota> {
        let ttl = self.expires.since(self.issued).as_secs().saturating_add(1).next_power_of_two();
        // At most 2^22 s, since no ticket lives longer than a month. The bound prevents an overflow for a ticket that
        // claims more.
        let quota = Quota::per(1, Duration::from_secs(ttl.min(1 << 32))).gcra();
        Arc::new(quota.expect("one in a time that is not zero"))
    }
}
