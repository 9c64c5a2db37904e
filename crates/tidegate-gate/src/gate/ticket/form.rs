//! The byte format of a ticket's content, before it is sealed.
//!
//! A ticket that can be opened was written by a node of this deployment, perhaps of another version. It is still parsed
//! as untrusted input: every length is checked against the remaining bytes.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::bytes::{Bytes, DecodeError, Reader, Writer};
use tidegate_core::time::nanos;
use tidegate_core::{Quota, Receipt};

use super::OpenTicket;
use crate::gate::charged::{Charged, MadeCharge, SettledOnce};
use crate::policy::{LimitRules, Share};
use tidegate_limits::store::{ChargeRules, Durable, Home};

/// The first byte of the content, which distinguishes it from the formats of cells.
const TICKET: u8 = 2;

/// The bit of a line for `charge: on-failure`.
const ON_FAILURE: u8 = 1;

/// The bit of a line for a charge made by the fallback store in place of an engine.
const BY_FALLBACK: u8 = 2;

/// The bit of a line for a quota that the caller brought.
const INLINE_QUOTA: u8 = 4;

/// The bit of a line for `durable: strict`.
const STRICT: u8 = 8;

/// The bit of a line for a place that is only measured. Earlier versions cannot read a ticket with such a line.
const SHADOW_PLACE: u8 = 16;

/// All bits of a line.
const FLAGS: u8 = ON_FAILURE | BY_FALLBACK | INLINE_QUOTA | STRICT | SHADOW_PLACE;

impl OpenTicket {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Writer::new(TICKET);
        out.u128(self.id);
        out.short_str(&self.issuer);
        match self.home {
            Home::Nodes => out.u8(0),
            Home::Process { store } => {
                out.u8(1);
                out.u64(store);
            }
        }
        out.tick(self.made);
        out.tick(self.expires);
        u32_to(&mut out, self.charged.lines.len() as u32);
        for made in &self.charged.lines {
            let key = self.charged.key(made);
            u32_to(&mut out, key.len() as u32);
            key.iter().for_each(|byte| out.u8(*byte));
            made.quota.write(&mut out);
            made.receipt.write(&mut out);
            out.tick(made.full_at);
            u32_to(&mut out, made.limit);
            // Names every rule: `LimitRules::of_ending` makes the others.
            let LimitRules { charge, share, on_failure } = made.rules;
            let ChargeRules { owner, replace: _, on_error: _, durable, settled: _ } = charge;
            u32_to(&mut out, owner);
            let failure = if on_failure { ON_FAILURE } else { 0 };
            let fallback = if made.by_fallback { BY_FALLBACK } else { 0 };
            let inline_quota = if made.inline_quota { INLINE_QUOTA } else { 0 };
            let strict = if durable == Durable::Strict { STRICT } else { 0 };
            let shadow_place = if made.shadow_place { SHADOW_PLACE } else { 0 };
            out.u8(failure | fallback | inline_quota | strict | shadow_place);
            out.u8(share.map_or(0, |share| share as u8 + 1));
        }
        // Written only if there is one, so that all other tickets can be read by earlier versions.
        let extended = self.issued != self.made;
        if extended || !self.charged.delay.is_zero() {
            out.u64(nanos(self.charged.delay));
        }
        // The same holds for the time at which an extended ticket was issued.
        if extended {
            out.tick(self.issued);
        }
        out.finish()
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut from) = Reader::open(bytes)?;
        if kind != TICKET {
            return Err(DecodeError::Kind { kind });
        }
        let (id, issuer) = (from.u128()?, from.short_str()?.into());
        let home = match from.u8()? {
            0 => Home::Nodes,
            1 => Home::Process { store: from.u64()? },
            _ => return Err(DecodeError::Value { field: "home" }),
        };
        let (made, expires) = (from.tick()?, from.tick()?);
        let (mut keys, mut lines) = (Vec::new(), SmallVec::new());
        // No memory is reserved for the count, which may be any number: each line takes bytes that must be present.
        for _ in 0..u32_from(&mut from)? {
            let (start, length) = (keys.len() as u32, u32_from(&mut from)?);
            if length as usize > from.left() {
                return Err(DecodeError::Short);
            }
            for _ in 0..length {
                keys.push(from.u8()?);
            }
            let key = start..keys.len() as u32;
            let quota = Arc::new(Quota::read(&mut from)?);
            let receipt = Receipt::read(&mut from)?;
            let full_at = from.tick()?;
            let (limit, owner, flags) = (u32_from(&mut from)?, u32_from(&mut from)?, from.u8()?);
            if flags & !FLAGS != 0 {
                return Err(DecodeError::Value { field: "line" });
            }
            let share = match usize::from(from.u8()?) {
                0 => None,
                word => Some(*Share::ALL.get(word - 1).ok_or(DecodeError::Value { field: "share" })?),
            };
            let durable = if flags & STRICT != 0 { Durable::Strict } else { Durable::Interval };
            lines.push(MadeCharge {
                key,
                quota,
                receipt,
                full_at,
                limit,
                rules: LimitRules::of_ending(owner, durable, share, flags & ON_FAILURE != 0),
                by_fallback: flags & BY_FALLBACK != 0,
                inline_quota: flags & INLINE_QUOTA != 0,
                shadow_place: flags & SHADOW_PLACE != 0,
                settled: SettledOnce::default(),
            });
        }
        let delay = if from.left() > 0 { Duration::from_nanos(from.u64()?) } else { Duration::ZERO };
        let issued = if from.left() > 0 { from.tick()? } else { made };
        from.close()?;
        let charged = Charged { keys: keys.into(), lines, delay };
        Ok(Self { id, issuer, home, made, issued, expires, charged })
    }
}

fn u32_to(out: &mut Writer, number: u32) {
    number.to_le_bytes().into_iter().for_each(|byte| out.u8(byte));
}

fn u32_from(from: &mut Reader<'_>) -> Result<u32, DecodeError> {
    Ok(u32::from_le_bytes([from.u8()?, from.u8()?, from.u8()?, from.u8()?]))
}
