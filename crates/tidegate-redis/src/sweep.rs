//! Deletes cells whose limits are full: they are as good as none, and nobody else would.
//!
//! Not left to the server's own expiry. A time to live on a field exists in few versions and takes more room than many a cell; one on the whole
//! hash would delete the epoch with it, whose loss says that cells were lost. Instead, one walk goes round all hashes, some fields with an
//! exchange: more the more steps there were, and many where it finds much to delete. So a server holds few more full cells than others,
//! whatever keys callers make up; where nobody asks, nothing is deleted and nothing added.

use redis::{Cmd, Value};
use tidegate::store::Write;
use tidegate_core::Tick;

use crate::call::Names;
use crate::cell::read;
use crate::work::{CellName, CellWrite, Found};

/// A scan follows so many steps, where little is found.
const EVERY: usize = 256;
/// Fields that one scan looks at, where little is found, and where much is.
const FEW: usize = 16;
const MANY: usize = 256;

/// Where the walk is.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Which shards are looked at.
    looked_at: Vec<bool>,
    /// Whether those are the shards that were asked for here, because others lie on other servers.
    as_asked: bool,
    shard: u32,
    cursor: Vec<u8>,
    /// Steps since the last scan.
    steps: usize,
    /// Whether the last scan found much.
    much: bool,
    /// The engine's time, as last told; the epoch while it is not known, and then nothing is deleted.
    now: Tick,
}

impl Sweep {
    /// Looks at all shards, or in a cluster at those that were asked for on this link: they lie on its server.
    pub(crate) fn new(shards: u32, is_cluster: bool) -> Self {
        Self {
            looked_at: vec![!is_cluster; shards as usize],
            as_asked: is_cluster,
            shard: 0,
            cursor: b"0".to_vec(),
            steps: 0,
            much: false,
            now: Tick::EPOCH,
        }
    }

    /// Takes note that a shard was asked for here.
    pub(crate) fn asked(&mut self, shard: u32) {
        if let Some(looked_at) = self.looked_at.get_mut(shard as usize) {
            *looked_at = true;
        }
    }

    /// Goes on to the next shard that is looked at.
    fn go_on(&mut self) {
        self.cursor = b"0".to_vec();
        let (now, shards) = (self.shard as usize, self.looked_at.len());
        let next = (1..=shards).map(|ahead| (now + ahead) % shards).find(|shard| self.looked_at[*shard]);
        // There are no more shards than a `u32` counts.
        self.shard = next.map_or(self.shard, |next| next as u32);
    }

    /// Takes note of the engine's time.
    pub(crate) const fn at(&mut self, now: Tick) {
        self.now = now;
    }

    /// Counts steps; returns the next scan when it is time for one.
    pub(crate) fn next(&mut self, steps: usize, names: &Names) -> Option<Cmd> {
        self.steps += steps;
        let wanted = self.much || self.steps >= EVERY;
        if !wanted || self.now == Tick::EPOCH {
            return None;
        }
        let fields = if self.much { MANY.min(FEW.max(4 * self.steps)) } else { FEW };
        self.steps = 0;
        let mut command = Cmd::new();
        command.arg("HSCAN").arg(names.hash(self.shard)).arg(&self.cursor).arg("COUNT").arg(fields);
        Some(command)
    }

    /// Takes what a scan has found; returns what is to be deleted.
    pub(crate) fn found(&mut self, value: Value) -> Vec<CellWrite> {
        let shard = self.shard;
        if self.as_asked
            && matches!(value, Value::ServerError(_))
            && let Some(looked_at) = self.looked_at.get_mut(shard as usize)
        {
            // It has gone to another server.
            *looked_at = false;
        }
        let (cursor, fields) = match value {
            Value::Array(mut parts) if parts.len() == 2 => (parts.remove(0), parts.remove(0)),
            // No hash: nothing to do here.
            _ => (Value::Nil, Value::Nil),
        };
        match cursor {
            Value::BulkString(cursor) if cursor != b"0" => self.cursor = cursor,
            _ => self.go_on(),
        }
        let Value::Array(fields) = fields else {
            self.much = false;
            return Vec::new();
        };
        let looked_at = fields.len() / 2;
        let mut fields = fields.into_iter();
        let mut writes = Vec::new();
        while let (Some(field), Some(value)) = (fields.next(), fields.next()) {
            if let (Value::BulkString(field), Value::BulkString(bytes)) = (field, value)
                && let Ok(field) = field.try_into()
                && self.is_full(&bytes)
                && writes.len() < MANY
            {
                let name = CellName { shard, field };
                writes.push(CellWrite { name, found: Found::Bytes(bytes), value: None });
            }
        }
        self.much = !writes.is_empty() && writes.len() * 4 >= looked_at;
        writes
    }

    fn is_full(&self, bytes: &[u8]) -> bool {
        let full = read(bytes).ok().and_then(|(cell, _)| cell.full_at());
        full.is_some_and(|full| full.after(Write::MARGIN) < self.now)
    }
}
