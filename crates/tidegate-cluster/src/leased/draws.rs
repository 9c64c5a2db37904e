//! Makes draws, and gives units back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{StreamExt as _, iter};
use tidegate_core::decision::Ruling;
use tidegate_core::time::nanos;
use tidegate_core::{Cost, Finish, Receipt, Tick};
use tidegate_limits::store::{Charge, Ending, Later, Op, OwnedStep, Step, StepAnswer, StepClock};

use super::allowance::{MANY, Wanted};
use super::leasable::Terms;
use super::lease::GivenBack;
use super::request::{Draw, DrawTimes, Drawn, Refused};
use super::state::{LeasedState, ask};
use super::table::{ChargeSettings, Drawing, LeasedKey};

/// The most calls in flight that give units back: a node that closes may hold those of a hundred thousand keys.
const RETURNS_AT_ONCE: usize = 64;

struct DrawRequest {
    inner: Arc<LeasedState>,
    hash: u64,
    key: Arc<[u8]>,
    terms: Arc<Terms>,
    settings: ChargeSettings,
    draw: Draw,
    /// Whether its answer was processed.
    answered: bool,
}

pub(super) struct Return {
    pub(super) key: Arc<[u8]>,
    pub(super) terms: Arc<Terms>,
    pub(super) settings: ChargeSettings,
    pub(super) receipt: Receipt,
}

impl LeasedState {
    /// Returns the draw under way, or a new one; `None` if there is no room, or nothing is drawn any more. `request` is the cost of a waiting request
    /// and what it has to leave to higher priorities; `None` is a draw ahead of need.
    pub(super) fn drawing(
        self: &Arc<Self>,
        hash: u64,
        entry: &mut LeasedKey,
        request: Option<(Cost, u64)>,
        now: Tick,
    ) -> Option<Drawing> {
        if entry.lease.is_drawing() {
            return entry.drawing.clone();
        }
        // Relaxed: a draw more or less makes no difference.
        if !self.draws.load(Ordering::Relaxed) {
            return None;
        }
        let draw = entry.lease.draw(
            request,
            now,
            self.counts.numbers.fetch_add(1, Ordering::Relaxed),
            self.round_trip(),
        )?;
        let asked = DrawRequest {
            inner: Arc::clone(self),
            hash,
            key: Arc::clone(&entry.key),
            terms: Arc::clone(&entry.lease.terms),
            settings: entry.settings,
            draw,
            answered: false,
        };
        let later: Later<()> = Box::pin(asked.run());
        entry.drawing = Some(Drawing::of(later));
        entry.drawing.clone()
    }

    pub(super) fn draw_ahead(&self, drawing: Drawing) {
        if drawing.goes_on() {
            self.background.run(Box::pin(drawing.made));
        }
    }

    pub(super) fn returns<'e>(
        entry: &'e LeasedKey,
        back: GivenBack,
    ) -> impl Iterator<Item = Return> + use<'e> {
        back.into_iter().map(|receipt| Return {
            key: Arc::clone(&entry.key),
            terms: Arc::clone(&entry.lease.terms),
            settings: entry.settings,
            receipt,
        })
    }

    /// Ends batches that are held too long, and forgets idle keys; with `all`, ends all batches. Returns the units to
    /// give back.
    pub(super) fn tidy(&self, now: Tick, all: bool) -> Vec<Return> {
        let (part, mut returns) = (self.part.at(now), Vec::new());
        for mut shard in self.table.shards() {
            for entry in shard.entries() {
                let mut back = GivenBack::new();
                match all {
                    true => entry.lease.close(now, &mut back),
                    false => entry.lease.tidy(now, part, &mut back),
                }
                returns.extend(Self::returns(entry, back));
                let dropped = std::mem::take(&mut entry.lease.dropped);
                self.counts.burned.fetch_add(dropped, Ordering::Relaxed);
            }
            shard.forget_idle(now);
        }
        returns
    }

    pub(super) fn give_back(self: &Arc<Self>, returns: Vec<Return>) {
        if !returns.is_empty() {
            let inner = Arc::clone(self);
            self.background.run(Box::pin(async move { inner.give_all_back(returns).await }));
        }
    }

    /// Gives units back. Each is sent only once: if its answer is lost, it is unknown whether it was done, and a
    /// second one might give back what others have charged since.
    pub(super) async fn give_all_back(&self, returns: Vec<Return>) {
        let send = |back: Return| async move {
            let units = back.receipt.cost.units();
            let counter = match back.send(self).await {
                Ok(_) => {
                    let hash = self.table.hash(&back.key);
                    if let Some(entry) = self.table.lock(hash).get_under(hash, &back.key, &back.terms) {
                        entry.lease.returned(units);
                    }
                    &self.counts.returned
                }
                // They may arrive yet.
                Err(_) => &self.counts.burned,
            };
            counter.fetch_add(units, Ordering::Relaxed);
        };
        iter(returns).for_each_concurrent(RETURNS_AT_ONCE, send).await;
    }
}

impl Return {
    async fn send(&self, inner: &LeasedState) -> StepAnswer {
        let ending = [Ending::new(self.receipt, Finish::UNDONE)];
        let charge = [charge(&self.key, &self.terms, self.settings, self.receipt.cost, 0)];
        let step = Step {
            clock: StepClock::Engine,
            tag: self.settings.tag,
            ..Step::new(inner.clock.now(), Op::Finish(&ending), &charge)
        };
        inner.counts.messages.fetch_add(1, Ordering::Relaxed);
        let (sent, step) = (step.now, OwnedStep::of(&step));
        let executed = ask(&*inner.engine, &step).await?;
        inner.record_answer(&step, &executed, sent);
        Ok(executed)
    }
}

impl DrawRequest {
    async fn run(mut self) {
        let sent = self.inner.clock.now();
        let charges = [Charge {
            max_wait: self.draw.ahead,
            ..charge(&self.key, &self.terms, self.settings, self.draw.want, self.draw.kept_back)
        }];
        let step =
            Step { clock: StepClock::Engine, tag: self.settings.tag, ..Step::new(sent, Op::Draw, &charges) };
        let step = OwnedStep::of(&step);
        self.inner.counts.messages.fetch_add(1, Ordering::Relaxed);
        self.inner.counts.draws.fetch_add(1, Ordering::Relaxed);
        let answer = ask(&*self.inner.engine, &step).await;
        let received = self.inner.clock.now();
        self.take_in(answer, DrawTimes { sent, received });
    }

    fn take_in(&mut self, answer: StepAnswer, times: DrawTimes) {
        self.answered = true;
        if answer.is_ok() {
            self.inner.took(times.received.since(times.sent));
        }
        let (inner, part) = (&self.inner, self.inner.part.at(times.received));
        let mut back = GivenBack::new();
        let mut returns = Vec::new();
        let line = answer.ok().and_then(|executed| executed.lines.first().copied());
        let drawn = line.and_then(|line| {
            let (Ruling::Allowed { wait }, Some(receipt)) = (line.decision.ruling, line.receipt) else {
                return None;
            };
            let standing = line.decision.standing;
            Some(Drawn { receipt, wait, remaining: standing.remaining, reset_after: standing.reset_after })
        });
        if let Some(drawn) = &drawn {
            inner.counts.drawn.fetch_add(drawn.receipt.cost.units(), Ordering::Relaxed);
        }
        let mut shard = inner.table.lock(self.hash);
        let found = shard.get_under(self.hash, &self.key, &self.terms);
        match (found, line, drawn) {
            (Some(entry), _, Some(drawn)) => {
                entry.lease.fill(&self.draw, &drawn, times, part, &mut back);
                returns.extend(LeasedState::returns(entry, back));
            }
            (Some(entry), Some(line), None) => {
                let remaining = line.decision.standing.remaining;
                let refused = Refused { retry: line.decision.retry(), remaining };
                entry.lease.refused(&self.draw, &refused, times.sent);
            }
            (Some(entry), None, None) => entry.lease.failed(&self.draw, times.received),
            // The key was forgotten, or has another limit by now.
            (None, _, Some(drawn)) if self.terms.may_give(drawn.receipt.cost.units(), part) => {
                returns.push(Return {
                    key: Arc::clone(&self.key),
                    terms: Arc::clone(&self.terms),
                    settings: self.settings,
                    receipt: drawn.receipt,
                });
            }
            (None, _, Some(drawn)) => {
                inner.counts.burned.fetch_add(drawn.receipt.cost.units(), Ordering::Relaxed);
            }
            (None, ..) => {}
        }
        drop(shard);
        inner.give_back(returns);
    }
}

/// A draw that is dropped has no answer. Noted in the background: the code that drops it may hold the lock of the key.
impl Drop for DrawRequest {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let (inner, hash, key, draw) = (Arc::clone(&self.inner), self.hash, Arc::clone(&self.key), self.draw);
        self.inner.background.run(Box::pin(async move {
            let now = inner.clock.now();
            if let Some(entry) = inner.table.lock(hash).get(hash, &key) {
                entry.lease.failed(&draw, now);
            }
        }));
    }
}

/// A request that waits for a draw. If it is dropped, the draw goes on: others may wait for it, and the engine may
/// have done it already.
pub(super) struct Awaited {
    drawing: Option<Drawing>,
    inner: Arc<LeasedState>,
    polled: bool,
}

impl Awaited {
    pub(super) const fn of(drawing: Drawing, inner: Arc<LeasedState>) -> Self {
        Self { drawing: Some(drawing), inner, polled: false }
    }
}

impl Future for Awaited {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.polled = true;
        let Some(mut drawing) = self.drawing.take() else { return Poll::Ready(()) };
        let polled = drawing.made.poll_unpin(cx);
        if polled.is_pending() {
            self.drawing = Some(drawing);
        }
        polled
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(drawing) = self.drawing.take().filter(|_| self.polled) {
            self.inner.draw_ahead(drawing);
        }
    }
}

fn charge<'a>(
    key: &'a [u8],
    terms: &'a Terms,
    settings: ChargeSettings,
    cost: Cost,
    kept_back: u64,
) -> Charge<'a> {
    Charge { kept_back, rules: settings.rules, ..Charge::new(key, &terms.engine, cost) }
}

// Measures a node's demand for one key, which sizes its draws.

/// The time over which the demand is averaged, in nanoseconds: one gap between requests does not shrink a draw.
const AVERAGED_OVER: u64 = 200_000_000;

/// Fewer units than this are not worth a draw: some of them may have to be given back, by another call.
const FEW: u64 = 8;

/// The time over which the engine's level is watched: less tells nothing of how it moves.
const WATCHED_OVER: Duration = Duration::from_millis(50);

/// The recent demand for one key on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyDemand {
    /// The averaged demand, in thousandths of a unit per second.
    rate: u64,
    /// Units asked for since the last look, whether they were granted or not.
    asked: u64,
    since: Tick,
    /// Units asked for since the last draw.
    undrawn: u64,
    level: LevelWatch,
}

/// How the engine's level moves without this node.
#[derive(Clone, Debug, Default)]
struct LevelWatch {
    /// The level when watching began, and when that was.
    from: Option<(u64, Tick)>,
    /// What this node has taken since.
    taken: u64,
    /// In thousandths of a unit a second.
    rises: Option<i64>,
}

impl LevelWatch {
    fn see(&mut self, level: u64, taken: u64, at: Tick) {
        self.taken = self.taken.saturating_add(taken);
        let Some((before, since)) = self.from else {
            (self.from, self.taken) = (Some((level, at)), 0);
            return;
        };
        let passed = at.since(since);
        if passed >= WATCHED_OVER {
            let risen = i128::from(level) + i128::from(self.taken) - i128::from(before);
            let rises = risen * 1_000_000_000_000 / i128::from(nanos(passed));
            self.rises = Some(i64::try_from(rises).unwrap_or(if rises < 0 { i64::MIN } else { i64::MAX }));
            (self.from, self.taken) = (Some((level, at)), 0);
        }
    }
}

impl KeyDemand {
    #[inline]
    pub(super) const fn record(&mut self, units: u64) {
        self.asked = self.asked.saturating_add(units);
    }

    /// Returns what to draw, so that it lasts for the target time or until the next draw arrives; a few units for up to
    /// three fifths of the time that units may be held. `None` for a key that is asked for seldom.
    ///
    /// At most twice what was asked for since the last draw: a key that was hit once draws nothing ahead, and one that
    /// is hit all the time reaches its full size within a few draws.
    pub(super) fn wanted(&mut self, now: Tick, round_trip: Duration, terms: &Terms) -> Option<Wanted> {
        self.measure(now);
        let wanted = Wanted { rate: self.rate, units: 0, round_trip, rises: self.level.rises };
        let many = wanted.within(terms.lasts * 3 / 5).min(MANY).min(terms.limit / 3);
        let units = wanted.within(terms.target.max(round_trip * 3 / 2)).max(many);
        let units = units.min(self.undrawn.saturating_add(self.asked).saturating_mul(2));
        (units >= FEW).then_some(Wanted { units, ..wanted })
    }

    pub(super) const fn drawn(&mut self) {
        self.undrawn = 0;
    }

    /// Notes what the engine had left after it answered, and what this node took by that.
    pub(super) fn level(&mut self, level: u64, taken: u64, at: Tick) {
        self.level.see(level, taken, at);
    }

    /// Forgets how the engine's level moves.
    pub(super) fn forget_level(&mut self) {
        self.level = LevelWatch::default();
    }

    fn measure(&mut self, now: Tick) {
        let passed = nanos(now.since(self.since)).max(1);
        if self.since == Tick::EPOCH {
            (self.undrawn, self.asked, self.since) = (self.asked, 0, now);
            return;
        }
        // A few requests at the same moment are no rate.
        if passed < AVERAGED_OVER && self.asked < FEW {
            return;
        }
        let sample = u128::from(self.asked) * 1_000_000_000_000 / u128::from(passed);
        let sample = u64::try_from(sample).unwrap_or(u64::MAX);
        if passed >= AVERAGED_OVER || sample > self.rate {
            self.rate = sample;
        } else {
            let down = u128::from(self.rate - sample) * u128::from(passed) / u128::from(AVERAGED_OVER);
            self.rate -= u64::try_from(down).unwrap_or(self.rate);
        }
        self.undrawn = self.undrawn.saturating_add(self.asked);
        (self.asked, self.since) = (0, now);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Quota;

    use super::super::leasable::LeaseOptions;
    use super::*;

    const NEAR: Duration = Duration::from_millis(1);

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    fn terms() -> Terms {
        let options = LeaseOptions {
            outstanding: 50,
            strict: true,
            target: Duration::from_millis(50),
            lasts: Duration::from_secs(1),
            nodes: 1,
        };
        Terms::of(&Arc::new(Quota::per_second(9_000).burst(9_000).gcra().unwrap()), &options).unwrap()
    }

    #[test]
    fn a_key_that_is_hit_now_and_then_draws_nothing_ahead() {
        let (mut demand, terms) = (KeyDemand::default(), terms());
        for at in 0..40 {
            demand.record(1);
            assert!(demand.wanted(ms(at * 100), NEAR, &terms).is_none(), "ten a second");
        }
    }

    #[test]
    fn a_hundred_a_second_are_a_draw_for_sixty() {
        let (mut demand, terms, mut drawn) = (KeyDemand::default(), terms(), Vec::new());
        for at in 0..400 {
            demand.record(1);
            if at % 50 == 0
                && let Some(wanted) = demand.wanted(ms(at * 10), NEAR, &terms)
            {
                drawn.push(wanted.units);
                demand.drawn();
            }
        }
        assert_eq!(drawn, [60; 7]);
    }

    #[test]
    fn a_busy_key_draws_what_lasts_for_the_target_or_until_the_next_draw_arrives() {
        for (round_trip, expected) in [(1, 64), (100, 150)] {
            let (mut demand, terms) = (KeyDemand::default(), terms());
            let (mut at, mut drawn, round_trip) = (0, 0, Duration::from_millis(round_trip));
            // A thousand a second.
            for _ in 0..2_000 {
                demand.record(1);
                at += 1;
                if at % 20 == 0
                    && let Some(wanted) = demand.wanted(ms(at), round_trip, &terms)
                {
                    drawn = wanted.units;
                    if at % 160 == 0 {
                        demand.drawn();
                    }
                }
            }
            assert_eq!(drawn, expected, "{round_trip:?}");
        }
    }
}
