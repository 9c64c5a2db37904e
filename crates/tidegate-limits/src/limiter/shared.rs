//! The state that the clones of a limiter share, and the decisions made under its lock.

use std::hint::{cold_path, spin_loop};
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate_core::{Cost, Quota, Receipt, Retry, Tick};

use super::word::{Undecided, Word};
use crate::answer::{Answer, CheckResult, Denied};
use crate::clock::{Clock, SystemClock, Time};
use crate::observer::{Event, KeyDigest, Observer};
use crate::precision::Precision;
use crate::reservation::{ChargeOwner, HeldCharge};
use crate::store::{Cell, Charge, Ending, Executed, Op, Step, execute};
use crate::sync::Ordering;
use crate::sync::unexplored::{AtomicU64, Mutex};

#[derive(Debug)]
pub(super) struct LimiterState {
    pub(super) word: Word,
    pub(super) fast_path: FastPath,
    pub(super) precision: Precision,
    pub(super) time: Time,
    /// Identifies the limiter within the process, for leases.
    pub(super) number: u64,
    pub(super) returns: Returns,
    /// Counts changes of the quotas: a charge that was made under an earlier count gives nothing back. Changed under the
    /// lock, while `NO_WORD` stands in place of the word.
    terms: AtomicU64,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Protects the quotas and their states. Not held while a clock, an observer or a waker is called.
    pub(super) limits: Mutex<Limits>,
}

/// The sum of the units that the leases of one limiter have given back.
///
/// When a word is lowered, the word itself does not record by how much. A draw still holds less by the amounts given
/// back since that lay before it in the order of arrival times, but not by those that lay after it. Subtracting both
/// gives back too little at times, but never too much.
// Aligned, so that writing it does not disturb checks.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Returns {
    /// The units that leases have given back, in scaled time; wraps around.
    pub(super) sum: AtomicU64,
    /// The tick, in nanoseconds, after which no receipt of a reservation can be settled. Until then leases are given
    /// back under the lock, as charges are settled: a receipt finds its position only if the word was not lowered
    /// since.
    pub(super) receipts: AtomicU64,
    /// Held while a lease is given back: two at once would not see each other in the sum.
    pub(super) giving: Mutex<()>,
}

impl Returns {
    /// Records a receipt that may be settled until `tick`. Called under the limiter's lock, while `NO_WORD` stands in
    /// place of the word.
    fn issued(&self, tick: Tick) {
        // Relaxed: putting the word back releases it, and a thread that gives back has loaded the word before.
        self.receipts.fetch_max(tick.as_nanos(), Ordering::Relaxed);
    }
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the numbers only have to differ.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[derive(Debug)]
pub(super) struct Limits {
    pub(super) quotas: SmallVec<[Arc<Quota>; 1]>,
    pub(super) cells: SmallVec<[Option<Cell>; 1]>,
}

impl Limits {
    pub(super) fn execute(&mut self, now: Tick, op: Op<'_>, cost: Cost, max_wait: Duration) -> Executed {
        // A limiter's cells are identified by their order, so the key is not used.
        let line = |quota| Charge { max_wait, ..Charge::new(b"", quota, cost) };
        let charges: SmallVec<[Charge<'_>; 4]> = self.quotas.iter().map(line).collect();
        execute(&Step::new(now, op, &charges), &mut self.cells).0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FastPath {
    Tick,
    Lease,
    Clock,
}

impl FastPath {
    pub(super) fn of(precision: Precision, time: &Time) -> Self {
        match (time, precision) {
            (Time::System(_), Precision::Shared) => Self::Tick,
            (Time::System(_), Precision::Leased) => Self::Lease,
            // Shared ticks and leases exist only for the system clock.
            (Time::System(_), Precision::Exact) | (Time::Other { .. }, _) => Self::Clock,
        }
    }
}

impl LimiterState {
    pub(super) fn new(
        quotas: SmallVec<[Arc<Quota>; 1]>,
        time: Time,
        precision: Precision,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let cells = quotas.iter().map(|_| None).collect();
        let quotas = quotas.into_iter().map(|quota| time.followed(&quota)).collect();
        let limits = Mutex::new(Limits { quotas, cells });
        let shared = Self {
            word: Word::new(),
            fast_path: FastPath::of(precision, &time),
            precision,
            time,
            number: next_number(),
            returns: Returns::default(),
            terms: AtomicU64::new(0),
            observer,
            limits,
        };
        let now = shared.time.now();
        shared.with_cells(now, |_| ());
        shared
    }

    /// Runs `then` on the cells under the lock. Meanwhile `NO_WORD` stands in place of the word.
    pub(super) fn with_cells<R>(&self, now: Tick, then: impl FnOnce(&mut Limits) -> R) -> R {
        let mut limits = self.limits.lock();
        limits.word_to_cell(&self.word, now);
        let result = then(&mut limits);
        // With an observer the word is not put back, since every check has to be reported.
        if self.observer.is_none() {
            limits.cell_to_word(&self.word, now);
        }
        result
    }

    pub(super) fn followed(&self, quota: &Arc<Quota>) -> Arc<Quota> {
        self.time.followed(quota)
    }

    pub(super) fn now(&self) -> Tick {
        self.time.now()
    }

    /// Returns how often the quotas were changed. A charge by the word reads it before the word: if the quotas change
    /// in between, the charge has an earlier count than its quota, and gives nothing back.
    pub(super) fn terms(&self) -> u64 {
        self.terms.load(Ordering::Acquire)
    }

    pub(super) fn changed(&self) {
        self.terms.fetch_add(1, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn allow_under_lock(&self, cost: Cost) -> Answer {
        self.take(self.time.now(), cost, Duration::ZERO, false).0.answer()
    }

    fn take(
        &self,
        mut now: Tick,
        cost: Cost,
        max_wait: Duration,
        keeps: bool,
    ) -> (Event, u64, SmallVec<[Receipt; 1]>) {
        let (executed, answer, terms) = loop {
            let execute = |limits: &mut Limits| {
                let executed = limits.execute(now, Op::Take, cost, max_wait);
                if keeps && executed.allowed {
                    let full = executed.lines.iter().map(|line| line.decision.standing.reset_after).max();
                    self.returns.issued(now.after(full.unwrap_or_default()));
                }
                (executed, self.terms())
            };
            let (executed, terms) = self.with_cells(now, execute);
            let answer = Answer::binding_of(&executed);
            if answer.is_allowed() {
                break (executed, answer, terms);
            }
            // A word does not hold the tick of its last charge, which may be later than `now`. So a check is refused
            // only if a later clock reading refuses it too. The loop ends because each turn waits out the time that
            // the previous one returned.
            match answer.retry().after().zip(Some(self.time.now())) {
                Some((wait, later)) if later.since(now) >= wait => now = later,
                _ => break (executed, answer, terms),
            }
        };
        let event = Event::of(answer, now, cost, max_wait);
        if let Some(observer) = &self.observer {
            observer.on_decision(&event);
        }
        (event, terms, executed.lines.iter().filter_map(|line| line.receipt).collect())
    }
}

impl ChargeOwner for LimiterState {
    fn clock(&self) -> &dyn Clock {
        self.time.clock()
    }

    fn now(&self) -> Tick {
        self.time.now()
    }

    fn charge(&self, now: Tick, cost: Cost, max_wait: Duration) -> Result<HeldCharge, Denied> {
        if let Some(decided) = self.charge_by_word(now, cost, max_wait) {
            return decided;
        }
        let (event, terms, receipts) = self.take(now, cost, max_wait, true);
        if !event.decision.is_allowed() {
            return Err(event.answer().into());
        }
        Ok(HeldCharge { event, receipts, terms, quota: None })
    }

    /// Settles a charge with the units really spent. After a change of the quotas nothing is given back, and units
    /// spent beyond the charge are charged to each current quota.
    fn settle(&self, held: &HeldCharge, used: u64) {
        let now = self.time.now();
        self.with_cells(now, |limits| {
            let same = self.terms() == held.terms;
            if same || used > held.event.cost.units() {
                let receipts = held.receipts.iter().chain(held.receipts.last().into_iter().cycle());
                let endings: SmallVec<[Ending; 1]> =
                    receipts.take(limits.quotas.len()).map(|receipt| held.ending(*receipt, used)).collect();
                limits.execute(now, Op::Finish(&endings), held.event.cost, Duration::ZERO);
            }
        });
        if let Some(observer) = &self.observer {
            held.notify(&**observer, used);
        }
    }

    fn peek(&self, cost: Cost) -> Answer {
        if let Some(answer) = self.peek_by_clock(cost.units()) {
            return answer;
        }
        let now = self.time.now();
        let execute = |limits: &mut Limits| limits.execute(now, Op::Peek, cost, Duration::ZERO);
        Answer::binding_of(&self.with_cells(now, execute))
    }

    fn observer(&self) -> Option<&dyn Observer> {
        self.observer.as_deref()
    }

    fn digest(&self) -> Option<KeyDigest> {
        None
    }
}

// Decides a check on the limiter's word, without a lock: first on the fast path of its precision and clock, then on
// slower paths, and under the lock if the word cannot decide.
//
// A compare-exchange waits for all stores before it, and on some processors the next check waits for the exchange.
// So a fast path stores nothing but the word. It also keeps no value across a call: any function that it calls comes
// last, and its result is returned unchanged.

impl LimiterState {
    // Inlined, with the fast paths inlined into it. Nothing follows the calls, so a fast path keeps no value across
    // one.
    #[inline]
    pub(super) fn decide<T: CheckResult>(self: &Arc<Self>, cost: Cost) -> T {
        let units = cost.units();
        let decided = match self.fast_path {
            FastPath::Tick => self.permit_fast(units),
            FastPath::Lease => super::spend_fast(self, units),
            FastPath::Clock => return self.decide_by_clock(cost),
        };
        match decided {
            Ok(result) => result,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(Undecided::ByClock) => self.decide_by_clock(cost),
            Err(Undecided::NotAsked) => self.decide_otherwise(cost, Undecided::NotAsked, 0),
        }
    }

    /// Decides by the clock on every check. Not inlined: on some machines reading the clock is a call, and values kept
    /// across it would slow the other paths down.
    #[inline(never)]
    fn decide_by_clock<T: CheckResult>(self: &Arc<Self>, cost: Cost) -> T {
        match self.decide_fast(cost.units()) {
            Ok(result) => result,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(_) => self.decide_otherwise(cost, Undecided::NotAsked, 0),
        }
    }

    #[cold]
    #[inline(never)]
    fn decide_after_loss<T: CheckResult>(self: &Arc<Self>, cost: Cost) -> T {
        self.decide_otherwise(cost, Undecided::Lost, 1)
    }

    #[inline(never)]
    fn decide_otherwise<T: CheckResult>(self: &Arc<Self>, cost: Cost, why: Undecided, mut lost: u32) -> T {
        let units = cost.units();
        let by_tick = match self.precision {
            Precision::Shared if why != Undecided::ByClock => {
                self.permit_by_tick(units, std::mem::take(&mut lost))
            }
            Precision::Leased => super::spend(self, units),
            _ => None,
        };
        if let Some(result) = by_tick {
            return result;
        }
        match self.spend_by_clock(units, lost) {
            Some(result) => result,
            None => T::of(self.allow_under_lock(cost)),
        }
    }
}

impl LimiterState {
    #[inline]
    pub(super) fn permit_fast<T: CheckResult>(&self, units: u64) -> Result<T, Undecided> {
        let (form, word) = self.word.read().ok_or(Undecided::NotAsked)?;
        let tick = SystemClock::shared().ok_or(Undecided::NotAsked)?;
        let now = form.scaled(tick).ok_or(Undecided::NotAsked)?;
        let next = form.take(word, now, units).ok_or(Undecided::ByClock)?;
        if !self.word.exchange(word, next) {
            return Err(Undecided::Lost);
        }
        Ok(T::permitted(form.report(next, now)))
    }

    #[inline]
    pub(super) fn decide_fast<T: CheckResult>(&self, units: u64) -> Result<T, Undecided> {
        // The form is loaded last, so that fewer values are kept across a call that reads the counter.
        let word = self.word.word().ok_or(Undecided::NotAsked)?;
        let tick = self.time.fast_tick().ok_or(Undecided::NotAsked)?;
        let form = self.word.form_of_word();
        let now = form.scaled(tick).ok_or(Undecided::NotAsked)?;
        let Some(next) = form.take(word, now, units) else {
            return if self.word.stays(word) {
                Ok(T::refused(form.report(word, now), units))
            } else {
                Err(Undecided::Lost)
            };
        };
        if !self.word.exchange(word, next) {
            return Err(Undecided::Lost);
        }
        Ok(T::permitted(form.report(next, now)))
    }

    /// Spends units by the shared tick, or by any recent tick. `None` if that does not decide: the units are refused,
    /// or there is no word. `lost` is the number of exchanges lost so far.
    pub(super) fn permit_by_tick<T: CheckResult>(&self, units: u64, lost: u32) -> Option<T> {
        for lost in lost.. {
            pause(lost);
            let (form, word) = self.word.read()?;
            let now = form.scaled(self.time.recent())?;
            let next = form.take(word, now, units)?;
            if self.word.exchange(word, next) {
                return Some(T::permitted(form.report(next, now)));
            }
        }
        None
    }

    /// Spends or refuses units, by the clock; `None` if the lock has to be taken. Lock-free: if the word has changed,
    /// another check has made progress.
    pub(super) fn spend_by_clock<T: CheckResult>(&self, units: u64, lost: u32) -> Option<T> {
        for lost in lost.. {
            pause(lost);
            let (form, word) = self.word.read()?;
            let now = form.scaled(self.time.now())?;
            match form.take(word, now, units) {
                None if self.word.stays(word) => return Some(T::refused(form.report(word, now), units)),
                Some(next) if self.word.exchange(word, next) => {
                    return Some(T::permitted(form.report(next, now)));
                }
                _ => {}
            }
        }
        None
    }

    /// Charges a cost that may be settled later, by the word, or refuses it, which writes nothing. `None` if the lock has
    /// to decide: the cost would have to wait and may, or there is no word.
    ///
    /// The receipt is the one that the general form would have made. Leases lower the word, and receipts find their
    /// position only in a word that was not lowered, so a limiter with leases charges under the lock; it refuses here.
    pub(super) fn charge_by_word(
        &self,
        mut now: Tick,
        cost: Cost,
        max_wait: Duration,
    ) -> Option<Result<HeldCharge, Denied>> {
        let terms = self.terms();
        let (mut lost, mut refused) = (0, false);
        loop {
            pause(lost);
            let (form, word) = self.word.read()?;
            if refused {
                // Only a tick that was read after the word may refuse: see the word's module.
                now = self.time.now();
            }
            let scaled = form.scaled(now)?;
            match form.take(word, scaled, cost.units()) {
                Some(_) if self.precision == Precision::Leased => return None,
                Some(next) if self.word.exchange(word, next) => {
                    let answer = Answer::permitted(form.report(next, scaled));
                    let (decision, binding) = (answer.decision(), answer.binding());
                    let event =
                        Event { at: now, cost, max_wait, decision, binding, key: None, shadow: false };
                    let receipt = Receipt { at: now, act: now, cost, mark: form.mark(next) };
                    return Some(Ok(HeldCharge { event, receipts: smallvec![receipt], terms, quota: None }));
                }
                // The report is of this word and its form only if the word stays.
                None if self.word.stays(word) => {
                    let (report, units) = (form.report(word, scaled), cost.units());
                    if !max_wait.is_zero() && report.retry(units) <= Retry::After(max_wait) {
                        return None;
                    }
                    if refused {
                        return Some(Err(Answer::refused_to_wait(report, units, max_wait).into()));
                    }
                    refused = true;
                }
                _ => lost += 1,
            }
        }
    }

    /// Returns the answer for units without spending them, by the word; `None` if the word changed meanwhile, or the
    /// lock has to decide.
    pub(super) fn peek_by_clock(&self, units: u64) -> Option<Answer> {
        let (form, word) = self.word.read()?;
        let now = form.scaled(self.time.now())?;
        let answer = match form.take(word, now, units) {
            Some(_) => Answer::permitted(form.report(word, now)),
            None => Answer::refused(form.report(word, now), units),
        };
        self.word.stays(word).then_some(answer)
    }
}

/// Leaves the word to the core that has it, for as long as a few dozen checks take. A lost exchange means that another
/// core checks as fast as this one. If both went on, each would wait for the cache line to move on every check; left
/// alone, the other core makes its checks at full speed meanwhile. The pause grows with each loss in a row, up to a few
/// microseconds, so that many cores get a turn too. Without a loss there is no pause.
#[inline]
fn pause(lost: u32) {
    if lost > 0 {
        cold_path();
        for _ in 0..PAUSE << (lost - 1).min(4) {
            spin_loop();
        }
    }
}

/// Spins of a first pause: about a fifth of a microsecond on current processors.
const PAUSE: u32 = 16;
