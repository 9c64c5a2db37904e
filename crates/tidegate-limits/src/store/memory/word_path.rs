//! Executes steps on the words of the table: the fast path.
//!
//! It serves steps whose keys have words in the table under the same limits, which most steps are. They need no cells and
//! no reference counts, and without a wait no 128-bit arithmetic. Other steps are executed on cells (`cell_path`): a new
//! key among several, a charge that may wait and is not refused, another limit. Both paths use the same arithmetic and
//! the same rule of all or nothing.

use std::hint::black_box;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::rate::GcraWord;
use tidegate_core::{Algorithm, Ask, Decision, Quota, Receipt, Standing, State, Tick, Transition};

use super::MemoryStore;
use super::cache_line::{Seized, Slot};
use super::limit::{Class, Limit, Name};
use super::table::{Fingerprint, KeyForm, Sought, Table, TablePlace};
use crate::clock::HeldTime;
use crate::store::take::{KeyState, take};
use crate::store::{Charge, ChargeAnswer, Executed, Op, Step, StepAnswer};
use crate::sync::spin_loop;

/// How often words that change meanwhile are read before their slots are seized.
const TRIES: u32 = 4;

struct Permit<'t> {
    slot: &'t Slot,
    name: Name,
    limit: Limit<'t>,
    now: u64,
    seen: u64,
    next: u64,
}

impl<'t> Permit<'t> {
    #[inline]
    fn try_seize(&self) -> Option<Seized<'t>> {
        let seized = self.slot.try_seize(self.seen)?;
        (seized.name() == self.name && self.limit.holds()).then_some(seized)
    }

    #[inline]
    fn charge_answer<const RECEIPTS: bool>(&self, charge: &Charge<'_>, tick: Tick) -> ChargeAnswer {
        let spent = self.next.saturating_sub(self.now);
        // Uses the caller's quota, which equals the limit's, because the limit's number may belong to another limit by
        // now. Quotas of other kinds have no words.
        let Quota::Gcra(quota) = &**charge.quota else {
            unreachable!("a slot's class is of a quota whose states are words")
        };
        let decision = Decision {
            ruling: Ruling::Allowed { wait: Duration::ZERO },
            standing: quota.report(spent).standing(),
        };
        let receipt = RECEIPTS.then(|| Receipt {
            at: tick,
            act: tick,
            cost: charge.cost,
            mark: quota.mark(tick, spent),
        });
        ChargeAnswer { decision, receipt }
    }
}

/// A key, where it has its slot, and the word that was read there.
struct Seen {
    key: Sought,
    at: Option<(TablePlace, Name)>,
    form: GcraWord,
    word: u64,
}

struct Word {
    form: GcraWord,
    now: u64,
    word: u64,
}

impl Word {
    fn receipt(&self, word: u64, charge: &Charge<'_>, tick: Tick) -> Receipt {
        Receipt { at: tick, act: tick, cost: charge.cost, mark: self.form.mark(word) }
    }
}

impl KeyState for Word {
    type Next = u64;

    fn decide_cost(&self, charge: &Charge<'_>, tick: Tick) -> (Ruling, Option<(u64, Receipt)>) {
        let (form, units) = (&self.form, charge.cost.units());
        match form.take(self.word, self.now, units) {
            Some(next) => {
                (Ruling::Allowed { wait: Duration::ZERO }, Some((next, self.receipt(next, charge, tick))))
            }
            None => (Ruling::Denied { retry: form.report(self.word, self.now).retry(units) }, None),
        }
    }

    fn standing(&self, _: &Charge<'_>, next: Option<&u64>, _: Tick) -> Standing {
        self.form.report(*next.unwrap_or(&self.word), self.now).standing()
    }

    fn keep(&mut self, _: &Charge<'_>, next: u64, _: Tick) {
        self.word = next;
    }
}

/// A word that is only read. It may be asked how long a charge would wait: a charge that waits is kept on cells.
struct WordSeen(Word);

impl KeyState for WordSeen {
    type Next = ();

    fn decide_cost(&self, charge: &Charge<'_>, tick: Tick) -> (Ruling, Option<((), Receipt)>) {
        let Self(seen) = self;
        if charge.max_wait.is_zero() {
            let (ruling, next) = seen.decide_cost(charge, tick);
            return (ruling, next.map(|(_, receipt)| ((), receipt)));
        }
        let state = State::Gcra(seen.form.widen(seen.word, tick));
        match charge.quota.decide(&state, Ask::within(tick, charge.cost, charge.max_wait)) {
            Transition::Allowed { wait, receipt, .. } => (Ruling::Allowed { wait }, Some(((), receipt))),
            Transition::Denied { retry } => (Ruling::Denied { retry }, None),
        }
    }

    fn standing(&self, charge: &Charge<'_>, _: Option<&()>, tick: Tick) -> Standing {
        self.0.standing(charge, None, tick)
    }

    /// Keeps nothing: the answer to a step that spends is thrown away, and the step is executed elsewhere.
    fn keep(&mut self, _: &Charge<'_>, (): (), _: Tick) {}
}

impl Table {
    /// Executes a step whose charges are all permitted. `None`, with nothing changed, unless each key has a word under
    /// the step's limit and no slot is seized; always so in a table of full keys.
    ///
    /// No slot is waited for, so slots may be seized in any order. Where a key is named twice, seizing its slot a
    /// second time fails. The store's time reaches `now` before a slot is seized.
    pub(super) fn execute_at_once<const RECEIPTS: bool, const TRACK: bool>(
        &self,
        step: &Step<'_>,
        now: Tick,
        time: &HeldTime,
        fingerprint: impl Fn(usize, &Charge<'_>) -> Fingerprint,
        executed: &mut Executed,
    ) -> Option<()> {
        if !matches!(step.op, Op::Take) || self.key_form() == KeyForm::Keys {
            return None;
        }
        executed.lines.clear();
        if let [charge] = step.charges {
            let permit = self.permit_charge::<RECEIPTS>(charge, fingerprint(0, charge), now)?;
            time.reach(now);
            permit.try_seize()?.leave(permit.next);
            if TRACK {
                self.mark_slot(permit.slot);
            }
            executed.lines.push(permit.charge_answer::<RECEIPTS>(charge, now));
        } else {
            let mut permits: SmallVec<[Permit<'_>; 16]> = SmallVec::new();
            for (at, charge) in step.charges.iter().enumerate() {
                permits.push(self.permit_charge::<RECEIPTS>(charge, fingerprint(at, charge), now)?);
            }
            time.reach(now);
            let mut seized_words: SmallVec<[Seized<'_>; 16]> = SmallVec::new();
            for permit in &permits {
                seized_words.push(permit.try_seize()?);
            }
            for (permit, seized) in permits.iter().zip(seized_words.drain(..)) {
                seized.leave(permit.next);
                if TRACK {
                    self.mark_slot(permit.slot);
                }
            }
            executed.lines.reserve_exact(permits.len());
            let both = permits.iter().zip(step.charges);
            executed.lines.extend(both.map(|(permit, charge)| permit.charge_answer::<RECEIPTS>(charge, now)));
        }
        (executed.allowed, executed.wait) = (true, Duration::ZERO);
        Some(())
    }

    /// Executes a step that spends nothing: a refusal, or a look at what is there. Returns `None` for any other step, where
    /// a key has no word under the limit that the step names, and where the words keep changing. Writes to no slot.
    ///
    /// `clock` is asked after the words are read: every charge in them then has an earlier tick, and no request is refused
    /// that the clock would allow.
    #[inline(never)]
    pub(super) fn execute_unspent(
        &self,
        step: &Step<'_>,
        clock: impl FnOnce() -> Tick,
        fingerprint: impl Fn(usize, &Charge<'_>) -> Fingerprint,
        executed: &mut Executed,
    ) -> Option<()> {
        let spend = match step.op {
            Op::Take => true,
            Op::Peek => false,
            _ => return None,
        };
        let mut seen: SmallVec<[Seen; 16]> = SmallVec::new();
        let mut tries = 0;
        while !self.see(step, &fingerprint, &mut seen)? {
            tries += 1;
            if tries == TRIES {
                return None;
            }
            spin_loop();
        }
        let now = clock();
        let mut words: SmallVec<[WordSeen; 16]> = SmallVec::new();
        for seen in &seen {
            words.push(WordSeen(Word { form: seen.form, now: seen.form.scaled(now)?, word: seen.word }));
        }
        take(&Step { now, ..*step }, &mut words, spend, executed);
        (!executed.allowed || !spend).then_some(())
    }

    /// Reads the words of a step's keys. `None` where a state is no word under the limit that the step names, or a key is
    /// named twice. Returns whether all words are of one moment: no slot was seized, and several words were the same when
    /// they were read again.
    ///
    /// A key without a slot has the word 0, as it will have when it gets one: so callers who invent keys are refused by a
    /// limit over all of them without a lock, too.
    #[inline]
    fn see(
        &self,
        step: &Step<'_>,
        fingerprint: impl Fn(usize, &Charge<'_>) -> Fingerprint,
        seen: &mut SmallVec<[Seen; 16]>,
    ) -> Option<bool> {
        seen.clear();
        for (at, charge) in step.charges.iter().enumerate() {
            let key = self.sought(fingerprint(at, charge), charge.key);
            let Some((place, name)) = self.seat(key) else {
                let Quota::Gcra(quota) = &**charge.quota else { return None };
                let form = GcraWord::new(quota, step.now)?;
                if seen.iter().any(|other| other.key.is_as(key)) {
                    return None;
                }
                seen.push(Seen { key, at: None, form, word: 0 });
                continue;
            };
            let limit = self.classes.get(name.class()).filter(|limit| limit.is_of(charge.quota))?;
            let (slot, form) = (self.line(place.line).slot(place.slot), limit.form());
            let Some(word) = slot.read(name, || self.holds_key(place, key)) else {
                return if slot.is_seized() { Some(false) } else { None };
            };
            if !limit.holds() || seen.iter().any(|other| other.key.is_as(key)) {
                return None;
            }
            seen.push(Seen { key, at: Some((place, name)), form, word });
        }
        let still = |seen: &Seen| match seen.at {
            Some((place, name)) => {
                let slot = self.line(place.line).slot(place.slot);
                slot.read(name, || self.holds_key(place, seen.key)) == Some(seen.word)
            }
            None => self.seat(seen.key).is_none(),
        };
        Some(seen.len() == 1 || seen.iter().all(still))
    }

    /// Notes that a slot has changed, after it was released.
    #[inline(always)]
    fn mark_slot(&self, slot: &Slot) {
        if let Some(marks) = &self.marks {
            marks.mark(self.lines.number(slot));
        }
    }

    pub(super) fn mark_key(&self, key: Sought) {
        // If the key has since lost its slot or got another one, the thread that did that has noted it.
        for line in self.lines_of(key) {
            if let Some((slot, _)) = self.line(line).glance_key(key.name(Class::WIDE)) {
                self.mark(TablePlace { line, slot });
            }
        }
    }

    /// Reads whether a charge would be permitted, without seizing its slot; `None` where it would not be, or its key
    /// has no such word.
    #[inline(always)]
    fn permit_charge<const RECEIPTS: bool>(
        &self,
        charge: &Charge<'_>,
        fingerprint: Fingerprint,
        tick: Tick,
    ) -> Option<Permit<'_>> {
        if !(charge.max_wait.is_zero() && charge.binding) {
            return None;
        }
        let (slot, name) = self
            .glance(self.first(fingerprint), fingerprint)
            .or_else(|| self.glance(self.second(fingerprint), fingerprint))?;
        let limit = self.classes.get(name.class()).filter(|limit| limit.is_of(charge.quota))?;
        let form = limit.form();
        // Before its origin, a limit's scaled time stands still, and the mark of a receipt could not be derived from
        // `tick`.
        if RECEIPTS && tick < form.origin() {
            return None;
        }
        let now = form.scaled(tick)?;
        let seen = slot.word();
        if let Some(with_kept_back) = charge.with_kept_back() {
            form.take(seen, now, with_kept_back.cost.units())?;
        }
        let next = form.take(seen, now, charge.cost.units())?;
        Some(Permit { slot, name, limit, now, seen, next })
    }

    #[inline(always)]
    fn glance(&self, line: usize, fingerprint: Fingerprint) -> Option<(&Slot, Name)> {
        let line = self.line(line);
        let (at, name) = line.glance_key(fingerprint.name(Class::WIDE))?;
        Some((line.slot(at), name))
    }

    /// Executes a step of one charge that takes units without waiting and with nothing kept back: a refusal, or a new
    /// key, which gets a slot. Returns `false`, and changes nothing, for any other step.
    pub(super) fn execute_word(
        &self,
        step: &Step<'_>,
        charge: &Charge<'_>,
        key: Sought,
        time: &HeldTime,
        executed: &mut Executed,
    ) -> bool {
        let plain =
            charge.max_wait.is_zero() && charge.binding && !charge.inline_quota && charge.kept_back == 0;
        if !plain || !matches!(step.op, Op::Take) {
            return false;
        }
        // Before the slot is seized or the limit gets its form. Few refusals come here: those whose word kept changing.
        time.reach(step.now);
        let known = self.seat(key).and_then(|(_, name)| self.classes.get(name.class()));
        let limit = known
            .filter(|limit| limit.is_of(charge.quota) && limit.admits())
            .or_else(|| self.classes.of(charge.quota, charge.rules.owner, step.now));
        let Some(by) = limit.and_then(|limit| Reading::at(limit, step.now)) else { return false };
        let taken = self.take(key.fingerprint(), charge.key, &by, charge.cost.units());
        let (WordOutcome::Permitted(word) | WordOutcome::Refused(word)) = taken else { return false };
        let state = Word { form: by.form, now: by.now, word };
        let (ruling, receipt) = if matches!(taken, WordOutcome::Permitted(_)) {
            (Ruling::Allowed { wait: Duration::ZERO }, Some(state.receipt(word, charge, step.now)))
        } else {
            (state.decide(charge, step.now).0, None)
        };
        let decision = Decision { ruling, standing: state.standing(charge, None, step.now) };
        (executed.allowed, executed.wait) = (receipt.is_some(), Duration::ZERO);
        executed.lines.clear();
        executed.lines.push(ChargeAnswer { decision, receipt });
        true
    }

    /// Executes a step whose keys all have words under the limits that it names; otherwise returns `None` and changes
    /// nothing.
    pub(super) fn execute_words(
        &self,
        step: &Step<'_>,
        keys: &[Sought],
        time: &HeldTime,
        executed: &mut Executed,
    ) -> Option<()> {
        let spend = match step.op {
            Op::Take => true,
            Op::Peek => false,
            _ => return None,
        };
        // First, without seizing: finds where each key is, and its name there.
        let mut seats: SmallVec<[(TablePlace, Name, Limit<'_>, usize); 16]> = SmallVec::new();
        let mut words: SmallVec<[Word; 16]> = SmallVec::new();
        for (at, (charge, key)) in step.charges.iter().zip(keys).enumerate() {
            let (place, name) = self.seat(*key).filter(|_| charge.max_wait.is_zero())?;
            let limit = self.classes.get(name.class()).filter(|limit| limit.is_of(charge.quota))?;
            let form = limit.form();
            words.push(Word { form, now: form.scaled(step.now)?, word: 0 });
            seats.push((place, name, limit, at));
        }
        // Then the slots are seized, in ascending order, and read again.
        seats.sort_unstable_by_key(|(place, ..)| *place);
        if seats.windows(2).any(|two| two[0].0 == two[1].0) {
            // Two keys with the same fingerprint, in a table of full keys.
            return None;
        }
        let mut seized_words: SmallVec<[Seized<'_>; 16]> = SmallVec::new();
        for (place, name, limit, at) in &seats {
            let seized = self.line(place.line).seize(place.slot);
            if seized.name() != *name || !limit.holds() || !self.holds_key(*place, keys[*at]) {
                return None;
            }
            words[*at].word = seized.word;
            seized_words.push(seized);
        }
        if take(step, &mut words, spend, executed) {
            time.reach(step.now);
            for ((.., at), seized) in seats.iter().zip(&mut seized_words) {
                seized.word = words[*at].word;
            }
        }
        Some(())
    }

    #[inline]
    fn seat(&self, key: Sought) -> Option<(TablePlace, Name)> {
        let look = |line: usize| {
            let (slot, name) = self.line(line).glance_key(key.name(Class::WIDE))?;
            Some((TablePlace { line, slot }, name))
        };
        look(self.first(key.fingerprint())).or_else(|| look(self.second(key.fingerprint())))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordOutcome {
    /// Spent; holds the new word.
    Permitted(u64),
    /// Not spent; holds the word that refused.
    Refused(u64),
    /// Not decided: the key has no word under this limit here, or the check has to be repeated another way.
    Undecided,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'t> {
    pub(crate) limit: Limit<'t>,
    pub(crate) form: GcraWord,
    pub(crate) tick: Tick,
    pub(crate) now: u64,
}

impl<'t> Reading<'t> {
    /// Makes a reading at `tick`; `None` where the limit's form does not reach that far.
    #[inline(always)]
    pub(crate) fn at(limit: Limit<'t>, tick: Tick) -> Option<Self> {
        let form = limit.form();
        let now = form.scaled(tick)?;
        Some(Self { limit, form, tick, now })
    }

    #[inline(always)]
    pub(crate) fn later(&self, tick: Tick) -> Option<Self> {
        Some(Self { tick, now: self.form.scaled(tick)?, ..*self })
    }
}

/// The number of keys that are prefetched together: as many cache misses as a core has in flight at once, and a few
/// more.
const KEYS: usize = 16;

type Fingerprints = SmallVec<[Fingerprint; KEYS]>;

impl MemoryStore {
    pub(super) fn execute_batch<const TRACK: bool>(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) {
        out.clear();
        out.reserve_exact(steps.len());
        let mut rest = steps;
        while !rest.is_empty() {
            let (together, others) = rest.split_at(fitting(rest));
            rest = others;
            let fingerprints = self.shared.table.fetch(together);
            let mut keys = &*fingerprints;
            for step in together {
                let (own, others) = keys.split_at(step.charges.len());
                keys = others;
                // Executed in place, because an answer is large to move.
                out.push(Ok(Executed::default()));
                let Some(answer) = out.last_mut() else { continue };
                let Ok(executed) = answer else { continue };
                let done = match step.receipts {
                    true => self.execute_step::<true, TRACK>(step, own, executed),
                    false => self.execute_step::<false, TRACK>(step, own, executed),
                };
                if let Err(error) = done {
                    *answer = Err(error);
                }
            }
        }
    }
}

impl MemoryStore {
    pub(super) fn touch_each(&self, keys: &[&[u8]]) {
        for keys in keys.chunks(KEYS) {
            // All keys are hashed first: a processor looks only a few hundred instructions ahead, and has to find the
            // reads of many keys there.
            let fingerprints: Fingerprints = keys.iter().map(|key| self.fingerprint(key)).collect();
            black_box(fingerprints.iter().fold(0, |touched, fingerprint| touched ^ self.touch(*fingerprint)));
        }
    }
}

/// Returns how many of the first steps fit into one prefetch of [`KEYS`] keys; at least one.
fn fitting(steps: &[Step<'_>]) -> usize {
    let mut keys = 0;
    let fits = |step: &&Step<'_>| {
        keys += step.charges.len();
        keys <= KEYS
    };
    steps.iter().take_while(fits).count().max(1)
}

impl Table {
    /// Hashes the keys of some steps and reads from their lines. Of a step with more than [`KEYS`] keys, only the first
    /// are prefetched.
    fn fetch(&self, steps: &[Step<'_>]) -> Fingerprints {
        let mut fingerprints = Fingerprints::new();
        let mut touched = 0;
        for charge in steps.iter().flat_map(|step| step.charges) {
            let fingerprint = self.fingerprint(charge.key);
            if fingerprints.len() < KEYS {
                touched ^= self.touch(fingerprint);
            }
            fingerprints.push(fingerprint);
        }
        black_box(touched);
        fingerprints
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use tidegate_core::{Cost, Quota, Tick};

    use super::*;
    use crate::store::{Charge, Op, Store};

    proptest! {
        /// The same steps in batches and one by one, including steps that name a key twice.
        #[test]
        fn a_batch_answers_as_its_steps_one_by_one(
            full in any::<bool>(),
            steps in prop::collection::vec(
                (0u64..2_000, 0u8..10, prop::collection::vec((0u8..12, 0usize..4, 1u64..4), 0..20), any::<bool>()),
                1..60,
            ),
            cut in 1usize..40,
        ) {
            let quotas = [
                Quota::per_second(2).burst(3).gcra(),
                Quota::per_minute(4).gcra(),
                Quota::per_second(3).fixed_window(),
                Quota::per_second(5).sliding_log(),
            ].map(|quota| Arc::new(quota.unwrap()));
            let make = || if full { MemoryStore::with_full_keys(64).unwrap() } else { MemoryStore::with_capacity(64).unwrap() };
            let (one, other) = (make(), make());
            let mut now = Tick::from_secs(100);
            let keys: Vec<[u8; 1]> = (0..12).map(|key| [key]).collect();
            let mut lists = Vec::new();
            for (pause, op, named, receipts) in &steps {
                now = now.after(Duration::from_millis(*pause / 4));
                let charge = |(key, quota, cost): &(u8, usize, u64)| Charge {
                    max_wait: Duration::from_millis(u64::from(*op == 9) * 700),
                    ..Charge::new(&keys[usize::from(*key)], &quotas[*quota], Cost::new(*cost).unwrap())
                };
                let mut charges: Vec<Charge<'_>> = named.iter().map(charge).collect();
                if *op > 0 {
                    charges.sort_by_key(|charge| charge.key);
                    charges.dedup_by_key(|charge| charge.key);
                }
                let op = match op { 1 => Op::Peek, 2 => Op::Reset, _ => Op::Take };
                lists.push((now, op, charges, *receipts));
            }
            let steps: Vec<Step<'_>> = lists.iter().map(|(now, op, charges, receipts)| {
                Step { receipts: *receipts, ..Step::new(*now, *op, charges) }
            }).collect();
            let mut out = vec![Err(crate::store::StoreError::MustWait)];
            for steps in steps.chunks(cut) {
                prop_assert!(other.execute_each(steps, &mut out).is_none());
                let mut expected = Vec::new();
                for step in steps {
                    let mut executed = Executed::default();
                    let crate::store::Execution::Done(done) = one.execute_into(step, &mut executed) else { unreachable!() };
                    expected.push(done.map(|()| executed));
                }
                prop_assert_eq!(&out, &expected);
            }
        }
    }
}
