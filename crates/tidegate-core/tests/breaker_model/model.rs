//! A plain model of a breaker: lists of what happened, searched from the start each time.

/// A call that ended with an outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) at: u64,
    pub(crate) failed: bool,
    pub(crate) slow: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Looks {
    Back(usize),
    BackInTime { length: u64, buckets: u64 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Judges {
    Successes(usize),
    Batch(usize),
    /// Evidence from the logarithms of floats.
    Evidence(f64),
}

/// The parameters, in nanoseconds and shares of one.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) looks: Looks,
    pub(crate) failure_ratio: Option<f64>,
    pub(crate) slow_ratio: Option<(u64, f64)>,
    pub(crate) consecutive: Option<usize>,
    pub(crate) failures: Option<usize>,
    pub(crate) min_calls: usize,
    pub(crate) above: bool,
    pub(crate) strict: bool,
    pub(crate) every: Option<u64>,
    pub(crate) open_for: u64,
    pub(crate) longest: u64,
    pub(crate) growth: u64,
    pub(crate) probes: usize,
    pub(crate) ttl: u64,
    pub(crate) judges: Judges,
    pub(crate) steps: usize,
    pub(crate) healthy: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Closed { since: u64, ended: Vec<Ended> },
    Open { until: u64 },
    HalfOpen { step: usize, ended: Vec<Ended>, inside: Vec<(usize, u64)> },
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) terms: Terms,
    pub(crate) phase: Phase,
    since: u64,
    last: u64,
    busy_until: u64,
    /// How many changes of state there were.
    life: usize,
    open_time: Option<u64>,
}

/// A caller that entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    number: usize,
    at: u64,
    life: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    After(u64),
    Unknown,
}

impl Model {
    pub(crate) fn new(terms: Terms, now: u64) -> Self {
        let phase = Phase::Closed { since: now, ended: Vec::new() };
        Self { terms, phase, since: now, last: now, busy_until: now, life: 0, open_time: None }
    }

    /// Applies what time has changed by `at`.
    pub(crate) fn advance(&mut self, at: u64) {
        let used = match self.phase {
            Phase::Open { until } => self.last.max(until),
            _ => self.last,
        };
        if self.terms.healthy.is_some_and(|healthy| at >= used.max(self.busy_until) + healthy) {
            *self = Self::new(self.terms.clone(), at);
            return;
        }
        let Phase::Closed { since, .. } = self.phase else { return };
        if self.terms.healthy.is_some_and(|healthy| at >= since + healthy) {
            self.open_time = None;
        }
        let Some(every) = self.terms.every else { return };
        for tick in self.last + 1..=at {
            if tick % every == 0 && self.is_over(tick) {
                self.trip(tick);
                return;
            }
        }
    }

    fn in_window(&self, now: u64) -> Vec<Ended> {
        let Phase::Closed { ended, .. } = &self.phase else { return Vec::new() };
        match self.terms.looks {
            Looks::Back(calls) => ended[ended.len().saturating_sub(calls)..].to_vec(),
            Looks::BackInTime { length, buckets } => {
                ended.iter().filter(|one| one.at / length + buckets > now / length).copied().collect()
            }
        }
    }

    fn is_over(&self, now: u64) -> bool {
        let Phase::Closed { ended, .. } = &self.phase else { return false };
        let in_a_row = ended.iter().rev().take_while(|one| one.failed).count();
        if self.terms.consecutive.is_some_and(|most| in_a_row >= most) {
            return true;
        }
        let window = self.in_window(now);
        let failures = window.iter().filter(|one| one.failed).count();
        if window.len() < self.terms.min_calls {
            return false;
        }
        let counted = self.terms.failures.is_some_and(|most| match self.terms.above {
            true => failures > most,
            false => failures >= most,
        });
        counted || self.is_too_large_a_share(&window)
    }

    fn is_too_large_a_share(&self, calls: &[Ended]) -> bool {
        let over = |part: usize, share: f64| {
            let is = part as f64 / calls.len().max(1) as f64;
            !calls.is_empty() && if self.terms.above && share < 1.0 { is > share } else { is >= share }
        };
        self.terms
            .failure_ratio
            .is_some_and(|share| over(calls.iter().filter(|one| one.failed).count(), share))
            || self
                .terms
                .slow_ratio
                .is_some_and(|(_, share)| over(calls.iter().filter(|one| one.slow).count(), share))
    }

    fn trip(&mut self, at: u64) {
        let time = match self.open_time {
            None => self.terms.open_for,
            Some(before) => (before * self.terms.growth).min(self.terms.longest),
        };
        self.open_time = Some(time);
        self.phase = Phase::Open { until: at + time };
        self.life += 1;
    }

    fn room(&self, at: u64) -> usize {
        let Phase::HalfOpen { step, ended, inside } = &self.phase else { return 0 };
        let inside = inside.iter().filter(|(_, until)| *until > at).count();
        let most = match self.terms.judges {
            Judges::Successes(most) | Judges::Batch(most) => most.saturating_sub(ended.len()),
            Judges::Evidence(_) => usize::MAX,
        };
        (self.terms.probes << step).min(most).saturating_sub(inside)
    }

    pub(crate) fn enter(&mut self, number: usize, now: u64) -> Result<Caller, Refusal> {
        let at = now.max(self.last);
        let mut next = self.clone();
        next.advance(at);
        if let Phase::Open { until } = next.phase {
            let first = until + u64::from(self.terms.strict);
            if at < first {
                return Err(Refusal::After(first - at));
            }
            next.phase = Phase::HalfOpen { step: 0, ended: Vec::new(), inside: Vec::new() };
            next.life += 1;
        }
        let has_room = next.room(at) > 0;
        if let Phase::HalfOpen { inside, .. } = &mut next.phase {
            if !has_room {
                return Err(Refusal::Unknown);
            }
            inside.push((number, at + self.terms.ttl));
        }
        next.last = at;
        next.busy_until = next.busy_until.max(at + self.terms.ttl);
        *self = next;
        Ok(Caller { number, at, life: self.life })
    }

    /// A caller leaves. `None`: the outcome says nothing about the service.
    pub(crate) fn leave(&mut self, caller: Caller, now: u64, failed: Option<bool>) {
        let at = now.max(self.last);
        self.advance(at);
        if caller.at < self.since || caller.life != self.life {
            return;
        }
        let took = at - caller.at;
        let slow = self.terms.slow_ratio.is_some_and(|(after, _)| took > after);
        let call = failed.map(|failed| Ended { at, failed, slow });
        match &mut self.phase {
            Phase::Closed { ended, .. } => {
                let counted_for = self.terms.ttl + self.terms.slow_ratio.map_or(0, |(after, _)| after);
                let Some(call) = call.filter(|_| took < counted_for) else { return };
                ended.push(call);
                self.last = at;
                if self.terms.every.is_none() && self.is_over(at) {
                    self.trip(at);
                }
            }
            Phase::HalfOpen { ended, inside, .. } => {
                let Some(place) =
                    inside.iter().position(|(number, until)| *number == caller.number && *until > at)
                else {
                    return;
                };
                inside.remove(place);
                self.last = at;
                if let Some(call) = call {
                    ended.push(call);
                    self.judge(at, call);
                }
            }
            Phase::Open { .. } => {}
        }
    }

    fn judge(&mut self, at: u64, last: Ended) {
        let Phase::HalfOpen { step, ended, .. } = &self.phase else { return };
        let counts_failures = self.terms.failure_ratio.is_some()
            || self.terms.consecutive.is_some()
            || self.terms.failures.is_some();
        let is_bad = last.failed && counts_failures || last.slow;
        let has_ratio = self.terms.failure_ratio.is_some() || self.terms.slow_ratio.is_some();
        let well = match self.terms.judges {
            Judges::Successes(_) if is_bad => false,
            Judges::Successes(enough) if ended.len() < enough => return,
            Judges::Successes(_) => true,
            Judges::Batch(_) if !has_ratio && is_bad => false,
            Judges::Batch(all) if ended.len() < all => return,
            Judges::Batch(_) => !self.is_too_large_a_share(ended),
            Judges::Evidence(risk) => {
                let odds = |bad: usize, ill: f64| {
                    let (ill, well) = (ill.min(0.95), ill.min(0.95) / 4.0);
                    let good = ended.len() - bad;
                    bad as f64 * (ill / well).ln() - good as f64 * ((1.0 - well) / (1.0 - ill)).ln()
                };
                let bound = ((1.0 - risk) / risk).ln();
                let failures = ended.iter().filter(|one| one.failed).count();
                let slow = ended.iter().filter(|one| one.slow).count();
                let mut all = Vec::new();
                if counts_failures {
                    all.push(odds(failures, self.terms.failure_ratio.unwrap_or(0.5)));
                }
                all.extend(self.terms.slow_ratio.map(|(_, share)| odds(slow, share)));
                if all.iter().any(|odds| *odds >= bound) {
                    false
                } else if all.iter().all(|odds| *odds <= -bound) {
                    true
                } else {
                    return;
                }
            }
        };
        match well {
            false => self.trip(at),
            true if *step < self.terms.steps => {
                let Phase::HalfOpen { step, ended, .. } = &mut self.phase else { return };
                *step += 1;
                ended.clear();
            }
            true => {
                self.phase = Phase::Closed { since: at, ended: Vec::new() };
                self.life += 1;
            }
        }
    }

    /// Returns the word for the state, and the calls that count.
    pub(crate) fn shown(&self, now: u64) -> (&'static str, [usize; 3]) {
        let (mut then, at) = (self.clone(), now.max(self.last));
        then.advance(at);
        let sum = |ended: &[Ended]| {
            [
                ended.len(),
                ended.iter().filter(|one| one.failed).count(),
                ended.iter().filter(|one| one.slow).count(),
            ]
        };
        match &then.phase {
            Phase::Closed { .. } => ("closed", sum(&then.in_window(at))),
            Phase::Open { .. } => ("open", [0; 3]),
            Phase::HalfOpen { ended, .. } => ("half-open", sum(ended)),
        }
    }

    /// Returns how many probes are in flight, and how many may be.
    pub(crate) fn in_flight(&self, now: u64) -> Option<(usize, usize)> {
        let at = now.max(self.last);
        let Phase::HalfOpen { step, inside, .. } = &self.phase else { return None };
        Some((inside.iter().filter(|(_, until)| *until > at).count(), self.terms.probes << step))
    }
}
