//! Charges of a warm-up that were settled before those behind them.
//!
//! Such a charge gives nothing back while somebody behind it stays. When the last one behind it is undone, it gives
//! back what it would have given back at once. Once it is paid off, nobody behind it can be undone with an effect on
//! when the limit is free, so it is forgotten.

use std::sync::Arc;

use super::slope::Moment;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::rate::ledger::Carried;

/// The most charges that are noted: those of a crowd of 4,096 of whom each goes away before those behind. Of more, the
/// first of the line are forgotten, and give nothing back.
const MOST: usize = 4096;

/// The most that are noted in an engine, so that a state takes less than 4 KiB.
const MOST_IN_ENGINE: usize = 64;

/// The first byte of a past with noted charges in byte form. Without them, it is the byte form of the change alone.
const WITH_CHARGES: u8 = 2;

/// A charge as it was made, and what it really used: 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettledCharge {
    pub(super) free: Moment,
    pub(super) cold: Moment,
    pub(super) units: u64,
    pub(super) used: u64,
}

impl SettledCharge {
    pub(super) fn before(&self) -> (u128, u128) {
        (self.free.parts(), self.cold.parts())
    }
}

/// What the free moment and the coldness do not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Past {
    pub(super) carried: Option<Carried>,
    /// By free moment. A charge changes none of them, so the states before and after it share the list.
    pub(super) gone: Option<Arc<Vec<SettledCharge>>>,
}

impl Past {
    pub(super) const LARGEST: usize = 1 + Carried::LARGEST + 8 + MOST_IN_ENGINE * (16 + 16 + 8 + 8);

    pub(super) fn some(self) -> Option<Box<Self>> {
        (self.carried.is_some() || self.gone.is_some()).then(|| Box::new(self))
    }

    fn gone(&self) -> &[SettledCharge] {
        self.gone.as_deref().map_or(&[], Vec::as_slice)
    }

    pub(super) fn last(&self) -> Option<SettledCharge> {
        self.gone().last().copied()
    }

    pub(super) fn forget_last(&mut self) {
        if let Some(gone) = &mut self.gone {
            let gone = Arc::make_mut(gone);
            gone.pop();
            if gone.is_empty() {
                self.gone = None;
            }
        }
    }

    /// Notes a charge at `now`, and forgets those that are paid off. Returns whether it was not noted before.
    pub(super) fn note(&mut self, charge: SettledCharge, now: Moment) -> bool {
        let by_free = |gone: &SettledCharge| gone.free.parts();
        let Err(at) = self.gone().binary_search_by_key(&charge.free.parts(), by_free) else { return false };
        let (before, behind) = self.gone().split_at(at);
        // A charge is paid off by the free moment of the next one.
        let paid = before.partition_point(|gone| gone.free.parts() <= now.parts()).saturating_sub(1);
        let many = self.gone().len().saturating_sub(MOST - 1);
        let before = before.get(paid.max(many)..).unwrap_or_default();
        let gone = [before, &[charge], behind].concat();
        self.gone = Some(Arc::new(gone));
        true
    }

    pub(super) fn forget_charges(&mut self) {
        self.gone = None;
    }

    pub(super) fn shortened(&self) -> Option<Self> {
        let many = self.gone().len().checked_sub(MOST_IN_ENGINE).filter(|many| *many > 0)?;
        let mut past = self.clone();
        past.gone = Some(Arc::new(self.gone().get(many..)?.to_vec()));
        Some(past)
    }
}

impl Bytes for Past {
    fn write(&self, out: &mut Writer) {
        let Some(gone) = &self.gone else { return self.carried.write(out) };
        out.u8(WITH_CHARGES);
        self.carried.write(out);
        out.u64(gone.len() as u64);
        for charge in gone.iter() {
            out.u128(charge.free.parts());
            out.u128(charge.cold.parts());
            out.u64(charge.units);
            out.u64(charge.used);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let first = from.u8()?;
        if first != WITH_CHARGES {
            return Ok(Self { carried: Carried::read_some(first, from)?, gone: None });
        }
        let (carried, count) = (Option::<Carried>::read(from)?, from.u64()?);
        if count == 0 || count > MOST as u64 {
            return Err(DecodeError::Value { field: "settled charges" });
        }
        let charge = |_| {
            let (free, cold) = (Moment::of(from.u128()?), Moment::of(from.u128()?));
            Ok(SettledCharge { free, cold, units: from.u64()?, used: from.u64()? })
        };
        let gone = (0..count).map(charge).collect::<Result<Vec<_>, DecodeError>>()?;
        let right = gone.is_sorted_by(|one, next| one.free.parts() < next.free.parts())
            && gone.iter().all(|charge| charge.used < charge.units);
        right
            .then_some(Self { carried, gone: Some(Arc::new(gone)) })
            .ok_or(DecodeError::Value { field: "settled charges" })
    }
}
