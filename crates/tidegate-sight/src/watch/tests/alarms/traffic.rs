//! The traffic of a server with twenty policies of nine kinds, on days without an incident.
//!
//! No two servers are alike: how busy policies are and when, how much they refuse and how unevenly, on which days a
//! newsletter goes out and when the server is restarted follows from a seed. All grow by a percent a day. Counts are
//! Poisson's, around means that drift slowly.

use std::f64::consts::{PI, TAU};
use std::sync::Arc;

use tidegate::Tick;
use tidegate_server::{OpenBreaker, Verdict};

use crate::board::mixed;
use crate::history::DAY;
use crate::usual::tests::Random;

pub(super) const MINUTE: u64 = 60;
pub(super) const HOUR: u64 = 3_600;

/// How much more comes on each day than on the one before.
const GROWTH: f64 = 1.01;

/// For how many days newsletters, restarts and failed calls are drawn.
const DRAWN_DAYS: u64 = 40;

/// What of a drift is left after a minute: half of it after 23.
const LEFT: f64 = 0.97;

/// The keys that guess passwords.
const GUESSERS: u64 = 3;

/// What a policy limits, and what it refuses although all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Passwords are guessed by day and night, and always refused.
    Login,
    /// Addresses, of which some ask too much for some seconds.
    PerIp,
    /// Customers, who are hardly ever refused.
    PerTenant,
    /// Customers who come in the hours of an office.
    Office,
    /// All requests under one key.
    Global,
    /// Two jobs at night.
    Nightly,
    /// So many at once: refuses more when it is busier.
    AtOnce,
    /// A breaker, which opens for some seconds every few days.
    Breaker,
    /// Refuses nothing: it is in shadow mode.
    Shadow,
}

impl Kind {
    /// The kinds, and how many policies of each a server has.
    const ALL: [(Self, u64); 9] = [
        (Self::Login, 2),
        (Self::PerIp, 5),
        (Self::PerTenant, 4),
        (Self::Office, 2),
        (Self::Global, 2),
        (Self::Nightly, 1),
        (Self::AtOnce, 2),
        (Self::Breaker, 1),
        (Self::Shadow, 1),
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::PerIp => "per-ip",
            Self::PerTenant => "per-tenant",
            Self::Office => "office",
            Self::Global => "global",
            Self::Nightly => "nightly",
            Self::AtOnce => "at-once",
            Self::Breaker => "breaker",
            Self::Shadow => "shadow",
        }
    }
}

/// Requests of a policy that had the same verdict.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) policy: u16,
    /// `None`: each has another one.
    pub(super) key: Option<u64>,
    pub(super) verdict: Verdict,
    /// At least 1.
    pub(super) count: u64,
}

/// A key that comes every day, and its share of the policy's requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regular {
    pub(super) key: u64,
    pub(super) share: f64,
}

/// The logarithm of a factor that wanders about 1, with its standard deviation.
#[derive(Clone, Copy, Debug)]
struct Drift {
    now: f64,
    wide: f64,
}

impl Drift {
    fn turn(&mut self, random: &mut Random) {
        self.now = LEFT * self.now + self.wide * (1.0 - LEFT * LEFT).sqrt() * random.normal();
    }
}

#[derive(Debug)]
pub(super) struct Policy {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// The rate of a key, in units a second; `None`: not one for all keys.
    pub(super) limit: Option<f64>,
    pub(super) regulars: Vec<Regular>,
    /// Until when an incident refused requests of whoever came.
    pub(super) refused_until: Option<u64>,
    /// Requests a second in the busiest hour of a weekday, at first; without what is always refused.
    busiest: f64,
    /// What is always refused, a second.
    guessed: f64,
    /// The share that is refused, and how many refusals come together.
    share: f64,
    together: f64,
    /// The busiest hour, and by which share the quietest is quieter. Of a job: when it begins, and its hours.
    peak: f64,
    swing: f64,
    /// The factor of Saturdays and Sundays.
    weekend: f64,
    /// Whether a newsletter brings people.
    is_public: bool,
    asked_drift: Drift,
    refused_drift: Drift,
}

/// A mail to all customers: by which factor it raises requests, and in how many seconds half of that is over.
#[derive(Clone, Copy, Debug)]
struct Letter {
    at: u64,
    times: f64,
    half: f64,
}

/// A server's policies, and what happens to it.
pub(super) struct Shop {
    pub(super) policies: Vec<Policy>,
    /// When it is restarted, in whole minutes, ascending.
    pub(super) restarts: Vec<u64>,
    pub(super) random: Random,
    begin: u64,
    letters: Vec<Letter>,
    /// When the breaker opens, and for how many seconds.
    blips: Vec<(u64, u64)>,
}

impl Random {
    pub(super) fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.unit()
    }

    /// Draws from a range of which each order of magnitude is as likely.
    pub(super) fn spread(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }

    /// Draws a number below `most`, which is at least 1.
    pub(super) fn below(&mut self, most: u64) -> u64 {
        (self.unit() * most as f64) as u64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (TAU * self.unit()).cos()
    }

    /// Draws a key that has not come before.
    pub(super) fn key(&mut self) -> u64 {
        mixed(self.unit().to_bits())
    }

    /// Draws how many of `count` are met, each with a chance.
    pub(super) fn of(&mut self, count: u64, chance: f64) -> u64 {
        if count < 64 {
            return (0..count).filter(|_| self.unit() < chance).count() as u64;
        }
        let mean = count as f64 * chance;
        let drawn = mean + (mean * (1.0 - chance)).max(0.0).sqrt() * self.normal();
        (drawn.round().max(0.0) as u64).min(count)
    }
}

impl Shop {
    /// Draws a server that begins at a time in seconds since 1970.
    pub(super) fn new(seed: u64, begin: u64) -> Self {
        let mut random = Random(mixed(seed) | 1);
        let common = Common {
            peak: random.between(10.0, 21.0),
            weekend: random.between(0.25, 1.2),
            times: random.between(1.5, 4.0),
        };
        let mut policies = Vec::new();
        for (kind, count) in Kind::ALL {
            for number in 1..=count {
                policies.push(Policy::new(kind, number, &common, &mut random));
            }
        }
        let a_month = random.between(0.0, 6.0);
        let mut letters = Vec::new();
        for day in 0..DRAWN_DAYS {
            let at = (begin / DAY + day) * DAY + (random.between(8.0, 19.0) * HOUR as f64) as u64;
            if random.unit() < a_month / 30.0 {
                let half = random.spread(600.0, 3_600.0);
                letters.push(Letter { at, times: random.between(1.2, common.times), half });
            }
        }
        let end = begin + DRAWN_DAYS * DAY;
        let restarts = random.times(begin, end, 2.0, 10.0).into_iter().map(|at| at - at % MINUTE).collect();
        let blips = random.times(begin, end, 0.5, 5.0);
        let blips = blips.into_iter().map(|at| (at, 3 + random.below(13))).collect();
        Self { policies, restarts, random, begin, letters, blips }
    }

    /// Adds what is asked in some seconds from `at` on: one, ten or sixty, which divide the time.
    pub(super) fn step(&mut self, at: u64, seconds: u64, batches: &mut Vec<Batch>) {
        let (grown, letter) = (self.grown(at), self.letter(at));
        let is_open = self.blips.iter().any(|(from, lasts)| (*from..from + lasts).contains(&at));
        let Self { policies, random, .. } = self;
        for (number, policy) in (0_u16..).zip(policies) {
            if at.is_multiple_of(MINUTE) {
                policy.asked_drift.turn(random);
                policy.refused_drift.turn(random);
            }
            let times = grown * if policy.is_public { letter } else { 1.0 };
            let span = Stretch { number, at, seconds: seconds as f64, times };
            let first = batches.len();
            policy.step(&span, random, batches);
            if is_open && policy.kind == Kind::Breaker {
                batches[first..].iter_mut().for_each(|batch| batch.verdict = Verdict::Denied);
            }
        }
    }

    /// Returns how many requests a second a policy sees about now, without what is always refused.
    pub(super) fn mean(&self, policy: &Policy, at: u64) -> f64 {
        let times = self.grown(at) * if policy.is_public { self.letter(at) } else { 1.0 };
        policy.busiest * policy.busy(at) * times * policy.asked_drift.now.exp()
    }

    /// Returns how many requests a policy has seen in the day before, about.
    pub(super) fn of_a_day(&self, policy: &Policy, at: u64) -> f64 {
        let of_hour = |back: u64| policy.busy(at.saturating_sub(back * HOUR)) * HOUR as f64;
        policy.busiest * self.grown(at) * (1..=24).map(of_hour).sum::<f64>()
    }

    /// Returns the breaker if it is open by itself.
    pub(super) fn open_breaker(&self, at: u64) -> Option<OpenBreaker> {
        let (from, _) = self.blips.iter().find(|(from, lasts)| (*from..from + lasts).contains(&at))?;
        let name = self.policies.iter().find(|policy| policy.kind == Kind::Breaker)?.name.to_string();
        Some(breaker(name, *from, false))
    }

    fn grown(&self, at: u64) -> f64 {
        GROWTH.powf(at.saturating_sub(self.begin) as f64 / DAY as f64)
    }

    /// Returns the factor of newsletters, which rises for five minutes and then falls.
    fn letter(&self, at: u64) -> f64 {
        let more = |letter: &Letter| {
            let since = at.checked_sub(letter.at)? as f64;
            let rise = (since / 300.0).min(1.0);
            Some((letter.times - 1.0) * rise * 0.5_f64.powf(since / letter.half))
        };
        1.0 + self.letters.iter().filter_map(more).sum::<f64>()
    }
}

/// Returns what the server says of an open breaker.
pub(super) fn breaker(policy: String, since: u64, probes: bool) -> OpenBreaker {
    OpenBreaker {
        policy,
        key: "(all)".to_owned(),
        since: Some(Tick::from_secs(since)),
        why: "12 of 20 calls failed".to_owned(),
        probes,
    }
}

/// What all policies of a server have in common.
struct Common {
    peak: f64,
    weekend: f64,
    times: f64,
}

/// Some seconds of a policy.
struct Stretch {
    number: u16,
    at: u64,
    seconds: f64,
    /// The factor of growth and newsletters.
    times: f64,
}

/// How much a policy is asked, and what it refuses.
struct Size {
    busiest: f64,
    share: f64,
    together: f64,
    regulars: usize,
    /// The share of all regulars.
    theirs: f64,
}

impl Random {
    /// Draws times, with so many days between two of them.
    fn times(&mut self, from: u64, to: u64, least: f64, most: f64) -> Vec<u64> {
        let mut times = Vec::new();
        let mut at = from;
        loop {
            at += (self.between(least, most) * DAY as f64) as u64;
            if at >= to {
                return times;
            }
            times.push(at);
        }
    }
}

impl Policy {
    fn new(kind: Kind, number: u64, common: &Common, random: &mut Random) -> Self {
        let size = Size::of(kind, random);
        let all: f64 = (1..=size.regulars).map(|rank| 1.0 / rank as f64).sum();
        let regular = |rank: usize| Regular { key: random.key(), share: size.theirs / (rank as f64 * all) };
        let regulars: Vec<Regular> = (1..=size.regulars).map(regular).collect();
        let is_public =
            matches!(kind, Kind::Login | Kind::PerIp | Kind::PerTenant | Kind::Global | Kind::Shadow);
        let (peak, swing) = match kind {
            Kind::Nightly => (random.between(0.0, 4.0), random.between(0.5, 2.0)),
            _ => (common.peak + random.between(-1.0, 1.0), random.between(0.5, 0.95)),
        };
        // Nobody comes near it: not the largest key, on the last day, with a newsletter.
        let most = size.busiest * GROWTH.powf(30.0) * if is_public { common.times } else { 1.0 };
        let roomy = regulars.first().map(|first| most * first.share / random.between(0.1, 0.6));
        let limit = match kind {
            Kind::Login => Some(3.0 / HOUR as f64),
            Kind::PerIp => roomy.map(|roomy| roomy.max(10.0)),
            // Others have plans.
            Kind::PerTenant | Kind::Office => roomy.filter(|_| number.is_multiple_of(2)),
            Kind::Global | Kind::Nightly => roomy,
            Kind::AtOnce | Kind::Breaker | Kind::Shadow => None,
        };
        Self {
            name: format!("{}-{number}", kind.word()).into(),
            kind,
            limit,
            regulars,
            refused_until: None,
            busiest: size.busiest,
            guessed: if kind == Kind::Login { random.spread(0.2, 4.0) } else { 0.0 },
            share: size.share,
            together: size.together,
            peak,
            swing,
            weekend: common.weekend * random.between(0.8, 1.2),
            is_public,
            asked_drift: Drift { now: 0.0, wide: random.between(0.05, 0.3) },
            refused_drift: Drift { now: 0.0, wide: random.between(0.1, 0.5) },
        }
    }

    /// Returns how busy it is at a time: 1 in its busiest hour.
    fn busy(&self, at: u64) -> f64 {
        let (day, hour) = (at / DAY, (at % DAY) as f64 / HOUR as f64);
        // 1 January 1970 was a Thursday.
        let is_weekend = matches!(day % 7, 2 | 3);
        match self.kind {
            Kind::Office if is_weekend || !(7.0..19.0).contains(&hour) => 0.0,
            Kind::Office => ((hour - 7.0) / 12.0 * PI).sin(),
            Kind::Nightly => {
                // Some minutes later than on other nights.
                let begins = self.peak + (mixed(day) % 600) as f64 / HOUR as f64;
                if (begins..begins + self.swing).contains(&hour) { 1.0 } else { 0.0 }
            }
            _ => {
                let of_day = 1.0 + self.swing * ((hour - self.peak) / 24.0 * TAU).cos();
                of_day / (1.0 + self.swing) * if is_weekend { self.weekend } else { 1.0 }
            }
        }
    }

    fn step(&self, span: &Stretch, random: &mut Random, batches: &mut Vec<Batch>) {
        let mut add = |key: Option<u64>, verdict: Verdict, count: u64| {
            if count > 0 {
                batches.push(Batch { policy: span.number, key, verdict, count });
            }
        };
        let (passes, refuses) = match self.kind {
            Kind::Shadow => (Verdict::WouldAllow, Verdict::WouldDeny),
            _ => (Verdict::Allowed, Verdict::Denied),
        };
        let busy = self.busy(span.at) * span.times * self.asked_drift.now.exp();
        let asked = self.busiest * busy * span.seconds;
        let drifts = self.refused_drift.now.exp();
        if asked > 0.0 {
            let mut crowd = 1.0;
            for regular in &self.regulars {
                crowd -= regular.share;
                add(Some(regular.key), passes, random.poisson(asked * regular.share));
            }
            add(None, passes, random.poisson(asked * crowd.max(0.0)));
            let share = self.share * drifts * if self.kind == Kind::AtOnce { busy * busy } else { 1.0 };
            let groups = random.poisson(asked * share.min(0.5) / self.together);
            if self.together <= 1.0 {
                add(None, refuses, groups);
            } else {
                for _ in 0..groups {
                    let count = 1 + random.poisson(self.together - 1.0);
                    add(Some(self.somebody(random)), refuses, count);
                }
            }
        }
        if self.guessed > 0.0 {
            for guesser in 0..GUESSERS {
                let each = self.guessed * drifts * span.seconds / GUESSERS as f64;
                add(Some(mixed(guesser + 9)), refuses, random.poisson(each));
            }
        }
    }

    /// Draws a key: one of those that come every day, or one that comes for the first time.
    fn somebody(&self, random: &mut Random) -> u64 {
        let new = random.key();
        if random.unit() < 0.5 && self.regulars.len() > 1 {
            return new;
        }
        let at = match self.kind {
            // Always the smallest, who has not understood his limit: the others are never refused.
            Kind::PerTenant | Kind::Office => self.regulars.len().saturating_sub(1),
            _ => random.below(self.regulars.len().max(1) as u64) as usize,
        };
        self.regulars.get(at).map_or(new, |regular| regular.key)
    }
}

impl Size {
    fn of(kind: Kind, random: &mut Random) -> Self {
        let none = Self { busiest: 1.0, share: 0.0, together: 1.0, regulars: 0, theirs: 0.0 };
        match kind {
            Kind::Login => Self { busiest: random.spread(0.1, 5.0), ..none },
            Kind::PerIp => Self {
                busiest: random.spread(0.5, 60.0),
                share: random.spread(0.000_5, 0.02),
                together: random.between(1.0, 20.0),
                regulars: 3,
                theirs: 0.1,
            },
            Kind::PerTenant => Self {
                busiest: random.spread(0.5, 40.0),
                share: random.spread(0.000_1, 0.002),
                together: random.between(1.0, 5.0),
                regulars: 6,
                theirs: 0.8,
            },
            Kind::Office => Self {
                busiest: random.spread(0.3, 20.0),
                share: random.spread(0.000_1, 0.01),
                together: random.between(1.0, 5.0),
                regulars: 6,
                theirs: 0.8,
            },
            Kind::Global => Self { busiest: random.spread(5.0, 100.0), regulars: 1, theirs: 1.0, ..none },
            Kind::Nightly => Self {
                busiest: random.spread(1.0, 40.0),
                share: random.between(0.0, 0.05),
                together: random.between(1.0, 5.0),
                regulars: 2,
                theirs: 1.0,
            },
            Kind::AtOnce => Self {
                busiest: random.spread(1.0, 20.0),
                share: random.spread(0.001, 0.03),
                together: random.between(1.0, 5.0),
                regulars: 1,
                theirs: 1.0,
            },
            Kind::Breaker => Self { busiest: random.spread(1.0, 20.0), regulars: 1, theirs: 1.0, ..none },
            Kind::Shadow => {
                Self { busiest: random.spread(1.0, 20.0), share: random.between(0.05, 0.5), ..none }
            }
        }
    }
}
