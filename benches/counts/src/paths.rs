//! The counted paths.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use tidegate::clock::{Clock as _, ManualClock, SystemClock};
use tidegate::limiter::{Precision, QuotaBuilder};
use tidegate::policy::{Descriptor, Limit, Match, Policy, PolicySet, Want as Wanted};
use tidegate::store::{Charge, Executed, Execution, Leased, MemoryStore, Op, Step, Store};
use tidegate::{Cost, Gate, KeyedLimiter, Limiter, Quota, Tick};

use crate::counted::Want::{Denied, Permitted};
use crate::counted::{CHECKS, Stepping, path};
use crate::layers;

/// The number of keys already in the table, which has room for twice as many.
const KEYS: usize = CHECKS as usize;

/// The number of keys in one call of `admit_each`.
const BATCH: usize = 16;

pub(crate) fn run() -> Result<()> {
    for (name, mode) in
        [("shared", Precision::Shared), ("exact", Precision::Exact), ("leased", Precision::Leased)]
    {
        for (answer, want, quota) in [("permitted", Permitted, plenty()), ("denied", Denied, spent())] {
            path(&format!("one {name} {answer}"), want, 1, || {
                let limiter = Limiter::new(quota)?.with_precision(mode);
                if (mode, want) == (Precision::Shared, Permitted) {
                    return Ok(admitting(limiter));
                }
                Ok(admitting(limiter.with_clock(Stepping::by(0))))
            })?;
        }
    }
    let second = 1_000_000_000;
    // Each is checked at the highest rate that it permits for ever.
    steady("token bucket", &Quota::per_second(100).token_bucket()?, second / 100)?;
    steady("sliding window of 4 buckets", &Quota::per_second(100).sliding_window(4)?, second / 50)?;
    steady("sliding log of 100 entries", &Quota::per_second(100).sliding_log()?, second / 100 + 1)?;
    keyed()?;
    step("step local", false)?;
    step("step leased", true)?;
    for matching in [1, 4, 16] {
        gate(1000, matching)?;
    }
    layers::run()
}

fn admitting(limiter: Limiter) -> impl FnMut() -> bool {
    move || limiter.admit()
}

/// A limit that is never reached.
fn plenty() -> QuotaBuilder {
    Quota::per_second(1_000_000_000)
}

/// A limit that is used up by its first check.
fn spent() -> QuotaBuilder {
    Quota::per_day(1)
}

/// A limiter of another algorithm, which uses the general path.
fn steady(name: &str, quota: &Quota, step: u64) -> Result<()> {
    path(&format!("one {name}"), Permitted, 1, || {
        let limiter = Limiter::new(quota.clone())?.with_clock(Stepping::by(step));
        // Lets a log or a window grow to its full size.
        for _ in 0..1000 {
            black_box(limiter.allow());
        }
        Ok(move || limiter.allow().is_allowed())
    })
}

fn keyed() -> Result<()> {
    let keys: Vec<String> = (0..3 * KEYS).map(|number| format!("user:{number}")).collect();
    let limiter = |quota: QuotaBuilder| KeyedLimiter::new(quota, 4 * KEYS);
    // A tick is shared by hand before each check, so that however long this takes, the sharing thread is not woken.
    let fill = |limiter: &KeyedLimiter| {
        for key in &keys[..KEYS] {
            SystemClock::share_tick();
            black_box(limiter.admit(key));
        }
    };
    for (name, full) in [("keyed permitted", false), ("keyed full permitted", true)] {
        path(name, Permitted, 1, || {
            let limiter = limiter(plenty().burst(1_000_000))?;
            let limiter = if full { limiter.with_full_keys() } else { limiter };
            fill(&limiter);
            let mut each = keys[..KEYS].iter().cycle();
            Ok(move || each.next().is_some_and(|key| limiter.admit(key)))
        })?;
    }
    path("keyed each of 16", Permitted, BATCH as u64, || {
        let limiter = limiter(plenty().burst(1_000_000))?;
        fill(&limiter);
        let mut batches = keys[..KEYS].chunks(BATCH).cycle();
        Ok(move || {
            let mut allowed = true;
            let batch = batches.next().unwrap_or_default();
            limiter.admit_each(batch, |_, admitted| allowed &= admitted);
            allowed
        })
    })?;
    path("keyed denied", Denied, 1, || {
        let limiter = limiter(spent())?.with_clock(Stepping::by(0));
        fill(&limiter);
        let mut each = keys[..KEYS].iter().cycle();
        Ok(move || each.next().is_some_and(|key| limiter.admit(key)))
    })?;
    path("keyed new key", Permitted, 1, || {
        let limiter = limiter(spent())?.with_clock(Stepping::by(0));
        let mut each = keys.iter();
        Ok(move || each.next().is_some_and(|key| limiter.admit(key)))
    })
}

/// One charge, in a store of this process, or from units that were drawn from one: the difference is the cost of a
/// lease.
fn step(name: &str, leased: bool) -> Result<()> {
    path(name, Permitted, 1, || {
        let (clock, memory) = (ManualClock::at(Tick::from_secs(1000)), MemoryStore::with_capacity(KEYS)?);
        let now = clock.now();
        // A draw that should run in the background is dropped; the next check that needs it makes it. Its instructions
        // are not counted here.
        let store: Box<dyn Store> = match leased {
            true => Box::new(Leased::around(memory, clock).background(drop).build()),
            false => Box::new(memory),
        };
        let quota = Arc::new(plenty().burst(1_000_000_000).gcra()?);
        let mut executed = Executed::default();
        let mut check = move || {
            let charges = [Charge::new(b"user:12345", &quota, Cost::ONE)];
            let step = Step { receipts: false, ..Step::new(now, Op::Take, &charges) };
            match store.execute_into(&step, &mut executed) {
                Execution::Done(done) => done.is_ok() && executed.allowed,
                Execution::Later(_) => store.blocking_execute(&step).is_ok_and(|executed| executed.allowed),
            }
        };
        // Draws grow each time, until one covers all counted checks.
        for _ in 0..16 * KEYS {
            black_box(check());
        }
        Ok(check)
    })
}

/// A check in which `matching` of `policies` match, including the making of its descriptor.
fn gate(policies: usize, matching: usize) -> Result<()> {
    let clients: Vec<String> = (0..256).map(|client| format!("10.0.0.{client}")).collect();
    path(&format!("gate {matching} matching of {policies}"), Permitted, 1, || {
        // The matching policies are spread among the others, as in a file that grew.
        let every = policies / matching;
        let set = (0..policies).map(|at| policy(at, at % every == every / 2)).collect::<Result<Vec<_>>>()?;
        let set = PolicySet::new(set).map_err(|error| anyhow!("{error}"))?;
        let gate = Gate::in_memory(set, 16 * clients.len() * matching)?.with_clock(Stepping::by(0));
        let mut each = clients.iter().cycle();
        let mut check = move || {
            let request = Descriptor::from([
                ("client.ip", each.next().map_or("", String::as_str)),
                ("request.method", "GET"),
                ("request.host", "shop.example"),
                ("request.path", "/api/items/42"),
            ]);
            let decision = gate.check(&request).now();
            decision.is_ok_and(|decision| decision.allowed && decision.limits.len() == matching)
        };
        for _ in 0..clients.len() {
            black_box(check());
        }
        Ok(check)
    })
}

/// A policy that matches the request, or one of four kinds that do not: by path, method, host and an attribute.
fn policy(at: usize, matches: bool) -> Result<Policy> {
    let quota = plenty().burst(1_000_000_000);
    let mut policy = Policy::new(format!("policy-{at}"), Limit::new(quota.gcra()?, "plenty"));
    policy.by = vec!["client.ip".to_owned()];
    policy.matching = match (matches, at % 4) {
        (true, _) => Match::any().method("GET").path("/api/items/*")?,
        (false, 0) => Match::any().path(&format!("/api/kind-{at}/**"))?,
        (false, 1) => Match::any().method("POST").path(&format!("/api/kind-{at}/*"))?,
        (false, 2) => Match::any().host(&format!("shop-{at}.example"))?,
        (false, _) => Match::any().attribute("client.tier", Wanted::value(&format!("tier-{at}"))?),
    };
    Ok(policy)
}
