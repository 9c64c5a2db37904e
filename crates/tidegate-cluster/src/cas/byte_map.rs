//! The interface of an engine for compare-and-set: bytes with versions.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Tick;

use tidegate_limits::store::{Caps, Later, StoreError};

/// A value and the version it was read at; an absent key has a version too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes; `None` for an absent key.
    pub value: Option<Vec<u8>>,
    /// A number that changes with every write of the key.
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
    /// The new value; `None` deletes the key.
    pub value: Option<Vec<u8>>,
    /// How long the value has to be kept from now on; after that it is equivalent to a deleted key. Never less than
    /// [`Write::MARGIN`]; `None` is for ever.
    ///
    /// Whether an engine deletes the value at that time or keeps it longer, decisions and settlements are the same,
    /// even where limits have changed meanwhile, from one algorithm to another, or to a guard and back. Only the marks
    /// of receipts ([`Receipt::mark`](field@tidegate_core::Receipt::mark)) may differ, where they count how a state
    /// came about.
    pub keep: Option<Duration>,
}

impl Write {
    /// How much longer values are kept than they matter by the clock that decided: the clocks of nodes may differ by
    /// that much, and engines round times to live, some of them to zero, which is an error.
    pub const MARGIN: Duration = Duration::from_secs(1);
}

/// The outcome of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// All values were written.
    All,
    /// Nothing was written, because a key had another version. Contains what the keys of the write hold now, in their
    /// order, if the engine returns it in the same round trip; it is at least as new as the refusal.
    Nothing(Option<Read>),
}

impl Written {
    /// Returns whether the values were written.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

/// The interface of an engine. Both calls do nothing before they are polled, and complete in bounded time, with an
/// error if the engine does not answer: steps of this process on the same keys wait for each other.
///
/// An engine that does not expire keys may ignore [`Write::keep`]; then keys accumulate, one for each key that was ever
/// charged and one or two for each ticket that was ever settled.
pub trait ByteMap: Debug + Send + Sync + 'static {
    /// Reads keys. Called once per batch of steps, and after a lost write that did not return what the keys hold; `tag`
    /// is that of the steps, see [`Step::tag`](tidegate_limits::store::Step::tag).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer.
    fn read(&self, tag: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>>;

    /// Writes all values if every key still has the given version, or none. An engine that can should also return, in
    /// the same round trip, what the keys of a refused write hold: the next attempt then takes half as long.
    ///
    /// The engine's driver must not retry a write on its own: a second try would lose against the first, and the step
    /// would be done twice.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer; it is then unknown whether it wrote.
    fn write_if_unchanged(&self, tag: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>>;

    /// Returns the number of keys, as far as is known without asking the engine.
    fn len(&self) -> usize;

    /// Returns whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the properties of the engine that callers have to know.
    fn caps(&self) -> Caps {
        Caps::ENGINE
    }
}
