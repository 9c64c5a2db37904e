//! What an engine has to offer for compare-and-set: bytes under versions.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Tick;

use crate::later::Later;
use crate::store::{Caps, StoreError};

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

/// What came of a write that asks for unchanged keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// All values were written.
    All,
    /// Nothing was: a key had another version. What the keys of the write hold now, in their order, where the engine tells it in the same round
    /// trip; it is at least as new as the refusal.
    Nothing(Option<Read>),
}

impl Written {
    /// Says whether the values were written.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

/// What an engine has to offer. Both calls do nothing before they are polled, and end in bounded time, with an error where the engine does not
/// answer: steps of this process on the same keys wait for each other.
///
/// An engine that does not expire keys may leave [`Write::keep`] aside: then keys add up, one for each that was ever charged and
/// one or two for each ticket that was ever settled.
pub trait ByteMap: Debug + Send + Sync + 'static {
    /// Reads keys. Called once per batch of steps, and after a lost write that did not tell what the keys hold; `tag` is that of the steps,
    /// see [`Step::tag`](crate::store::Step::tag).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer.
    fn read(&self, tag: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>>;

    /// Writes all values if every key is still at the version given, or none. An engine that can also tells, in the same round trip, what the
    /// keys of a refused write hold: whoever lost then tries again half as long after.
    ///
    /// Not to be tried again by the engine's driver on its own: a second try would lose against the first, and the step would be done
    /// twice.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer; nobody knows then whether it wrote.
    fn write_if_unchanged(&self, tag: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>>;

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
