//! The identity of a file, stored beside the states: which store it belongs to, and how its pieces are to be read.

use std::hash::{BuildHasher, RandomState};

use redb::{TableDefinition, WriteTransaction};
use tidegate::store::Seed;

/// The format version of the whole file that this build writes, and the newest that it reads.
pub(crate) const FORM: u64 = 1;

const TABLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("store");

/// The identity of a file.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The secret that keys are hashed under.
    pub(crate) seed: Seed,
    /// Distinguishes this store from all others, for tickets that are settled after a restart.
    pub(crate) store: u64,
    /// The capacity of its table, in keys: pieces name slots of a table of that size.
    pub(crate) keys: u64,
    /// Whether keys are kept in full.
    pub(crate) full_keys: bool,
    /// A check value: a build that computes another one hashes keys differently from the build that made the file.
    pub(crate) probe: u64,
    /// How often the file was opened: by this, a process that lost the file briefly detects that another one has used
    /// it.
    pub(crate) openings: u64,
}

/// Why no identity could be read.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// The engine could not read the file.
    Engine(redb::Error),
    /// The identity, or a part of it, is missing.
    Missing,
    /// It is in a newer format.
    Newer(u64),
}

impl<E: Into<redb::Error>> From<E> for Unknown {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Identity {
    /// Makes the identity of a new file.
    pub(crate) fn new(keys: u64, full_keys: bool, seed: Seed, probe: u64) -> Self {
        // A hash under a random key of the operating system: two stores have the same number with a probability of
        // 2^-64.
        let store = RandomState::new().hash_one(0);
        Self { seed, store, keys, full_keys, probe, openings: 0 }
    }

    /// Reads the identity of a file.
    pub(crate) fn read(engine: &impl redb::ReadableDatabase) -> Result<Self, Unknown> {
        let reading = engine.begin_read()?;
        let table = match reading.open_table(TABLE) {
            Err(redb::TableError::Storage(error)) => return Err(error.into()),
            Err(_) => return Err(Unknown::Missing),
            Ok(table) => table,
        };
        let number = |name: &str| -> Result<u64, Unknown> {
            let bytes = table.get(name)?.ok_or(Unknown::Missing)?;
            Ok(u64::from_le_bytes(bytes.value().try_into().map_err(|_| Unknown::Missing)?))
        };
        let form = number("form")?;
        if form > FORM {
            return Err(Unknown::Newer(form));
        }
        let seed = table.get("seed")?.ok_or(Unknown::Missing)?;
        let seed = Seed::from_bytes(seed.value().try_into().map_err(|_| Unknown::Missing)?);
        Ok(Self {
            seed,
            store: number("store")?,
            keys: number("keys")?,
            full_keys: number("full-keys")? != 0,
            probe: number("probe")?,
            openings: number("openings")?,
        })
    }

    /// Writes the identity.
    pub(crate) fn write(&self, writing: &WriteTransaction) -> Result<(), redb::Error> {
        let mut table = writing.open_table(TABLE)?;
        let numbers = [
            ("form", FORM),
            ("store", self.store),
            ("keys", self.keys),
            ("full-keys", u64::from(self.full_keys)),
            ("probe", self.probe),
            ("openings", self.openings),
        ];
        for (name, number) in numbers {
            table.insert(name, &number.to_le_bytes()[..])?;
        }
        table.insert("seed", &self.seed.expose()[..])?;
        Ok(())
    }
}
