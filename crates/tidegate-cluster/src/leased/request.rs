//! Decides requests out of batches where possible, all charges or none.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Cost, Decision, Quota, Receipt, Retry, Standing, Tick};
use tidegate_limits::store::refuse_repeated;
use tidegate_limits::store::{Charge, ChargeAnswer, ChargeRules, DecidedBy, Executed, Op, OwnedStep, Step};

use super::asking::{FirstPass, HeldUnits, LocalLines, Pending, TakenUnits};
use super::draws::Return;
use super::leasable::Terms;
use super::lease::{GivenBack, Lookup};
use super::state::LeasedState;
use super::table::{ChargeSettings, Drawing, LeasedKey};

/// The most portions that a batch takes back out of order: each is looked at when units are taken.
const MOST_LOOSE: usize = 32;

/// The least time that a refused caller is told to wait where the draw that will tell is late.
const SHORTLY: Duration = Duration::from_millis(1);

enum ChargeResult {
    Portion(TakenUnits, ChargeAnswer),
    Refused(ChargeAnswer),
    /// The draw, and until when to wait for it.
    Draw(Drawing, Tick),
    Engine,
}

impl LeasedState {
    /// Executes a step of one charge whose units are in a batch, which is the usual case, or which the engine has refused
    /// before. Otherwise returns `false` and changes nothing.
    #[inline]
    pub(super) fn decide_at_once(
        self: &Arc<Self>,
        step: &Step<'_>,
        charge: &Charge<'_>,
        out: &mut Executed,
    ) -> bool {
        if !charge.max_wait.is_zero() {
            return false;
        }
        // Names every rule: a new one does not compile until it is said what a charge out of a batch does with it.
        // These are for the store beneath; a draw takes them along.
        let ChargeRules { owner: _, replace: _, on_error: _, durable: _, settled } = charge.rules;
        let (hash, part) = (self.table.hash(charge.key), self.part.at(step.now));
        let mut shard = self.table.lock(hash);
        let Some(entry) = shard.get(hash, charge.key).filter(|entry| entry.is_of(charge.quota)) else {
            return false;
        };
        if (step.receipts || settled) && !entry.lease.is_settled() {
            return false;
        }
        let now = self.now_of(step, entry.lease.terms.is_window());
        let Some(portion) = entry.lease.take_at_once(charge.cost, charge.kept_back, now, part) else {
            let Some(line) = refuse_at_once(entry, step, charge, now) else { return false };
            shard.refused += 1;
            drop(shard);
            self.refuse(step, &[Some(line)], out);
            return true;
        };
        let receipt = step.receipts.then(|| portion.receipt(&entry.lease.terms.engine));
        let decision =
            Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: standing(entry, now) };
        let ahead = if entry.lease.runs_low(now) { self.drawing(hash, entry, None, now) } else { None };
        shard.granted += 1;
        drop(shard);
        out.lines.clear();
        out.lines.push(ChargeAnswer { decision, receipt });
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        if let Some(ahead) = ahead {
            self.draw_ahead(ahead);
        }
        true
    }

    /// Returns the tick to decide by: for windows the present one, because a late request must not miss the end of a
    /// window.
    pub(super) fn now_of(&self, step: &Step<'_>, window: bool) -> Tick {
        if window { step.now.max(self.clock.now()) } else { step.now }
    }

    /// Tries to execute a take; `None` if it is executed. `first`: the step was not tried before.
    pub(super) fn try_take(
        self: &Arc<Self>,
        step: &Step<'_>,
        first: bool,
        out: &mut Executed,
    ) -> Option<Pending> {
        let terms = self.terms_of(step);
        let (mut returns, mut ahead) = (Vec::new(), SmallVec::<[Drawing; 2]>::new());
        let both = step.charges.iter().zip(&terms);
        let found: SmallVec<[ChargeResult; 4]> = both
            .map(|(charge, terms)| {
                let terms = terms.as_ref();
                self.find(step, first, charge, terms, &mut returns, &mut ahead)
            })
            .collect();
        self.give_back(returns);
        ahead.into_iter().for_each(|drawing| self.draw_ahead(drawing));

        let (mut held, mut waits) =
            (HeldUnits { inner: Arc::clone(self), portions: SmallVec::new() }, SmallVec::new());
        let mut lines: SmallVec<[Option<ChargeAnswer>; 4]> = SmallVec::new();
        let (mut refused, mut by_engine) = (false, false);
        for (found, charge) in found.into_iter().zip(step.charges) {
            lines.push(match found {
                ChargeResult::Portion(taken, line) => {
                    held.portions.push(taken);
                    Some(line)
                }
                ChargeResult::Refused(line) => {
                    refused |= charge.binding;
                    Some(line)
                }
                ChargeResult::Draw(drawing, until) => {
                    waits.push((drawing, until));
                    None
                }
                ChargeResult::Engine => {
                    by_engine = true;
                    None
                }
            });
        }
        if refused {
            drop(held);
            self.refuse(step, &lines, out);
            return None;
        }
        // Returning drops `held`: the units taken are put back while draws are awaited.
        if !waits.is_empty() {
            return Some(Pending::Waits(waits));
        }
        if by_engine {
            return Some(Pending::Engine(Box::new(LocalLines { lines, held })));
        }
        held.admit();
        out.lines.clear();
        out.lines.extend(lines.into_iter().flatten());
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        None
    }

    fn find(
        self: &Arc<Self>,
        step: &Step<'_>,
        first: bool,
        charge: &Charge<'_>,
        terms: Option<&Arc<Terms>>,
        returns: &mut Vec<Return>,
        ahead: &mut SmallVec<[Drawing; 2]>,
    ) -> ChargeResult {
        let Some(terms) = terms.filter(|_| charge.max_wait.is_zero()) else { return ChargeResult::Engine };
        let (now, part) = (self.now_of(step, terms.is_window()), self.part.at(step.now));
        let (hash, mut back) = (self.table.hash(charge.key), GivenBack::new());
        let mut shard = self.table.lock(hash);
        // Units held under a limit that has since changed are given back to the old limit.
        if let Some(entry) = shard.get(hash, charge.key).filter(|entry| !entry.is_of(charge.quota)) {
            entry.lease.close(now, &mut back);
            returns.extend(Self::returns(entry, mem::take(&mut back)));
        }
        let settings = ChargeSettings::of(charge, step.tag);
        let most = self.table.most_in_a_shard();
        let Some(entry) = shard.entry(hash, most, now, charge, terms, settings) else {
            return ChargeResult::Engine;
        };
        entry.settings = settings;
        if first {
            entry.lease.count_demand(charge.cost);
        }
        if step.receipts || charge.rules.settled {
            entry.lease.settles();
        }
        let lookup = entry.lease.look_up(charge.cost, charge.kept_back, now, part, &mut back);
        let found = match lookup {
            Lookup::Ready => match entry.lease.take(charge.cost) {
                Some(portion) => {
                    entry.lease.hold(&portion);
                    let receipt = step.receipts.then(|| portion.receipt(&entry.lease.terms.engine));
                    let ruling = Ruling::Allowed { wait: Duration::ZERO };
                    let decision = Decision { ruling, standing: standing(entry, now) };
                    if entry.lease.runs_low(now) {
                        ahead.extend(self.drawing(hash, entry, None, now));
                    }
                    let (key, terms) = (Arc::clone(&entry.key), Arc::clone(&entry.lease.terms));
                    ChargeResult::Portion(
                        TakenUnits { hash, key, terms, settings, portion },
                        ChargeAnswer { decision, receipt },
                    )
                }
                None => ChargeResult::Engine,
            },
            Lookup::Refused(after) => ChargeResult::Refused(refused(entry, after, now)),
            Lookup::Draw if first => self.find_a_draw(hash, entry, charge, now, ahead),
            Lookup::Draw if entry.lease.in_full_use(now, self.round_trip()) => {
                ChargeResult::Refused(refused(entry, self.round_trip(), now))
            }
            Lookup::Draw | Lookup::Engine => ChargeResult::Engine,
        };
        returns.extend(Self::returns(entry, back));
        match found {
            ChargeResult::Portion(..) => shard.granted += 1,
            ChargeResult::Refused(_) => shard.refused += 1,
            _ => {}
        }
        found
    }

    /// Finds the draw that brings the units of a charge: the one under way, or a new one. A charge for which there is
    /// none is decided by the engine: it waits no longer than without leases. A limit in full use refuses it at once.
    fn find_a_draw(
        self: &Arc<Self>,
        hash: u64,
        entry: &mut LeasedKey,
        charge: &Charge<'_>,
        now: Tick,
        ahead: &mut SmallVec<[Drawing; 2]>,
    ) -> ChargeResult {
        let (round_trip, since) = (self.round_trip(), entry.lease.drawing_since());
        let until = since.unwrap_or(now).after(self.patience(&entry.lease.terms));
        if now >= until {
            // The draw was lost, or the engine is busy.
            return ChargeResult::Engine;
        }
        let request = Some((charge.cost, charge.kept_back));
        let drawing = match since {
            Some(_) => entry.drawing.clone(),
            None => self.drawing(hash, entry, request, now),
        };
        let Some(drawing) = drawing else { return ChargeResult::Engine };
        if entry.lease.in_full_use(now, round_trip) {
            ahead.push(drawing);
            let after = since.unwrap_or(now).after(round_trip).since(now).max(SHORTLY);
            return ChargeResult::Refused(refused(entry, after, now));
        }
        if since.is_none() || entry.lease.awaits(charge.cost) {
            return ChargeResult::Draw(drawing, until);
        }
        // The draw goes on, whoever began it.
        ahead.push(drawing);
        ChargeResult::Engine
    }

    /// Answers a step that a batch refuses. Charges whose keys were not looked at are reported with a full limit.
    fn refuse(&self, step: &Step<'_>, lines: &[Option<ChargeAnswer>], out: &mut Executed) {
        out.lines.clear();
        let both = lines.iter().zip(step.charges);
        out.lines.extend(both.map(|(line, charge)| match line {
            Some(line) => ChargeAnswer { receipt: None, ..*line },
            None => unasked(charge),
        }));
        (out.allowed, out.wait, out.at, out.by) = (false, Duration::ZERO, step.now, DecidedBy::Lease);
    }

    #[inline]
    pub(super) fn begin(self: &Arc<Self>, step: &Step<'_>, out: &mut Executed) -> FirstPass {
        match step.op {
            Op::Take => {
                let step = &step.read_clock();
                match step.charges {
                    [charge] if self.decide_at_once(step, charge, out) => FirstPass::Done(Ok(())),
                    _ => self.begin_take(step, out),
                }
            }
            _ => self.begin_other(step, out),
        }
    }

    fn begin_take(self: &Arc<Self>, step: &Step<'_>, out: &mut Executed) -> FirstPass {
        if let Err(error) = refuse_repeated(step) {
            return FirstPass::Done(Err(error));
        }
        match self.try_take(step, true, out) {
            None => FirstPass::Done(Ok(())),
            Some(pending) => FirstPass::Pending(Box::new((OwnedStep::of(step), pending))),
        }
    }

    fn begin_other(self: &Arc<Self>, step: &Step<'_>, out: &mut Executed) -> FirstPass {
        let known = match step.op {
            Op::Peek => self.peek_at_once(&step.read_clock(), out),
            Op::Finish(endings) => self.finish_at_once(step, endings, out),
            Op::Take | Op::Draw | Op::Reset | Op::Breaker(_) => false,
        };
        if known { FirstPass::Done(Ok(())) } else { FirstPass::AsksEngine(self.ask_for_all(step)) }
    }
}

/// Returns the standing of a leased limit as far as this node knows: the units that it holds, plus what the engine had
/// left at the last draw.
#[inline]
pub(super) fn standing(entry: &LeasedKey, now: Tick) -> Standing {
    let (lease, limit) = (&entry.lease, entry.lease.terms.limit);
    let remaining = lease.units_held().saturating_add(lease.remaining).min(limit);
    Standing { limit, remaining, debt: 0, reset_after: lease.full_at.since(now) }
}

/// Refuses a charge of a key with nothing held, while the engine's refusal holds: under the one lock that its request takes
/// anyway, and without a count of references, which all threads would write to. `None`, with nothing changed, for any other.
fn refuse_at_once(
    entry: &mut LeasedKey,
    step: &Step<'_>,
    charge: &Charge<'_>,
    now: Tick,
) -> Option<ChargeAnswer> {
    if charge.inline_quota || !charge.binding {
        return None;
    }
    let after = entry.lease.refuse_at_once(charge.cost, charge.kept_back, now)?;
    entry.settings = ChargeSettings::of(charge, step.tag);
    Some(refused(entry, after, now))
}

fn refused(entry: &LeasedKey, after: Duration, now: Tick) -> ChargeAnswer {
    let standing = Standing { remaining: entry.lease.ready(now), ..standing(entry, now) };
    let ruling = Ruling::Denied { retry: Retry::After(after) };
    ChargeAnswer { decision: Decision { ruling, standing }, receipt: None }
}

fn unasked(charge: &Charge<'_>) -> ChargeAnswer {
    let limit = charge.quota.capacity();
    let standing = Standing { limit, remaining: limit, debt: 0, reset_after: Duration::ZERO };
    ChargeAnswer {
        decision: Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing },
        receipt: None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) number: u64,
    pub(super) want: Cost,
    /// How many of these units are to be spent; the others are set aside.
    pub(super) spent: u64,
    pub(super) kept_back: u64,
    /// How far in the future the units may be.
    pub(super) ahead: Duration,
}

/// When a draw was sent and when its reply arrived, by this node's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawTimes {
    pub(super) sent: Tick,
    pub(super) received: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Drawn {
    /// The receipt of the draw; its cost is the number of units drawn.
    pub(super) receipt: Receipt,
    /// The time after the reply from which the units may be spent.
    pub(super) wait: Duration,
    pub(super) remaining: u64,
    /// The time after the reply at which the limit would be full again.
    pub(super) reset_after: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Refused {
    /// When to ask again; the units granted then may be spent a little later.
    pub(super) retry: Retry,
    pub(super) remaining: u64,
}

/// The rest of one draw, and from when and until when it may be spent, by this node's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) quota: Arc<Quota>,
    /// The receipt of the units left; its cost is their number. `None` when all are spent.
    pub(super) rest: Option<Receipt>,
    pub(super) from: Tick,
    pub(super) until: Tick,
    /// The units that the draw left to requests of higher priority.
    pub(super) kept_back: u64,
    /// The next draw is made when fewer units than this are left.
    pub(super) low: u64,
    /// Units that were put back after others had been taken.
    pub(super) loose: GivenBack,
}

/// Units taken out of a batch; they may be put back until the request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Portion {
    /// The receipt of the batch's units before these were taken.
    before: Receipt,
    pub(super) cost: Cost,
    /// Until when their batch may be spent: no two of a key end at the same tick.
    until: Tick,
}

impl Batch {
    #[inline]
    pub(super) fn left(&self) -> u64 {
        let rest = self.rest.map_or(0, |rest| rest.cost.units());
        if self.loose.is_empty() {
            rest
        } else {
            rest + self.loose.iter().map(|one| one.cost.units()).sum::<u64>()
        }
    }

    /// Returns what is left, as receipts.
    pub(super) fn rest(self) -> impl Iterator<Item = Receipt> {
        self.rest.into_iter().chain(self.loose)
    }

    /// Takes units out; `None` if there are too few.
    #[inline]
    pub(super) fn take(&mut self, cost: Cost) -> Option<Portion> {
        let until = self.until;
        if let Some(at) = self.loose.iter().rposition(|one| one.cost == cost) {
            return Some(Portion { before: self.loose.swap_remove(at), cost, until });
        }
        let before = self.rest?;
        let left = before.cost.units().checked_sub(cost.units())?;
        self.rest = Cost::new(left).map(|cost| self.without_first(before, cost));
        Some(Portion { before, cost, until })
    }

    /// Puts units back; `false` if they may be of another window, or too many were put back out of order.
    pub(super) fn put_back(&mut self, portion: &Portion) -> bool {
        let Portion { before, cost, until } = portion;
        let same = *until == self.until;
        if !same && matches!(*self.quota, Quota::FixedWindow(_)) {
            return false;
        }
        let after =
            Cost::new(before.cost.units() - cost.units()).map(|cost| self.without_first(*before, cost));
        if same && after.is_some() && after == self.rest {
            self.rest = Some(*before);
            return true;
        }
        let room = self.loose.len() < MOST_LOOSE;
        if room {
            self.loose.push(portion.receipt(&self.quota));
        }
        room
    }

    /// Takes out what is left beyond `most` units.
    pub(super) fn trim(&mut self, most: u64) -> GivenBack {
        let mut out = GivenBack::new();
        while self.left() > most
            && let Some(one) = self.loose.pop()
        {
            out.push(one);
        }
        if self.left() > most
            && let Some(rest) = self.rest
        {
            // The units taken out are the last of the draw, and those kept are the first.
            let split = Cost::new(most).and_then(|kept| self.quota.split(&rest, kept));
            let (first, last) = split.map_or((None, rest), |(first, last)| (Some(first), last));
            self.rest = first;
            out.push(last);
        }
        out
    }

    /// Returns the receipt of the last units of a draw: it does not open a window that the first units have opened.
    fn without_first(&self, whole: Receipt, cost: Cost) -> Receipt {
        match *self.quota {
            Quota::FixedWindow(_) => Receipt { cost, mark: [0; 4], ..whole },
            _ => Receipt { cost, ..whole },
        }
    }
}

impl Portion {
    /// Returns a receipt of these units alone, as for a separate charge.
    pub(super) fn receipt(&self, quota: &Quota) -> Receipt {
        match quota.split(&self.before, self.cost) {
            Some((first, _)) => first,
            // They were all units of the batch.
            None => self.before,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::{Algorithm, Ask, State, Transition};

    use super::*;

    fn units(units: u64) -> Cost {
        Cost::new(units).unwrap()
    }

    fn batch(quota: &Arc<Quota>, cost: u64) -> (Batch, State) {
        let now = Tick::from_secs(5);
        let Transition::Allowed { next, receipt, .. } =
            quota.decide(&quota.fresh(now), Ask::allow(now, units(cost)))
        else {
            panic!("within the limit")
        };
        let quota = Arc::clone(quota);
        let batch = Batch {
            quota,
            rest: Some(receipt),
            from: now,
            until: Tick::MAX,
            kept_back: 0,
            low: 0,
            loose: GivenBack::new(),
        };
        (batch, next)
    }

    #[test]
    fn what_is_put_back_is_as_if_never_taken() {
        let quota = Arc::new(Quota::per_second(9).burst(20).gcra().unwrap());
        let (mut batch, _) = batch(&quota, 10);
        let before = batch.clone();
        let first = batch.take(units(3)).unwrap();
        let second = batch.take(units(4)).unwrap();
        assert!(batch.take(units(4)).is_none());
        assert!(batch.put_back(&second) && batch.put_back(&first));
        assert_eq!(batch, before);
        // Out of order.
        let (first, second) = (batch.take(units(3)).unwrap(), batch.take(units(4)).unwrap());
        assert!(batch.put_back(&first) && batch.left() == 6 && batch.put_back(&second));
        assert_eq!(batch.take(units(3)).map(|again| again.receipt(&quota)), Some(first.receipt(&quota)));
        let all: u64 = batch.trim(2).iter().map(|one| one.cost.units()).sum();
        assert_eq!((all, batch.left()), (5, 2));
        let old = Portion { until: Tick::EPOCH, ..second };
        assert!(batch.put_back(&old) && batch.left() == 6, "of another batch");
        let window = Arc::new(Quota::per_second(20).fixed_window().unwrap());
        let (mut batch, _) = self::batch(&window, 10);
        let old = Portion { until: Tick::EPOCH, ..batch.take(units(3)).unwrap() };
        assert!(!batch.put_back(&old), "of another window");
    }

    /// Portions, trimmed units and the rest are settled separately, and leave the limit as if only the units used had
    /// been charged.
    #[test]
    fn every_part_of_a_batch_is_settled_by_itself() {
        let quotas = [
            Quota::per_second(9).burst(20).gcra().unwrap(),
            Quota::per_second(9).burst(20).token_bucket().unwrap(),
            Quota::per_second(20).fixed_window().unwrap(),
        ];
        for quota in quotas.map(Arc::new) {
            let now = Tick::from_secs(5);
            let (mut batch, mut state) = batch(&quota, 12);
            let one = batch.take(units(3)).unwrap().receipt(&quota);
            let two = batch.take(units(2)).unwrap().receipt(&quota);
            let trimmed = batch.trim(5)[0];
            let left = batch.rest.unwrap();
            assert_eq!((trimmed.cost.units(), left.cost.units()), (2, 5));
            for (receipt, used) in [(left, 0), (two, 1), (trimmed, 0), (one, 3)] {
                state = quota.settle(&state, now, &receipt, used);
            }
            assert_eq!(quota.standing(&state, now).remaining, 16, "{quota:?}");
        }
    }
}
