//! Steps over a store behind its trait, permitted and refused: of one charge and of four, of one thread and of two.
//!
//! Steps are executed as a gate does: by a tick that may be a little old, with a clock that is read before a refusal.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use tidegate::clock::{Clock, SystemClock};
use tidegate::store::{
    Charge, Executed, Execution, MemoryStore, Op, Seed, Step, StepClock, Store, StoreError, TrackedStore,
};
use tidegate::{Cost, Quota};

use crate::measure::{Want, alone};
use crate::pair::{Figures, pair};

/// Callers, each with keys of its own.
const CALLERS: usize = 10_000;

/// The keys for which a store has room: more than are used.
const ROOM: usize = 100_000;

/// The units of a limit that refuses; they come back within a day.
const UNITS: u64 = 40;

/// The most steps that may spend such a limit.
const TRIES: u64 = 10 * UNITS;

pub(crate) fn run(contender: &str, figures: &mut Figures) -> Result<()> {
    match contender {
        "memory" => both(|| Ok(MemoryStore::with_capacity(ROOM)?), figures),
        "tracked" => both(|| Ok(TrackedStore::with_seed(ROOM, &Seed::random())?), figures),
        _ => bail!("there is no `{contender}` here, but memory, tracked"),
    }
}

/// Measures steps of one charge and of four, each over a store of its own.
fn both<S: Store>(make: impl Fn() -> Result<S>, figures: &mut Figures) -> Result<()> {
    for want in [Want::Permitted, Want::Denied] {
        Callers::<S, 1>::new(make()?, want)?.measure(figures)?;
        Callers::<S, 4>::new(make()?, want)?.measure(figures)?;
    }
    Ok(())
}

/// A limit that is never reached.
fn plenty() -> Result<Arc<Quota>> {
    Ok(Arc::new(Quota::per_second(1_000_000_000).burst(1_000_000_000).gcra()?))
}

/// A limit that refuses once it is spent.
fn spent() -> Result<Arc<Quota>> {
    Ok(Arc::new(Quota::per_day(UNITS).gcra()?))
}

/// Callers whose steps have a number of charges. If they are to be denied, it is by the last.
struct Callers<S, const CHARGES: usize> {
    store: S,
    clock: SystemClock,
    want: Want,
    keys: Vec<[[u8; 9]; CHARGES]>,
    quotas: [Arc<Quota>; CHARGES],
}

impl<S: Store, const CHARGES: usize> Callers<S, CHARGES> {
    /// Makes the callers, and has each ask: once, or until it is refused.
    fn new(store: S, want: Want) -> Result<Self> {
        let keys = (0..CALLERS as u64)
            .map(|caller| {
                std::array::from_fn(|at| {
                    let mut key = [at as u8; 9];
                    key[1..].copy_from_slice(&caller.to_le_bytes());
                    key
                })
            })
            .collect();
        let plenty = plenty()?;
        let mut quotas = [(); CHARGES].map(|()| Arc::clone(&plenty));
        if let (Want::Denied, Some(last)) = (want, quotas.last_mut()) {
            *last = spent()?;
        }
        let callers = Self { store, clock: SystemClock::new(), want, keys, quotas };
        let mut executed = Executed::default();
        for caller in 0..CALLERS {
            let mut tries = 0;
            while callers.step(caller, &mut executed)? && want == Want::Denied {
                tries += 1;
                ensure!(tries < TRIES, "a spent limit went on permitting");
            }
        }
        Ok(callers)
    }

    fn measure(&self, figures: &mut Figures) -> Result<()> {
        let name = match self.want {
            Want::Permitted => format!("{CHARGES} permitted"),
            Want::Denied => format!("{CHARGES} denied"),
        };
        let both = pair(self.want, |thread| self.walk(thread))?;
        figures.set_pair(format!("{name}.pair"), &both);
        figures.set(name, alone(self.want, self.walk(0))?);
        Ok(())
    }

    /// Returns the steps of a thread, by random callers.
    fn walk(&self, thread: usize) -> impl FnMut() -> bool {
        let mut executed = Executed::default();
        let mut random = (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let caller = (random % CALLERS as u64) as usize;
            // An error counts as the wrong answer.
            self.step(caller, &mut executed).unwrap_or(self.want == Want::Denied)
        }
    }

    /// Executes one step; returns whether it is permitted.
    fn step(&self, caller: usize, executed: &mut Executed) -> Result<bool, StoreError> {
        let keys = &self.keys[caller];
        let charges: [Charge<'_>; CHARGES] =
            std::array::from_fn(|at| Charge::new(&keys[at], &self.quotas[at], Cost::ONE));
        let step = Step {
            receipts: false,
            clock: StepClock::Fresh(&self.clock),
            ..Step::new(self.clock.recent(), Op::Take, &charges)
        };
        match self.store.execute_into(&step, executed) {
            Execution::Done(done) => done?,
            Execution::Later(_) => return Err(StoreError::MustWait),
        }
        Ok(executed.allowed)
    }
}
