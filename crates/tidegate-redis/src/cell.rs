//! The encoding of cells: a short form if the script reads the cell too, else the whole cell; and what counts in place of
//! cells that a server has lost.
//!
//! A cell begins with a letter and its quota, so that a node with another configuration can carry it over. In the short
//! form, little-endian numbers follow: the tick of the last change (seconds and nanoseconds, four bytes each), for
//! windows that of the start and for calendar windows also that of the end, and the spent amount in seven bytes. Every
//! other cell is the result of [`Cell::encode`], after the tick at which it was written.
//!
//! # Loss
//! A server that was restarted, flushed or replaced by a lagging replica has forgotten what was spent: if a missing
//! cell counted as a full limit, it would be granted again. So each hash of cells holds an epoch: the server run that
//! wrote last, and the time when cells of an earlier run were lost. A call that finds another run, or no epoch,
//! records the loss. From then on, cells older than the loss count as [`AfterLoss`] says, until they are written anew.

use std::sync::Arc;

use tidegate::store::{AfterLoss, Cell};
use tidegate_core::bytes::DecodeError;
use tidegate_core::rate::{FixedWindow, FixedWindowState, Gcra, OneWindow};
use tidegate_core::time::nanos;
use tidegate_core::{Algorithm as _, Ask, Cost, Quota, Rate, State, Tick, Transition};

/// The first byte of a [`Gcra`] cell whose ticks are nanoseconds.
const GCRA: u8 = b'g';
/// The first byte of a [`Gcra`] cell whose ticks are microseconds.
const COARSE_GCRA: u8 = b'G';
/// The first byte of the cell of a window that opens at its first charge.
const WINDOW: u8 = b'w';
/// The first byte of the cell of a calendar window.
const CALENDAR: u8 = b'c';
/// The first byte of a cell that only the library reads.
const WHOLE: u8 = b'r';

/// Doubles hold every integer up to this exactly.
pub(crate) const EXACT: u64 = 1 << 53;

const SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) prefix: Box<[u8]>,
    pub(crate) rule: Rule,
}

#[derive(Debug)]
pub(crate) enum Rule {
    Gcra(GcraRule),
    Window { limit: FixedWindow, calendar: bool },
}

/// The numbers of a [`Gcra`] in the script's units.
///
/// Core counts scaled time in units of `1/count` nanoseconds. The script uses the same if a full limit takes less than
/// 2^53 of them. Otherwise, as for limits over months, ticks are whole microseconds, and all numbers are divided by
/// the greatest common divisor of a unit and a microsecond.
#[derive(Debug)]
pub(crate) struct GcraRule {
    pub(crate) limit: Gcra,
    /// The nanoseconds of one tick of the script: 1 or 1000.
    pub(crate) grain: u64,
    /// The units of core's scaled time in one unit of the script's.
    divisor: u64,
    /// The scaled time that passes per tick of the script.
    pub(crate) rate: u64,
    /// The scaled time of one unit of the limit.
    pub(crate) unit: u64,
}

impl GcraRule {
    fn of(limit: &Gcra) -> Option<Self> {
        let (scale, unit) = limit.rate().reduced();
        let fits = |unit: u64, rate: u64| {
            rate < EXACT && unit.checked_mul(limit.burst()).is_some_and(|full| full < EXACT)
        };
        if fits(unit, scale) {
            return Some(Self { limit: *limit, grain: 1, divisor: 1, rate: scale, unit });
        }
        let rate = scale.checked_mul(1000)?;
        let divisor = common(unit, rate);
        let (unit, rate) = (unit / divisor, rate / divisor);
        fits(unit, rate).then_some(Self { limit: *limit, grain: 1000, divisor, rate, unit })
    }

    pub(crate) fn passes_in(&self, span: u64) -> Option<u64> {
        let (scale, _) = self.limit.rate().reduced();
        u64::try_from(u128::from(span) * u128::from(scale) / u128::from(self.divisor)).ok()
    }

    pub(crate) const fn full(&self) -> u64 {
        // Below 2^53, see `of`.
        self.unit * self.limit.burst()
    }

    fn takes(&self, tick: Tick) -> bool {
        tick.as_nanos().is_multiple_of(self.grain)
    }
}

const fn common(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns whether the script decides a limit, in one round trip; all others take two, by compare-and-set.
///
/// In some cases the script passes a limit of its own to the library, which takes two as well.
///
/// # Examples
/// ```
/// use tidegate_core::Quota;
/// use tidegate_redis::decided_by_script;
/// assert!(decided_by_script(&Quota::per_second(100).gcra()?));
/// assert!(!decided_by_script(&Quota::per_second(100).sliding_log()?));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[must_use]
pub fn decided_by_script(quota: &Quota) -> bool {
    Form::of(quota).is_some()
}

impl Form {
    /// Returns the form of a quota that the script decides; `None` for all others.
    pub(crate) fn of(quota: &Quota) -> Option<Self> {
        let mut prefix = Vec::with_capacity(16);
        let rule = match quota {
            Quota::Gcra(limit) => {
                let rule = GcraRule::of(limit)?;
                prefix.push(if rule.grain == 1 { GCRA } else { COARSE_GCRA });
                put_rate(&mut prefix, limit.rate());
                put(&mut prefix, u128::from(limit.burst()));
                Rule::Gcra(rule)
            }
            Quota::FixedWindow(limit) if limit.limit() < EXACT => {
                let calendar = limit.calendar_parts().is_some();
                if calendar {
                    let bytes = quota.encode();
                    prefix.extend([CALENDAR, u8::try_from(bytes.len()).ok().filter(|length| *length < 240)?]);
                    prefix.extend(bytes);
                } else {
                    prefix.push(WINDOW);
                    put_rate(&mut prefix, Rate::new(limit.limit(), limit.period()).ok()?);
                }
                Rule::Window { limit: limit.clone(), calendar }
            }
            _ => return None,
        };
        Some(Self { prefix: prefix.into(), rule })
    }

    /// Returns whether the script can decide at a tick.
    pub(crate) fn takes(&self, tick: Tick) -> bool {
        let grains = match &self.rule {
            Rule::Gcra(rule) => rule.takes(tick),
            Rule::Window { .. } => true,
        };
        grains && u32::try_from(tick.as_nanos() / SECOND).is_ok()
    }

    /// Returns the short form of a state; `None` if [`Form::state`] would not return the same.
    fn write(&self, state: &State) -> Option<Vec<u8>> {
        let mut out = self.prefix.to_vec();
        let spent = match (&self.rule, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => {
                let (last, spent) = rule.limit.spent(state)?;
                if !rule.takes(last) || !spent.is_multiple_of(rule.divisor) {
                    return None;
                }
                put_tick(&mut out, last)?;
                spent / rule.divisor
            }
            (Rule::Window { limit, calendar }, State::FixedWindow(state)) => {
                let window = state.one_window()?;
                put_tick(&mut out, window.last)?;
                put_tick(&mut out, window.start)?;
                if *calendar {
                    put_tick(&mut out, window.through)?;
                } else if limit.window_at(window.start).1 != window.through {
                    return None;
                }
                window.used
            }
            _ => return None,
        };
        out.extend_from_slice(spent.to_le_bytes().first_chunk::<7>()?);
        (spent < EXACT).then_some(out)
    }

    pub(crate) fn state(&self, mut rest: &[u8]) -> Result<State, DecodeError> {
        let rest = &mut rest;
        let last = tick(rest)?;
        let state = match &self.rule {
            Rule::Gcra(rule) => {
                let spent = seven(rest)?.checked_mul(rule.divisor);
                State::Gcra(rule.limit.state(last, spent.ok_or(DecodeError::Value { field: "spent" })?))
            }
            Rule::Window { limit, calendar } => {
                let start = tick(rest)?;
                let through = if *calendar { tick(rest)? } else { limit.window_at(start).1 };
                if start > last || through < start {
                    return Err(DecodeError::Value { field: "window" });
                }
                let window = OneWindow { last, start, through, used: seven(rest)? };
                State::FixedWindow(FixedWindowState::of_one_window(window))
            }
        };
        if rest.is_empty() { Ok(state) } else { Err(DecodeError::Long { extra: rest.len() }) }
    }
}

pub(crate) fn write(cell: &Cell, now: Tick) -> Vec<u8> {
    let short = || Form::of(&cell.quota).filter(|_| cell.is_plain())?.write(&cell.state);
    short().unwrap_or_else(|| {
        let mut out = vec![WHOLE];
        out.extend_from_slice(&now.as_nanos().to_le_bytes());
        out.extend_from_slice(&cell.encode());
        out
    })
}

/// Decodes a cell, and the tick at which it was written.
pub(crate) fn read(bytes: &[u8]) -> Result<(Cell, Tick), DecodeError> {
    let (kind, mut rest) = bytes.split_first().ok_or(DecodeError::Short)?;
    if *kind == WHOLE {
        let (written, rest) = rest.split_first_chunk().ok_or(DecodeError::Short)?;
        return Cell::decode(rest).map(|cell| (cell, Tick::from_nanos(u64::from_le_bytes(*written))));
    }
    let quota = match *kind {
        GCRA | COARSE_GCRA => {
            let (rate, burst) = (take_rate(&mut rest)?, take(&mut rest)?);
            let burst = u64::try_from(burst).ok().and_then(|burst| Gcra::new(rate, burst).ok());
            Quota::from(burst.ok_or(DecodeError::Value { field: "burst" })?)
        }
        WINDOW => Quota::from(FixedWindow::rolling(take_rate(&mut rest)?)),
        CALENDAR => {
            let (length, after) = rest.split_first().ok_or(DecodeError::Short)?;
            let (quota, after) = after.split_at_checked(usize::from(*length)).ok_or(DecodeError::Short)?;
            rest = after;
            Quota::decode(quota)?
        }
        kind => return Err(DecodeError::Kind { kind }),
    };
    let form = Form::of(&quota).filter(|form| form.prefix.first() == Some(kind));
    let form = form.ok_or(DecodeError::Value { field: "quota" })?;
    let (written, state) = (tick(&mut &*rest)?, form.state(rest)?);
    Ok((Cell::new(quota.into(), state), written))
}

/// Appends an integer in LEB128.
fn put(out: &mut Vec<u8>, mut number: u128) {
    while number > 0x7F {
        // Seven bits.
        out.push((number & 0x7F) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(from: &mut &[u8]) -> Result<u128, DecodeError> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = from.split_first().ok_or(DecodeError::Short)?;
        *from = rest;
        number |= u128::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(DecodeError::Value { field: "number" })
}

/// The units of periods; the largest one that divides the period is used.
const PERIOD_UNITS: [u64; 4] = [1, 1_000, 1_000_000, SECOND];

fn put_rate(out: &mut Vec<u8>, rate: Rate) {
    put(out, u128::from(rate.count()));
    let period = rate.period_nanos();
    let unit = PERIOD_UNITS.iter().rposition(|unit| period.is_multiple_of(*unit)).unwrap_or(0);
    put(out, u128::from(period / PERIOD_UNITS[unit]) << 2 | unit as u128);
}

fn take_rate(from: &mut &[u8]) -> Result<Rate, DecodeError> {
    let (count, period) = (take(from)?, take(from)?);
    // Two bits.
    let unit = u128::from(PERIOD_UNITS[(period & 3) as usize]);
    let whole = |number: u128| u64::try_from(number).ok();
    let rate = whole(count)
        .zip(whole((period >> 2) * unit))
        .and_then(|(count, period)| Rate::new(count, std::time::Duration::from_nanos(period)).ok());
    rate.ok_or(DecodeError::Value { field: "rate" })
}

/// Returns a tick as seconds and nanoseconds; `None` after the year 2106.
pub(crate) fn parts(tick: Tick) -> Option<(u32, u32)> {
    let nanos = tick.as_nanos();
    // The remainder is below 10^9.
    Some((u32::try_from(nanos / SECOND).ok()?, (nanos % SECOND) as u32))
}

pub(crate) fn put_tick(out: &mut Vec<u8>, tick: Tick) -> Option<()> {
    let (seconds, rest) = parts(tick)?;
    out.extend_from_slice(&seconds.to_le_bytes());
    out.extend_from_slice(&rest.to_le_bytes());
    Some(())
}

pub(crate) fn tick(from: &mut &[u8]) -> Result<Tick, DecodeError> {
    let (bytes, rest) = from.split_first_chunk::<8>().ok_or(DecodeError::Short)?;
    let [a, b, c, d, e, f, g, h] = *bytes;
    let (seconds, nanos) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    *from = rest;
    if u64::from(nanos) >= SECOND {
        return Err(DecodeError::Value { field: "tick" });
    }
    Ok(Tick::from_secs(seconds.into()).after(std::time::Duration::from_nanos(nanos.into())))
}

fn seven(from: &mut &[u8]) -> Result<u64, DecodeError> {
    let (bytes, rest) = from.split_first_chunk::<7>().ok_or(DecodeError::Short)?;
    let [a, b, c, d, e, f, g] = *bytes;
    *from = rest;
    let number = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
    if number < EXACT { Ok(number) } else { Err(DecodeError::Value { field: "spent" }) }
}

/// Returns twice a window's usual length in nanoseconds, a bound for all windows of its kind.
pub(crate) fn longest_window(limit: &FixedWindow) -> u64 {
    nanos(limit.period()).saturating_mul(2)
}

pub(crate) fn spent(after_loss: AfterLoss, limit: u64) -> u64 {
    match after_loss {
        AfterLoss::Empty => limit,
        AfterLoss::Half => limit - limit.div_ceil(2).max(1).min(limit),
        AfterLoss::Full => 0,
    }
}

/// Returns the cell to decide by if cells were lost at `lost`; `None` if the found cell, last written at `written`, is
/// valid.
pub(crate) fn replaced(
    after_loss: AfterLoss,
    quota: &Arc<Quota>,
    found: Option<&(Cell, Tick)>,
    lost: Tick,
    now: Tick,
) -> Option<Cell> {
    if lost == Tick::EPOCH || quota.is_guard() || found.is_some_and(|(_, written)| *written >= lost) {
        return None;
    }
    let floor = spent_at(after_loss, quota, lost)?;
    if quota.full_at(&floor).is_some_and(|full| full <= now) {
        return None;
    }
    let level = |quota: &Quota, state: &State| {
        let standing = quota.standing(state, now);
        i128::from(standing.remaining) - i128::from(standing.debt)
    };
    if let Some((cell, _)) = found
        && *cell.quota == **quota
        && level(quota, &cell.state) <= level(quota, &floor)
    {
        // It is emptier already.
        return None;
    }
    Some(Cell::new(Arc::clone(quota), floor))
}

fn spent_at(after_loss: AfterLoss, quota: &Quota, at: Tick) -> Option<State> {
    let fresh = quota.fresh(at);
    let standing = quota.standing(&fresh, at);
    let left = standing.limit - spent(after_loss, standing.limit);
    let cost = Cost::new(standing.remaining.saturating_sub(left))?;
    match quota.decide(&fresh, Ask::allow(at, cost)) {
        Transition::Allowed { next, .. } => Some(next),
        Transition::Denied { .. } => None,
    }
}
