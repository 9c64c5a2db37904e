//! Requests: decided out of pockets where that is possible, all charges or none.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Decision, Retry, Standing, Tick};

use super::drawing::{Awaited, Return};
use super::engine_part::{Held, Ours};
use super::pocket::Piece;
use super::purse::{GivenBack, Look};
use super::shared::Inner;
use super::table::{Drawing, Entry, Manner};
use super::terms::Terms;
use crate::store::plain::refuse_repeated;
use crate::store::{Answer, Charge, DecidedBy, Op, OwnedStep, Settled, Settlement, Settling, Step};

/// How often a request waits for a draw before the engine decides it alone: draws grow with those who wait for them.
const ROUNDS: usize = 8;

/// What has come of a charge.
enum Found {
    Piece { hash: u64, key: Arc<[u8]>, piece: Piece, line: Settlement },
    Refused(Settlement),
    Draw(Drawing),
    Engine,
}

/// What has come of a step.
pub(super) enum Tried {
    Done,
    /// Draws have to be awaited first.
    Waits(SmallVec<[Drawing; 2]>),
    /// Some charges, or all, are the engine's.
    Engine(Box<Ours>),
}

impl Inner {
    /// Settles a step of one charge whose units are in a pocket: the usual case. `false`, and nothing is changed, where they are not.
    #[inline]
    pub(super) fn take_at_once(
        self: &Arc<Self>,
        step: &Step<'_>,
        charge: &Charge<'_>,
        out: &mut Settled,
    ) -> bool {
        if !charge.max_wait.is_zero() {
            return false;
        }
        let (hash, part) = (self.table.hash(charge.key), self.part.at(step.now));
        let mut shard = self.table.lock(hash);
        let Some(entry) = shard.get(hash, charge.key).filter(|entry| entry.is_of(charge.quota)) else {
            return false;
        };
        let now = self.now_of(step, entry.purse.terms.window);
        let Some(piece) = entry.purse.take_at_once(charge.cost, charge.kept_back, now, part) else {
            return false;
        };
        let receipt = step.receipts.then(|| piece.receipt(&entry.purse.terms.engine));
        let decision =
            Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: standing(entry, now) };
        let ahead = if entry.purse.runs_low(now) { self.drawing(hash, entry, 0, now) } else { None };
        shard.granted += 1;
        drop(shard);
        out.lines.clear();
        out.lines.push(Settlement { decision, receipt });
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        if let Some(ahead) = ahead {
            self.draw_ahead(ahead);
        }
        true
    }

    /// The tick to go by: the clock's own for windows, whose end is not to be missed by a request that was asked long ago.
    fn now_of(&self, step: &Step<'_>, window: bool) -> Tick {
        if window { step.now.max(self.clock.now()) } else { step.now }
    }

    /// Tries to settle a step that takes.
    pub(super) fn try_take(self: &Arc<Self>, step: &Step<'_>, out: &mut Settled) -> Tried {
        let terms = self.terms_of(step);
        let (mut returns, mut ahead) = (Vec::new(), SmallVec::<[Drawing; 2]>::new());
        let both = step.charges.iter().zip(&terms);
        let found: SmallVec<[Found; 4]> = both
            .map(|(charge, terms)| self.find(step, charge, terms.as_ref(), &mut returns, &mut ahead))
            .collect();
        self.give_back(returns);
        ahead.into_iter().for_each(|drawing| self.draw_ahead(drawing));

        let (mut held, mut waits) =
            (Held { inner: Arc::clone(self), pieces: SmallVec::new() }, SmallVec::new());
        let mut lines: SmallVec<[Option<Settlement>; 4]> = SmallVec::new();
        let (mut refused, mut by_engine) = (false, false);
        for (found, charge) in found.into_iter().zip(step.charges) {
            lines.push(match found {
                Found::Piece { hash, key, piece, line } => {
                    held.pieces.push((hash, key, piece));
                    Some(line)
                }
                Found::Refused(line) => {
                    refused |= charge.binding;
                    Some(line)
                }
                Found::Draw(drawing) => {
                    waits.push(drawing);
                    None
                }
                Found::Engine => {
                    by_engine = true;
                    None
                }
            });
        }
        if refused {
            drop(held);
            self.refuse(step, &lines, out);
            return Tried::Done;
        }
        // What was taken is put back while others are waited for.
        if !waits.is_empty() {
            return Tried::Waits(waits);
        }
        if by_engine {
            return Tried::Engine(Box::new(Ours { lines, held }));
        }
        held.admit();
        out.lines.clear();
        out.lines.extend(lines.into_iter().flatten());
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        Tried::Done
    }

    /// Looks for the units of one charge, and takes them if they are there.
    fn find(
        self: &Arc<Self>,
        step: &Step<'_>,
        charge: &Charge<'_>,
        terms: Option<&Arc<Terms>>,
        returns: &mut Vec<Return>,
        ahead: &mut SmallVec<[Drawing; 2]>,
    ) -> Found {
        let Some(terms) = terms.filter(|_| charge.max_wait.is_zero()) else { return Found::Engine };
        let (now, part) = (self.now_of(step, terms.window), self.part.at(step.now));
        let (hash, mut back) = (self.table.hash(charge.key), GivenBack::new());
        let mut shard = self.table.lock(hash);
        // What is held of a limit that has changed since is given back by the old one.
        if let Some(entry) = shard.get(hash, charge.key).filter(|entry| !entry.is_of(charge.quota)) {
            entry.purse.close(&mut back);
            returns.extend(Self::returns(entry, mem::take(&mut back)));
        }
        let place = (hash, self.table.most_in_a_shard(), now);
        let manner = Manner::of(charge, step.tag);
        let Some(entry) = shard.entry(place, charge, terms, manner) else { return Found::Engine };
        let look = entry.purse.look(charge.cost, charge.kept_back, (now, part), &mut back);
        let found = match look {
            Look::Ready => match entry.purse.take(charge.cost) {
                Some(piece) => {
                    entry.purse.hold(&piece);
                    let receipt = step.receipts.then(|| piece.receipt(&entry.purse.terms.engine));
                    let ruling = Ruling::Allowed { wait: Duration::ZERO };
                    let decision = Decision { ruling, standing: standing(entry, now) };
                    if entry.purse.runs_low(now) {
                        ahead.extend(self.drawing(hash, entry, 0, now));
                    }
                    let (key, line) = (Arc::clone(&entry.key), Settlement { decision, receipt });
                    Found::Piece { hash, key, piece, line }
                }
                None => Found::Engine,
            },
            Look::Refused(after) => {
                let standing = Standing { remaining: entry.purse.ready(now), ..standing(entry, now) };
                let ruling = Ruling::Denied { retry: Retry::After(after) };
                Found::Refused(Settlement { decision: Decision { ruling, standing }, receipt: None })
            }
            Look::Draw => match self.drawing(hash, entry, charge.cost.units(), now) {
                Some(drawing) => Found::Draw(drawing),
                None => Found::Engine,
            },
            Look::Engine => Found::Engine,
        };
        returns.extend(Self::returns(entry, back));
        match found {
            Found::Piece { .. } => shard.granted += 1,
            Found::Refused(_) => shard.refused += 1,
            _ => {}
        }
        found
    }

    /// Answers a step that a pocket refuses. Of charges whose keys were not looked at, the limit is told as if full.
    fn refuse(&self, step: &Step<'_>, lines: &[Option<Settlement>], out: &mut Settled) {
        out.lines.clear();
        let both = lines.iter().zip(step.charges);
        out.lines.extend(both.map(|(line, charge)| match line {
            Some(line) => Settlement { receipt: None, ..*line },
            None => unasked(charge),
        }));
        (out.allowed, out.wait, out.at, out.by) = (false, Duration::ZERO, step.now, DecidedBy::Lease);
    }

    /// Settles a step that could not be settled at once.
    pub(super) async fn take_later(self: Arc<Self>, step: OwnedStep, mut tried: Tried) -> Answer {
        for _ in 0..ROUNDS {
            match tried {
                Tried::Waits(draws) => {
                    for drawing in draws {
                        Awaited::of(drawing, Arc::clone(&self)).await;
                    }
                }
                Tried::Engine(ours) => return self.with_the_engine(&step, *ours).await,
                Tried::Done => break,
            }
            let (now, mut out) = (self.clock.now(), Settled::default());
            tried = step.with(|step| self.try_take(&Step { now: step.now.max(now), ..*step }, &mut out));
            if matches!(tried, Tried::Done) {
                return Ok(out);
            }
        }
        drop(tried);
        self.engine_alone(&step).await
    }

    /// Settles a step that takes.
    pub(super) fn settle_take(self: &Arc<Self>, step: &Step<'_>, out: &mut Settled) -> Settling {
        let step = &step.read_clock();
        if let [charge] = step.charges
            && self.take_at_once(step, charge, out)
        {
            return Settling::Done(Ok(()));
        }
        if let Err(error) = refuse_repeated(step) {
            return Settling::Done(Err(error));
        }
        match self.try_take(step, out) {
            Tried::Done => Settling::Done(Ok(())),
            tried => {
                let step = OwnedStep::of(step);
                Settling::Later(Box::pin(Arc::clone(self).take_later(step, tried)))
            }
        }
    }

    /// Looks without taking, if pockets tell; `false` where the engine has to be asked.
    pub(super) fn peek_at_once(&self, step: &Step<'_>, out: &mut Settled) -> bool {
        out.lines.clear();
        for charge in step.charges {
            let hash = self.table.hash(charge.key);
            let mut shard = self.table.lock(hash);
            let Some(entry) = shard.get(hash, charge.key).filter(|entry| entry.is_of(charge.quota)) else {
                return false;
            };
            let now = self.now_of(step, entry.purse.terms.window);
            if entry.purse.ready(now) < charge.cost.units() || charge.kept_back > 0 {
                return false;
            }
            let decision =
                Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: standing(entry, now) };
            out.lines.push(Settlement { decision, receipt: None });
        }
        debug_assert!(matches!(step.op, Op::Peek));
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        true
    }
}

/// Returns how a leased limit stands, as far as this node knows: what it holds, and what the engine had left at the last draw.
#[inline]
pub(super) fn standing(entry: &Entry, now: Tick) -> Standing {
    let (purse, limit) = (&entry.purse, entry.purse.terms.limit);
    let remaining = purse.left().saturating_add(purse.remaining).min(limit);
    Standing { limit, remaining, debt: 0, reset_after: purse.full_at.since(now) }
}

/// Answers a charge that nobody was asked about, because another one refuses.
fn unasked(charge: &Charge<'_>) -> Settlement {
    let limit = charge.quota.capacity();
    let standing = Standing { limit, remaining: limit, debt: 0, reset_after: Duration::ZERO };
    Settlement {
        decision: Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing },
        receipt: None,
    }
}
