//! Bytes under versions, as an engine keeps them: what tests wrap to make writes lose, fail or go unanswered.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidegate::store::{ByteMap, StoreError, Versioned};

/// A version and the value at it.
type Held = (u64, Option<Vec<u8>>);

/// Cells by key.
#[derive(Debug, Default)]
pub(crate) struct Bytes(Mutex<HashMap<Vec<u8>, Held>>);

impl ByteMap for Bytes {
    fn read(&self, keys: &[&[u8]]) -> Result<Vec<Versioned>, StoreError> {
        let cells = self.0.lock();
        let read = |key: &&[u8]| {
            let (version, value) = cells.get(*key).cloned().unwrap_or_default();
            Versioned { value, version }
        };
        Ok(keys.iter().map(read).collect())
    }

    fn write_if_unchanged(
        &self,
        keys: &[&[u8]],
        versions: &[u64],
        values: &[Option<Vec<u8>>],
    ) -> Result<bool, StoreError> {
        let mut cells = self.0.lock();
        let unchanged =
            |(key, version): (&&[u8], &u64)| cells.get(*key).map_or(0, |(have, _)| *have) == *version;
        if !keys.iter().zip(versions).all(unchanged) {
            return Ok(false);
        }
        for (key, value) in keys.iter().zip(values) {
            let cell = cells.entry(key.to_vec()).or_default();
            *cell = (cell.0 + 1, value.clone());
        }
        Ok(true)
    }

    fn len(&self) -> usize {
        self.0.lock().values().filter(|(_, value)| value.is_some()).count()
    }
}
