//! Deletes the cells of full limits, which are as good as absent.
//!
//! A time to live on a field exists only in some versions and takes more room than many a cell; one on the whole hash
//! would delete the epoch too, which means a loss. Instead, one cursor goes round all hashes and scans some fields per
//! exchange: more after more steps, and many while it finds much; while no steps arrive, nothing is scanned and
//! nothing is added. One call deletes those of a scan that are full and have not changed since. Thus at most a small part
//! of the cells on a server are full, whatever keys callers make up.

use redis::{Cmd, Value};
use tidegate::store::Write;
use tidegate_core::Tick;

use crate::call::Names;
use crate::cell::read;

/// The steps between scans while little is found.
const EVERY: usize = 256;
/// The fields per scan while little is found.
const FEW: usize = 16;
/// The fields per scan while much is found.
const MANY: usize = 256;

/// A full cell.
#[derive(Debug)]
pub(crate) struct Full {
    pub(crate) field: [u8; 12],
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Sweep {
    /// Which shards are scanned.
    looked_at: Vec<bool>,
    /// Whether only shards used on this link are scanned: others are on other servers.
    as_asked: bool,
    shard: u32,
    cursor: Vec<u8>,
    steps: usize,
    much: bool,
    /// The engine's latest time; the epoch while it is unknown, and then nothing is deleted.
    now: Tick,
}

impl Sweep {
    /// Scans all shards, or in a cluster those used on this link.
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

    pub(crate) fn mark_used(&mut self, shard: u32) {
        if let Some(looked_at) = self.looked_at.get_mut(shard as usize) {
            *looked_at = true;
        }
    }

    fn next_shard(&mut self) {
        self.cursor = b"0".to_vec();
        let (now, shards) = (self.shard as usize, self.looked_at.len());
        let next = (1..=shards).map(|ahead| (now + ahead) % shards).find(|shard| self.looked_at[*shard]);
        // The number of shards is a `u32`.
        self.shard = next.map_or(self.shard, |next| next as u32);
    }

    pub(crate) const fn at(&mut self, now: Tick) {
        self.now = now;
    }

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

    /// Takes the reply to a scan. Returns the shard, and the cells to delete, as they were found.
    pub(crate) fn found(&mut self, value: Value) -> (u32, Vec<Full>) {
        let shard = self.shard;
        if self.as_asked
            && matches!(value, Value::ServerError(_))
            && let Some(looked_at) = self.looked_at.get_mut(shard as usize)
        {
            // The shard has moved to another server.
            *looked_at = false;
        }
        let (cursor, fields) = match value {
            Value::Array(mut parts) if parts.len() == 2 => (parts.remove(0), parts.remove(0)),
            _ => (Value::Nil, Value::Nil),
        };
        match cursor {
            Value::BulkString(cursor) if cursor != b"0" => self.cursor = cursor,
            _ => self.next_shard(),
        }
        let Value::Array(fields) = fields else {
            self.much = false;
            return (shard, Vec::new());
        };
        let looked_at = fields.len() / 2;
        let mut fields = fields.into_iter();
        let mut full = Vec::new();
        while let (Some(field), Some(value)) = (fields.next(), fields.next()) {
            if let (Value::BulkString(field), Value::BulkString(bytes)) = (field, value)
                && let Ok(field) = <[u8; 12]>::try_from(field)
                && full.len() < MANY
                && self.is_full(&bytes)
            {
                full.push(Full { field, bytes });
            }
        }
        self.much = !full.is_empty() && full.len() * 4 >= looked_at;
        (shard, full)
    }

    fn is_full(&self, bytes: &[u8]) -> bool {
        let full = read(bytes).ok().and_then(|(cell, _)| cell.full_at());
        full.is_some_and(|full| full.after(Write::MARGIN) < self.now)
    }
}
