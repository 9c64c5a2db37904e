//! What a simulated service is: the work that it can do, what disturbs it, and who calls it.
//!
//! Times are in seconds, unless a type says otherwise. Work is in seconds of one core that runs at full speed.

use tidegate::priority::Criticality;
use tidegate_sim::traffic::Chance;

/// More slots than any run fills: the service itself bounds nothing.
pub(super) const UNBOUNDED: usize = 1 << 16;

/// Into how many parts the measured time is cut to count what is offered.
const PARTS: f64 = 1000.0;

/// Rounds to nanoseconds; infinity is the last one.
pub(super) fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// Draws an exponential variate of mean 1.
pub(super) fn exponential(chance: &mut Chance) -> f64 {
    chance.exponential() as f64 / 4_294_967_296.0
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) name: &'static str,
    /// The mean work of a request of cost 1.
    pub(super) work: f64,
    pub(super) spread: Spread,
    /// The mean wait for others before the work. It takes no core, and no slot unless the service blocks.
    pub(super) wait: f64,
    pub(super) wait_spread: Spread,
    /// How the wait changes through a run, in the order of time. Before the first and after the last it stays.
    pub(super) drift: Vec<Drift>,
    /// Whether a request holds a slot while it waits for others or hangs, as a thread does that blocks.
    pub(super) blocks: bool,
    /// How many requests work at once; the others queue inside the service, first come, first served.
    pub(super) slots: usize,
    /// What those at work share evenly, at most one core each.
    pub(super) cores: f64,
    pub(super) drag: Drag,
    /// The longest wait for a slot, after which the service answers that it is overloaded.
    pub(super) longest_queue: f64,
    /// Times of another speed, in their order. A service has these or a neighbour.
    pub(super) dips: Vec<Dip>,
    pub(super) neighbour: Option<Neighbour>,
    pub(super) pauses: Option<Pauses>,
    pub(super) quota: Option<CpuQuota>,
    pub(super) flush: Option<Flush>,
    pub(super) troubles: Vec<Trouble>,
    pub(super) classes: Vec<Class>,
    /// Whether each class is a tenant, which Tidegate is told.
    pub(super) tenants: bool,
    pub(super) shape: Shape,
    /// How many requests come at once.
    pub(super) clump: u32,
    pub(super) callers: Callers,
    /// Time under load before anything is counted.
    pub(super) warm: f64,
    /// The time for which arrivals are counted.
    pub(super) span: f64,
    /// The most seeds that are worth their time.
    pub(super) seeds: u64,
}

/// How the work of requests differs, as multiples of its mean.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spread {
    Fixed,
    Exponential,
    /// Evenly between two multiples, whose mean is 1.
    Even {
        least: f64,
        most: f64,
    },
    /// One request in so many takes so many times as much as the others.
    Rare {
        one_in: f64,
        times: f64,
    },
    /// A heavy tail: beyond a multiple, the share falls with this power, which is not 1. The longest takes so many
    /// times as much as the shortest.
    Pareto {
        power: f64,
        longest: f64,
    },
}

impl Spread {
    pub(super) fn draw(self, chance: &mut Chance) -> f64 {
        match self {
            Self::Fixed => 1.0,
            Self::Exponential => exponential(chance),
            Self::Even { least, most } => least + (most - least) * chance.share(),
            Self::Rare { one_in, times } => {
                let usual = one_in / (one_in - 1.0 + times);
                if chance.share() * one_in < 1.0 { usual * times } else { usual }
            }
            Self::Pareto { power, longest } => {
                // The part of an unbounded tail that lies below the longest.
                let below = 1.0 - longest.powf(-power);
                let mean = power / (power - 1.0) * (1.0 - longest.powf(1.0 - power)) / below;
                (1.0 - chance.share() * below).powf(-1.0 / power) / mean
            }
        }
    }
}

/// How those inside slow each other down beyond sharing the cores.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drag {
    Nothing,
    /// With more at work than this, all run at a part of their speed.
    Cliff {
        above: usize,
        speed: f64,
    },
    /// With more inside than this, memory is on disk: the speed falls with the square of the excess.
    Swap {
        above: usize,
    },
    /// Each one at work beyond the first adds this share to everybody's work.
    Contention {
        each: f64,
    },
}

impl Drag {
    pub(super) fn speed(self, busy: usize, inside: usize) -> f64 {
        match self {
            Self::Nothing => 1.0,
            Self::Cliff { above, speed } => {
                if busy > above {
                    speed
                } else {
                    1.0
                }
            }
            Self::Swap { above } => {
                let fits = (above as f64 / inside.max(1) as f64).min(1.0);
                fits * fits
            }
            Self::Contention { each } => 1.0 / (1.0 + each * busy.saturating_sub(1) as f64),
        }
    }
}

/// A time during which the service runs at another speed, or is of another size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dip {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) speed: f64,
    /// The part of the slots and cores that is there. Work that began goes on when its slot is taken away.
    pub(super) size: f64,
}

impl Dip {
    /// Returns a time at another speed.
    pub(super) const fn slow(from: f64, to: f64, speed: f64) -> Self {
        Self { from, to, speed, size: 1.0 }
    }

    /// Returns a time with a part of the slots and cores, which is at most 1.
    pub(super) const fn small(from: f64, to: f64, size: f64) -> Self {
        Self { from, to, speed: 1.0, size }
    }
}

/// From one of these to the next, the wait for others changes evenly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drift {
    pub(super) at: f64,
    /// How many times as long the wait is at that time.
    pub(super) times: f64,
}

/// Somebody else on the same machine, who comes and goes by chance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    /// The share of the speed that he takes while he is there.
    pub(super) takes: f64,
    /// The mean time for which he stays away, and stays.
    pub(super) away: f64,
    pub(super) stays: f64,
}

/// Pauses that stop everything, each after so many requests. The longer, the more are inside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    pub(super) every: u32,
    pub(super) least: f64,
    pub(super) each_inside: f64,
}

/// Processor time in each period, after which everything stops until the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuQuota {
    pub(super) cpu: f64,
    pub(super) period: f64,
}

/// A cache that is emptied: work takes so many times as long, and less so with each request that is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    pub(super) at: f64,
    pub(super) times: f64,
    /// After so many requests, a third of the misses is left.
    pub(super) refill: f64,
}

impl Flush {
    /// Returns how many times as long work takes after so many requests.
    pub(super) fn slower(&self, done: f64) -> f64 {
        1.0 + (self.times - 1.0) * (-done / self.refill).exp()
    }
}

/// Requests that do no work: a part of the service hangs or fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    /// When requests come that meet it.
    pub(super) from: f64,
    pub(super) to: f64,
    /// The share of them that do.
    pub(super) share: f64,
    /// How long such a request lasts, and whether it then fails.
    pub(super) lasts: f64,
    pub(super) fails: bool,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    pub(super) name: &'static str,
    /// Its part of the requests; of the capacity, at any load, if it is `steady`.
    pub(super) share: f64,
    pub(super) steady: bool,
    pub(super) cost: f64,
    pub(super) level: Criticality,
    /// How long its callers wait, if not as long as the others.
    pub(super) within: Option<f64>,
}

impl Class {
    /// Returns a part of the requests with a cost, of the level that requests have if nobody says otherwise.
    pub(super) const fn of(name: &'static str, share: f64, cost: f64) -> Self {
        Self { name, share, steady: false, cost, level: Criticality::Critical, within: None }
    }
}

/// How the load goes through a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Steady,
    /// Rises from a tenth to a half of the load; all of it comes in the last fifth of the time.
    Crowd,
    /// A quarter more for half of each period, and a quarter less for the other half.
    Waves {
        period: f64,
    },
    /// In the first part of each period the load is so many times as high as in the rest. The mean is the load.
    Bursts {
        every: f64,
        lasts: f64,
        times: f64,
    },
    /// From a time on, this part of the load.
    Falls {
        at: f64,
        to: f64,
    },
}

/// What callers do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Callers {
    /// How long a caller waits for its answer.
    pub(super) within: f64,
    /// Whether they tell it. Then a request is given up at its deadline, as a deadline layer does.
    pub(super) told: bool,
    /// Whether the service stops work that was given up. Else the work goes on, and nobody is there for it.
    pub(super) frees: bool,
    /// The mean time after which a caller hangs up, which the service notices.
    pub(super) patience: f64,
    /// How often a caller tries again.
    pub(super) retries: u8,
    /// The mean pause before that.
    pub(super) pause: f64,
}

impl Callers {
    /// Returns callers who wait silently, and neither hang up nor try again.
    pub(super) const fn within(within: f64) -> Self {
        Self { within, told: false, frees: true, patience: f64::INFINITY, retries: 0, pause: 0.0 }
    }

    /// Returns callers whose requests have deadlines.
    pub(super) const fn told(within: f64) -> Self {
        Self { told: true, ..Self::within(within) }
    }
}

/// What one request needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) work: f64,
    /// Nanoseconds.
    pub(super) wait: u64,
    /// It does no work: it is inside for so many nanoseconds.
    pub(super) hangs: Option<u64>,
    pub(super) fails: bool,
    /// Nanoseconds until its caller hangs up.
    pub(super) patience: Option<u64>,
    /// Nothing could have got it an answer in time.
    pub(super) hopeless: bool,
}

/// From a time in nanoseconds on, the service runs at a speed and has a part of its slots and cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) at: u64,
    pub(super) speed: f64,
    pub(super) size: f64,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            name: "",
            work: 0.01,
            spread: Spread::Exponential,
            wait: 0.0,
            wait_spread: Spread::Fixed,
            drift: Vec::new(),
            blocks: false,
            slots: UNBOUNDED,
            cores: 4.0,
            drag: Drag::Nothing,
            longest_queue: f64::INFINITY,
            dips: Vec::new(),
            neighbour: None,
            pauses: None,
            quota: None,
            flush: None,
            troubles: Vec::new(),
            classes: vec![Class::of("all", 1.0, 1.0)],
            tenants: false,
            shape: Shape::Steady,
            clump: 1,
            callers: Callers::within(0.5),
            warm: 3.0,
            span: 9.0,
            seeds: 10,
        }
    }
}

impl Service {
    /// Returns a pool: each slot works on one request at full speed.
    pub(super) fn pool(slots: u16, work: f64) -> Self {
        Self { slots: slots.into(), cores: slots.into(), work, ..Self::default() }
    }

    /// Returns how many requests of cost 1 the service can do in a second while nothing disturbs it. The regular parts
    /// of its life count: its quota, and its pauses with as many inside as there are cores.
    pub(super) fn capacity(&self) -> f64 {
        let cores = self.cores.min(self.slots as f64);
        let cores = self.quota.map_or(cores, |quota| cores.min(quota.cpu / quota.period));
        let rate = cores / self.work;
        let rate = if self.blocks { rate.min(self.slots as f64 / (self.wait + self.work)) } else { rate };
        self.pauses.map_or(rate, |pauses| {
            let every = f64::from(pauses.every);
            every / (every / rate + pauses.least + pauses.each_inside * cores)
        })
    }

    /// Returns what the slots alone would let through at a time, as a part of the capacity, if a request holds one
    /// while it waits or hangs.
    fn part_not_held(&self, at: f64) -> f64 {
        if !self.blocks {
            return f64::INFINITY;
        }
        let Callers { within, told, .. } = self.callers;
        let mut each = self.wait * self.times_as_long(at) + self.work;
        let mut can_be_answered = 1.0;
        for trouble in self.troubles.iter().filter(|trouble| (trouble.from..trouble.to).contains(&at)) {
            let lasts = if told { trouble.lasts.min(within) } else { trouble.lasts };
            each += trouble.share * (lasts - each);
            if trouble.fails || trouble.lasts >= within {
                can_be_answered -= trouble.share;
            }
        }
        self.slots as f64 * can_be_answered / each / self.capacity()
    }

    /// Returns how many times as long as usual the wait for others is.
    pub(super) fn times_as_long(&self, at: f64) -> f64 {
        let next = self.drift.partition_point(|drift| drift.at <= at);
        match (next.checked_sub(1).and_then(|before| self.drift.get(before)), self.drift.get(next)) {
            (Some(before), Some(after)) => {
                let part = (at - before.at) / (after.at - before.at);
                before.times + part * (after.times - before.times)
            }
            (Some(only), None) | (None, Some(only)) => only.times,
            (None, None) => 1.0,
        }
    }

    /// Returns how long the callers of a class wait.
    pub(super) fn within(&self, class: &Class) -> f64 {
        class.within.unwrap_or(self.callers.within)
    }

    /// Returns how many are inside at capacity while nobody queues, those that hang included.
    pub(super) fn places(&self) -> f64 {
        let Callers { within, told, .. } = self.callers;
        let hanging =
            |trouble: &Trouble| trouble.share * if told { trouble.lasts.min(within) } else { trouble.lasts };
        let each = self.wait + self.work + self.troubles.iter().map(hanging).sum::<f64>();
        (self.capacity() * each).max(1.0)
    }

    /// Returns the requests per second of each class at a load, in multiples of the capacity.
    pub(super) fn rates(&self, load: f64) -> Vec<f64> {
        let capacity = self.capacity();
        let of = |steady: bool| self.classes.iter().filter(move |class| class.steady == steady);
        let steady: f64 = of(true).map(|class| class.share).sum();
        let weight: f64 = of(false).map(|class| class.share * class.cost).sum();
        let rest = (load - steady).max(0.0) * capacity;
        let rate = |class: &Class| {
            if class.steady { class.share * capacity / class.cost } else { rest * class.share / weight }
        };
        self.classes.iter().map(rate).collect()
    }

    /// Returns the part of the load at a time.
    pub(super) fn part_of_load(&self, at: f64) -> f64 {
        match self.shape {
            Shape::Steady => 1.0,
            Shape::Crowd => {
                let part = ((at - self.warm) / self.span).clamp(0.0, 1.0);
                if part < 0.8 { 0.1 + 0.5 * part } else { 1.0 }
            }
            Shape::Waves { period } => {
                if at % period < period / 2.0 {
                    1.25
                } else {
                    0.75
                }
            }
            Shape::Bursts { every, lasts, times } => {
                let rest = every / (every + (times - 1.0) * lasts);
                if at % every < lasts { rest * times } else { rest }
            }
            Shape::Falls { at: then, to } => {
                if at < then {
                    1.0
                } else {
                    to
                }
            }
        }
    }

    /// Draws what a request that comes at a time needs.
    pub(super) fn draw(&self, class: &Class, at: f64, chance: &mut Chance) -> Job {
        let (within, patience) = (self.within(class), self.callers.patience);
        let wait = self.wait * self.times_as_long(at) * self.wait_spread.draw(chance);
        let work = self.work * class.cost * self.spread.draw(chance);
        let patience = if patience < f64::INFINITY { patience * exponential(chance) } else { f64::INFINITY };
        let meets =
            |trouble: &&Trouble| (trouble.from..trouble.to).contains(&at) && chance.share() < trouble.share;
        let trouble = self.troubles.iter().find(meets);
        Job {
            // An exponential variate may be zero.
            work: work.max(1e-9),
            wait: nanos(wait),
            hangs: trouble.map(|trouble| nanos(trouble.lasts)),
            fails: trouble.is_some_and(|trouble| trouble.fails),
            patience: (patience < f64::INFINITY).then(|| nanos(patience)),
            // Whoever tries again draws again.
            hopeless: self.callers.retries == 0
                && (trouble.is_some_and(|trouble| trouble.fails || trouble.lasts >= within)
                    || wait + work >= within.min(patience)),
        }
    }

    /// Returns the speed and the size of the service through a run. It depends on the seed alone.
    pub(super) fn steps(&self, seed: u64) -> Vec<Step> {
        let mut steps = vec![Step { at: 0, speed: 1.0, size: 1.0 }];
        let mut from = |at: f64, speed: f64, size: f64| steps.push(Step { at: nanos(at), speed, size });
        for dip in &self.dips {
            from(dip.from, dip.speed, dip.size);
            from(dip.to, 1.0, 1.0);
        }
        if let Some(Neighbour { takes, away, stays }) = self.neighbour {
            let (mut at, mut chance) = (0.0, Chance(!seed));
            while at < self.warm + self.span {
                at += away * exponential(&mut chance);
                from(at, 1.0 - takes, 1.0);
                at += stays * exponential(&mut chance);
                from(at, 1.0, 1.0);
            }
        }
        steps
    }

    /// Returns the nanoseconds of a part in which offered work is counted.
    pub(super) fn part(&self) -> u64 {
        nanos(self.span / PARTS).max(1)
    }

    /// Returns how much of the offered work, by the part of the time in which it came, a perfect protection would have
    /// had answered in time: of what came in the measured time, in requests of cost 1.
    ///
    /// The service is taken for a pipe of its capacity. It is never idle while somebody waits, and nobody waits for
    /// longer than his time allows. Real services are a little worse.
    pub(super) fn allowed(&self, steps: &[Step], offered: &[f64]) -> f64 {
        let part = self.part() as f64 / 1e9;
        let capacity = self.capacity();
        let warm = (self.warm / part).round() as usize;
        let (mut waiting, mut waited_before, mut sum, mut done, mut step) = (0.0_f64, 0.0, 0.0, 0.0, 0);
        for (number, offered) in offered.iter().enumerate() {
            if number == warm {
                waited_before = waiting;
            }
            let at = (number as f64 + 0.5) * part;
            while steps.get(step + 1).is_some_and(|next| next.at <= nanos(at)) {
                step += 1;
            }
            let flushed = self.flush.filter(|flush| at >= flush.at);
            let slower = flushed.map_or(1.0, |flush| flush.slower(done));
            let (speed, size) = steps.get(step).map_or((1.0, 1.0), |step| (step.speed, step.size));
            let speed = size * (speed / slower).min(self.part_not_held(at));
            let wait = self.wait * self.times_as_long(at);
            let room = capacity * (self.callers.within - wait - self.work).max(0.0);
            waiting += offered;
            let served = waiting.min(capacity * speed * part);
            waiting = (waiting - served).min(room * speed);
            done += if flushed.is_some() { served } else { 0.0 };
            sum += if number >= warm { served } else { 0.0 };
        }
        // Those who came before the measured time were served in it, and the last who came in it are served later.
        sum + waiting - waited_before
    }
}
