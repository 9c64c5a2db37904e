//! The contenders and their roles. A contender is one line here and one function in the file of its family.

mod floor;
mod layers;
mod peers;
pub(crate) mod tidegate;
mod tower;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::workloads::permits::Permits;
use crate::workloads::{Keyed, One};
use peers::{gcra, governor, leaky_bucket, pingora, rate_net, ratelimit, throttlecrab, tokio};

/// The role of a contender in comparisons.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// Tidegate itself.
    Tidegate,
    /// A peer used as in the first example of its documentation.
    Peer,
    /// A peer with settings chosen for speed: another clock or hasher.
    Tuned,
    /// A peer that does less than the others: no sharing between threads, no clock while tokens last, a sketch instead
    /// of a table.
    Less,
    /// The least work that the machine allows: only the steps that every limiter needs; not a usable limiter.
    Floor,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Peer => "peer",
            Self::Tuned => "tuned",
            Self::Less => "less",
            Self::Floor => "floor",
        }
    }
}

pub(crate) struct Contender<F> {
    name: &'static str,
    title: &'static str,
    role: Role,
    pub(crate) run: F,
}

const fn contender<F: Copy>(name: &'static str, role: Role, title: &'static str, run: F) -> Contender<F> {
    Contender { name, title, role, run }
}

type ReadClock = fn() -> Result<f64>;
pub(crate) type AskOne = fn(&mut One<'_>) -> Result<()>;
type PassThrough = fn(&mut Permits<'_>) -> Result<()>;
pub(crate) type AskKeyed = fn(&mut Keyed<'_>) -> Result<()>;

/// A contender for one limit per key, and for one limit.
#[derive(Clone, Copy)]
pub(crate) struct AskBoth {
    pub(crate) keyed: AskKeyed,
    pub(crate) one: AskOne,
}

use Role::{Floor, Less, Peer, Tidegate, Tuned};

/// Reads of a clock.
pub(crate) const READS: &[Contender<ReadClock>] = &[
    contender("empty", Floor, "the empty loop", floor::empty),
    contender("rdtsc", Floor, "time stamp counter (quanta, raw)", floor::counter),
    contender("quanta", Floor, "the same, scaled to nanoseconds", floor::scaled_counter),
    contender("instant", Floor, "`clock_gettime` (`Instant::now`)", floor::instant),
    contender("tick", Floor, "a shared tick, without reading a clock", floor::tick),
];

/// One limit.
pub(crate) const ONE: &[Contender<AskOne>] = &[
    contender("tidegate", Tidegate, "Tidegate", tidegate::one),
    contender("tidegate-exact", Tidegate, "Tidegate, exact: clock read on each check", tidegate::one_exact),
    contender("tidegate-leased", Tidegate, "Tidegate, leased: up to 64 units a thread", tidegate::one_leased),
    contender("governor", Peer, "governor", governor::one),
    contender("governor-upkeep", Tuned, "governor, upkeep clock of 1 ms", governor::one_upkeep),
    contender("rate-net", Peer, "rate-net", rate_net::one),
    contender("rate-net-coarse", Tuned, "rate-net, coarse clock of 1 ms", rate_net::one_coarse),
    contender("ratelimit", Peer, "ratelimit", ratelimit::one),
    contender("leaky-bucket", Peer, "leaky-bucket", leaky_bucket::one),
    contender("leaky-bucket-unfair", Less, "leaky-bucket, unfair", leaky_bucket::one_unfair),
    contender("gcra", Less, "gcra (not shared by threads)", gcra::one),
    contender("throttlecrab", Less, "throttlecrab (not shared by threads)", throttlecrab::one),
    contender("pingora-limits", Less, "pingora-limits (counts in a sketch)", pingora::one),
    contender("tower", Less, "tower (not shared by threads)", tower::one),
    contender("floor-clock", Floor, "clock, load, compare-exchange; denied: clock, load", floor::one_clock),
    contender("floor", Floor, "load, compare-exchange; denied: load", floor::one),
    contender("floor-lease", Floor, "lease of 64 units a thread", floor::one_lease),
];

/// One limit per key.
pub(crate) const KEYED: &[Contender<AskKeyed>] = &[
    contender("tidegate", Tidegate, "Tidegate", tidegate::keyed),
    contender("tidegate-exact", Tidegate, "Tidegate, exact: clock read on each check", tidegate::keyed_exact),
    contender("tidegate-full-keys", Tidegate, "Tidegate, full keys", tidegate::keyed_full_keys),
    contender("governor", Peer, "governor", governor::keyed),
    contender("governor-tuned", Tuned, "governor, ahash, upkeep clock of 1 ms", governor::keyed_tuned),
    contender("rate-net", Peer, "rate-net", rate_net::keyed),
    contender("rate-net-coarse", Tuned, "rate-net, coarse clock of 1 ms", rate_net::keyed_coarse),
    contender("gcra", Peer, "gcra", gcra::keyed),
    contender("throttlecrab", Less, "throttlecrab (not shared by threads)", throttlecrab::keyed),
    contender("pingora-limits", Less, "pingora-limits (sketch of 4 × 1,024)", pingora::keyed),
    contender("floor-table-clock", Floor, "table of 16-byte slots, clock read on each check", floor::clock),
    contender("floor-table", Floor, "table of 16-byte slots, no clock", floor::no_clock),
    contender("floor-hash", Floor, "hashbrown of fingerprints, lookups only", floor::hash),
    contender("floor-requests", Floor, "iterating over the requests", floor::requests),
];

/// Refusals beside permits, of keys and of one limiter.
pub(crate) const REFUSED: &[Contender<AskBoth>] = &[
    contender("tidegate", Tidegate, "Tidegate", AskBoth { keyed: tidegate::keyed, one: tidegate::one }),
    contender(
        "tidegate-exact",
        Tidegate,
        "Tidegate, exact: clock read on each check",
        AskBoth { keyed: tidegate::keyed_exact, one: tidegate::one_exact },
    ),
    contender("governor", Peer, "governor", AskBoth { keyed: governor::keyed, one: governor::one }),
    contender(
        "governor-tuned",
        Tuned,
        "governor, ahash, upkeep clock of 1 ms",
        AskBoth { keyed: governor::keyed_tuned, one: governor::one_upkeep },
    ),
    contender(
        "floor-clock",
        Floor,
        "table of 16-byte slots, or one word; clock read on each check",
        AskBoth { keyed: floor::clock, one: floor::one_clock },
    ),
    contender(
        "floor",
        Floor,
        "the same without a clock, so a refusal is not proven",
        AskBoth { keyed: floor::no_clock, one: floor::one },
    ),
];

/// Places taken and returned.
pub(crate) const PERMITS: &[Contender<PassThrough>] = &[
    contender("tidegate", Tidegate, "Tidegate, bulkhead", tidegate::bulkhead),
    contender("tidegate-adaptive", Tidegate, "Tidegate, adaptive limit (Vegas)", tidegate::adaptive),
    contender("tidegate-tenants", Tidegate, "Tidegate, divided among tenants", tidegate::tenants),
    contender("tokio", Peer, "tokio `Semaphore`, owned permit", tokio::semaphore),
    contender("tokio-borrowed", Less, "tokio `Semaphore`, borrowed permit", tokio::semaphore_borrowed),
    contender("tower", Less, "tower `ConcurrencyLimit` (not shared by threads)", tower::concurrency),
    contender("floor", Floor, "`fetch_add` and `fetch_sub`", floor::permit),
    contender("floor-owned", Floor, "the same, and a clone of an `Arc`", floor::owned_permit),
    contender("breaker", Tidegate, "Tidegate, breaker", layers::breaker),
    contender("breaker-keyed", Tidegate, "Tidegate, breaker of a key", layers::keyed_breaker),
    contender("failsafe", Peer, "failsafe", layers::failsafe),
    contender("bare", Floor, "no layer", layers::none),
    contender(
        "server-stack",
        Tidegate,
        "Tidegate, `ServerStack`: fallback, deadline, rate, adaptive",
        layers::server_stack,
    ),
    contender("client-stack", Tidegate, "Tidegate, `ClientStack`: all six", layers::client_stack),
    contender("layer-rate", Tidegate, "Tidegate, rate limit", layers::rate_limit),
    contender("layer-places", Tidegate, "Tidegate, concurrency", layers::concurrency),
    contender("layer-adaptive", Tidegate, "Tidegate, adaptive concurrency limit (Vegas)", layers::adaptive),
    contender("layer-self-tuning", Tidegate, "Tidegate, concurrency that tunes itself", layers::self_tuning),
    contender("layer-breaker", Tidegate, "Tidegate, breaker", layers::breaker_layer),
    contender("layer-deadline", Tidegate, "Tidegate, deadline", layers::deadline_layer),
    contender("layer-gate", Tidegate, "Tidegate, gate of one policy", layers::gate),
    contender("layer-retry", Tidegate, "Tidegate, retry", layers::retry),
    contender("layer-load-shed", Tidegate, "Tidegate, load shed", layers::load_shed),
    contender("layer-fallback", Tidegate, "Tidegate, fallback", layers::fallback),
    contender(
        "tower-stack",
        Peer,
        "tower, `LoadShed`, `Timeout`, `RateLimit`, `ConcurrencyLimit`",
        tower::stack,
    ),
    contender("tower-concurrency", Peer, "tower, `ConcurrencyLimit`", tower::concurrency_layer),
    contender("tower-rate", Less, "tower, `RateLimit` (not shared)", tower::rate_layer),
    contender("tower-load-shed", Peer, "tower, `LoadShed`", tower::load_shed),
    contender("tower-timeout", Peer, "tower, `Timeout`", tower::timeout),
    contender("resilience-breaker", Peer, "tower-resilience, breaker", layers::resilience_breaker),
    contender("resilience-bulkhead", Peer, "tower-resilience, bulkhead", layers::resilience_bulkhead),
    contender("resilience-rate", Peer, "tower-resilience, rate limit", layers::resilience_rate),
    contender(
        "resilience-adaptive",
        Peer,
        "tower-resilience, adaptive limit (Vegas)",
        layers::resilience_adaptive,
    ),
];

/// The contenders of [`KEYED`] that are flooded, each in one variant.
const FLOODED: &[&str] = &["tidegate", "governor", "rate-net"];

/// Finds a contender by name.
pub(crate) fn find<F>(list: &'static [Contender<F>], name: &str) -> Result<&'static Contender<F>> {
    list.iter().find(|contender| contender.name == name).with_context(|| {
        let names: Vec<&str> = list.iter().map(|contender| contender.name).collect();
        format!("there is no `{name}` here, but {}", names.join(", "))
    })
}

/// Lists all runs, in the order of the tables: one object per workload and contender.
pub(crate) fn list() -> Vec<Value> {
    let mut lines = Vec::new();
    lines.extend(READS.iter().map(|contender| line("clock", contender)));
    lines.extend(ONE.iter().map(|contender| line("one", contender)));
    lines.extend(KEYED.iter().map(|contender| line("keyed", contender)));
    lines.extend(REFUSED.iter().map(|contender| line("refused", contender)));
    lines.extend(PERMITS.iter().map(|contender| line("protection", contender)));
    for workload in ["flood", "expire"] {
        let flooded = KEYED.iter().filter(|contender| FLOODED.contains(&contender.name));
        lines.extend(flooded.map(|contender| line(workload, contender)));
    }
    lines.push(line("disk", &contender("memory", Tidegate, "Tidegate, in memory", ())));
    lines.push(line("disk", &contender("disk", Tidegate, "Tidegate, on disk", ())));
    lines.push(line("store", &contender("memory", Tidegate, "in memory", ())));
    lines.push(line("store", &contender("tracked", Tidegate, "in memory, changes marked for the disk", ())));
    for workload in ["gate", "growth"] {
        lines.push(line(workload, &contender("tidegate", Tidegate, "Tidegate", ())));
    }
    lines
}

fn line<F>(workload: &str, contender: &Contender<F>) -> Value {
    let Contender { name, title, role, .. } = contender;
    json!({"workload": workload, "contender": name, "title": title, "role": role.name()})
}
