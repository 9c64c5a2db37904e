//! A store over any engine that offers compare-and-set on bytes.
//!
//! The engine knows nothing of limits: it keeps a value and a version under a key, and writes several keys at once if none has
//! changed since it was read. The decision is the same pure [`settle`] as in memory, run again when a write loses.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Tick;
use twox_hash::XxHash64;

use super::plain::refuse_repeated;
use super::step::{DecidedBy, Settled, Step, StepClock};
use super::{Answer, Caps, Cell, Home, Later, Occupancy, OwnedStep, Settling, Store, StoreError, settle};
use crate::clock::HeldTime;

/// How often a step is tried before it gives up. Each loss means another step won, so the engine as a whole goes on.
const ATTEMPTS: u32 = 64;

/// How far ahead another node's clock may be and its ticks just count as now, as in [`HeldTime`]. A clock further ahead is one that nobody
/// waits for to be caught up with.
const FAR: Duration = Duration::from_secs(300);

/// A value and the version it was read at; an absent key has a version too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes; `None` for an absent key.
    pub value: Option<Vec<u8>>,
    /// Changes with every write of the key.
    pub version: u64,
}

/// The values that an engine has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The values, in the order of the keys.
    pub values: Vec<Versioned>,
    /// The engine's time, where it has a clock.
    pub now: Option<Tick>,
}

/// One key to write, with the version that it must still have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Arc<[u8]>,
    /// The version that the key must still have.
    pub version: u64,
    /// What is written; `None` deletes.
    pub value: Option<Vec<u8>>,
    /// How long it has to be kept, from now: after that it is as good as deleted. Never less than [`Write::MARGIN`]; `None` is for ever.
    ///
    /// Whoever deletes it then, and whoever keeps it, decides and settles alike: also where limits have changed meanwhile, from one
    /// algorithm to another, to a guard and back. Only in the marks of receipts ([`Receipt::mark`](field@tidegate_core::Receipt::mark)) may the two
    /// differ, where these count how a state came about.
    pub keep: Option<Duration>,
}

impl Write {
    /// How much longer values are kept than they matter by the clock that decided: nodes that decide by their own clocks may be so far
    /// apart, and engines round times to live, some of them zero to an error.
    pub const MARGIN: Duration = Duration::from_secs(1);
}

/// What an engine has to offer. Both calls do nothing before they are polled.
///
/// An engine that does not expire keys may leave [`Write::keep`] aside: then keys add up, one for each that was ever charged and
/// one or two for each ticket that was ever settled.
pub trait ByteMap: Debug + Send + Sync + 'static {
    /// Reads keys. Called once per attempt; `tag` is that of the step, see [`Step::tag`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer.
    fn read(&self, tag: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>>;

    /// Writes all values if every key is still at the version given, or none. Returns whether it wrote.
    ///
    /// Not to be tried again by the engine's driver on its own: a second try would lose against the first, and the step would be done
    /// twice.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer; nobody knows then whether it wrote.
    fn write_if_unchanged(&self, tag: u64, writes: Vec<Write>) -> Later<Result<bool, StoreError>>;

    /// Returns how many keys there are, as far as is known without asking.
    fn len(&self) -> usize;

    /// Says whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says what callers have to know of the engine.
    fn caps(&self) -> Caps {
        Caps::ENGINE
    }
}

/// The round trips of a step that nobody else writes into: a read and a write. One that changes nothing, as a refusal, takes the read alone; each
/// write that came too late takes both again.
pub const CAS_ROUND_TRIPS: u32 = 2;

/// Settles steps over a [`ByteMap`]: one read and, if something changed, one write per attempt.
///
/// # Time
/// Where the engine has no clock ([`Read::now`]), each node decides by its own. A cell that another node has written by a clock more than ten
/// seconds ahead is decided by that node's tick: it stands still until this node's clock has caught up. So clocks that are apart by `s`
/// grant what comes back in `s` once for each key, and not each time that the nodes take turns. A clock more than five minutes ahead is
/// followed at half its speed, so that one that was wrong by a day does not stop a limit for a day.
#[derive(Debug, Default)]
pub struct CasStore<M> {
    shared: Arc<Shared<M>>,
}

#[derive(Debug, Default)]
struct Shared<M> {
    map: M,
    /// The latest tick that was seen here; other nodes' ticks are in the states.
    time: HeldTime,
    /// The same of cells that clocks of other nodes wrote, more than [`FAR`] ahead.
    ahead: HeldTime,
}

impl<M: ByteMap> CasStore<M> {
    /// Wraps an engine.
    #[must_use]
    pub fn new(map: M) -> Self {
        Self { shared: Arc::new(Shared { map, time: HeldTime::default(), ahead: HeldTime::default() }) }
    }
}

impl<M: ByteMap> Store for CasStore<M> {
    fn settle_into(&self, step: &Step<'_>, _: &mut Settled) -> Settling {
        if let Err(error) = refuse_repeated(step) {
            return Settling::Done(Err(error));
        }
        let (shared, step) = (Arc::clone(&self.shared), OwnedStep::of(step));
        Settling::Later(Box::pin(async move { shared.settle(&step).await }))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy { used: self.shared.map.len(), ..Occupancy::default() }
    }

    fn caps(&self) -> Caps {
        self.shared.map.caps()
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

impl<M: ByteMap> Shared<M> {
    async fn settle(&self, step: &OwnedStep) -> Answer {
        let keys: Vec<Arc<[u8]>> =
            step.with(|step| step.charges.iter().map(|charge| charge.key.into()).collect());
        for _ in 0..ATTEMPTS {
            let read = self.map.read(step.tag(), &keys).await?;
            match self.decide(step, &keys, &read)? {
                (settled, None) => return Ok(settled),
                (settled, Some(writes)) => {
                    if self.map.write_if_unchanged(step.tag(), writes).await? {
                        return Ok(settled);
                    }
                }
            }
        }
        Err(StoreError::Contended { attempts: ATTEMPTS })
    }

    /// Returns the tick to decide by where the nodes' own clocks decide: this node's, unless another one has written a cell far ahead of it.
    ///
    /// To set such a cell back, as a single node does after its clock was set back, would give its units again each time that two nodes
    /// take turns.
    fn among_nodes(&self, now: Tick, cells: &[Option<Cell>]) -> Tick {
        let far_ahead = |cell: &Cell| cell.quota.far_ahead(&cell.state, now);
        let Some(latest) = cells.iter().flatten().filter_map(far_ahead).max() else { return now };
        if latest.since(now) <= FAR {
            return latest;
        }
        if latest > self.ahead.latest() {
            self.ahead.hold(latest);
        }
        self.ahead.hold(now)
    }

    /// Decides a step over what was read; returns what has to be written, if anything.
    fn decide(
        &self,
        step: &OwnedStep,
        keys: &[Arc<[u8]>],
        read: &Read,
    ) -> Result<(Settled, Option<Vec<Write>>), StoreError> {
        let values = read.values.len();
        if values != keys.len() {
            let reason = format!("it returned {values} values for {} keys", keys.len());
            return Err(StoreError::Unavailable { reason });
        }
        let mut cells = Vec::with_capacity(values);
        let mut repaired = false;
        for (at, versioned) in read.values.iter().enumerate() {
            let cell = versioned.value.as_deref().map(Cell::decode).transpose();
            cells.push(match cell {
                // Bytes that cannot be read as a state cannot be carried on. A step that forgets the key wants them gone.
                Err(_) if step.forgets(at) => {
                    repaired = true;
                    None
                }
                Err(source) => {
                    let digest = keys.get(at).map_or(0, |key| XxHash64::oneshot(0, key));
                    return Err(StoreError::Corrupt { charge: at, digest, source });
                }
                Ok(cell) => cell,
            });
        }
        let (mut settled, changed, now) = step.with(|step| {
            let by_engine = read.now.filter(|_| matches!(step.clock, StepClock::Engine));
            let mut now = self.time.hold(by_engine.unwrap_or(step.now));
            if by_engine.is_none() {
                now = self.among_nodes(now, &cells);
            }
            let (settled, changed) = settle(&Step { now, ..*step }, &mut cells);
            (settled, changed, now)
        });
        settled.by = DecidedBy::Engine;
        let mended = repaired && settled.allowed;
        if !changed && !mended {
            return Ok((settled, None));
        }
        let most = self.map.caps().largest_cell;
        let mut writes = Vec::with_capacity(keys.len());
        for ((key, versioned), cell) in keys.iter().zip(&read.values).zip(&cells) {
            let value = cell.as_ref().map(Cell::encode);
            if let (Some(value), Some(most)) = (&value, most)
                && value.len() > most
            {
                return Err(StoreError::CellTooLarge { bytes: value.len(), most });
            }
            let keep = cell.as_ref().and_then(Cell::full_at);
            let keep = keep.map(|full| full.since(now).saturating_add(Write::MARGIN));
            writes.push(Write { key: Arc::clone(key), version: versioned.version, value, keep });
        }
        Ok((settled, Some(writes)))
    }
}
