//! Blocks of counts as bytes: columns of differences, packed.
//!
//! A block holds the rows of one policy, or of the server, in one hour or day. Its columns are written one after the
//! other, each value as the difference to the one before it: counts of neighbouring minutes are alike, so differences
//! are short. Columns without a count take one bit. zstd packs the result if that makes it shorter.
//!
//! Fifty policies with five to fifty requests a second, two of a hundred refused, take 0.49 bytes a sample
//! in minutes, 0.46 MB a day; seven of their thirteen series count something. `a_day_of_fifty_policies_is_small` holds it
//! to 0.7.

use zstd::bulk::{Compressor, Decompressor};

use crate::numbers::{Series, ServerSeries};

/// The columns of a row: one for each [`Series`]. The server has two less, which stay zero.
pub(crate) const WIDTH: usize = Series::ALL.len();

const _: () = assert!(ServerSeries::ALL.len() <= WIDTH && WIDTH <= 32);

/// The counts of one span, indexed by [`Series`], or by [`ServerSeries`].
pub(crate) type Row = [u64; WIDTH];

/// Rows by the number of their span in the block, ascending.
pub(crate) type Rows = Vec<(u16, Row)>;

/// The most rows of a block: five minutes each, in a day.
pub(crate) const MOST_ROWS: usize = 288;

/// The first byte of a block's bytes.
const FORM: u8 = 1;

/// No block is longer before it is packed: 32 columns of ten bytes, and the numbers of the rows.
const MOST_BYTES: usize = MOST_ROWS * (32 * 10 + 2) + 16;

const PLAIN: u8 = 0;
const PACKED: u8 = 1;

/// Blocks have some hundred bytes, so more effort finds nothing more.
const LEVEL: i32 = 3;

/// Packs and unpacks blocks. Reuses the memory of the packer, some hundred kilobytes, which is allocated when it is
/// first needed.
#[derive(Default)]
pub(crate) struct Packer {
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
}

impl Packer {
    pub(crate) fn pack(&mut self, rows: &[(u16, Row)]) -> Vec<u8> {
        let plain = encode(rows);
        if let Some(packed) = self.squeeze(&plain).filter(|packed| packed.len() < plain.len()) {
            return with_first(PACKED, &packed);
        }
        with_first(PLAIN, &plain)
    }

    /// Returns the rows of a block; `None` if the bytes are not one.
    pub(crate) fn unpack(&mut self, bytes: &[u8]) -> Option<Rows> {
        match bytes.split_first()? {
            (&PLAIN, plain) => decode(plain),
            (&PACKED, packed) => {
                if self.decompressor.is_none() {
                    self.decompressor = Decompressor::new().ok();
                }
                let plain = self.decompressor.as_mut()?.decompress(packed, MOST_BYTES).ok()?;
                decode(&plain)
            }
            _ => None,
        }
    }

    fn squeeze(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if self.compressor.is_none() {
            self.compressor = Compressor::new(LEVEL).ok();
        }
        self.compressor.as_mut()?.compress(plain).ok()
    }
}

fn with_first(first: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rest.len() + 1);
    bytes.push(first);
    bytes.extend_from_slice(rest);
    bytes
}

fn encode(rows: &[(u16, Row)]) -> Vec<u8> {
    let mut bytes = vec![FORM];
    put(&mut bytes, rows.len() as u64);
    let mut before = 0;
    for (number, _) in rows {
        put(&mut bytes, u64::from(number.wrapping_sub(before)));
        before = *number;
    }
    let counted = |column: usize| rows.iter().any(|(_, row)| row[column] != 0);
    let columns =
        (0..WIDTH).filter(|column| counted(*column)).fold(0, |mask, column| mask | (1_u64 << column));
    put(&mut bytes, columns);
    for column in (0..WIDTH).filter(|column| (columns >> column) & 1 == 1) {
        let mut before = 0_u64;
        for (_, row) in rows {
            put(&mut bytes, zigzag(row[column].wrapping_sub(before)));
            before = row[column];
        }
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<Rows> {
    let (&form, mut rest) = bytes.split_first()?;
    if form != FORM {
        return None;
    }
    let count = usize::try_from(take(&mut rest)?).ok().filter(|count| *count <= MOST_ROWS)?;
    let mut rows: Rows = Vec::with_capacity(count);
    for _ in 0..count {
        let gap = u16::try_from(take(&mut rest)?).ok()?;
        let number = match rows.last() {
            Some((before, _)) if gap > 0 => before.checked_add(gap)?,
            Some(_) => return None,
            None => gap,
        };
        rows.push((number, [0; WIDTH]));
    }
    if rows.last().is_some_and(|(last, _)| usize::from(*last) >= MOST_ROWS) {
        return None;
    }
    let columns = u32::try_from(take(&mut rest)?).ok()?;
    for column in (0..32).filter(|column| (columns >> column) & 1 == 1) {
        let mut before = 0_u64;
        for (_, row) in &mut rows {
            before = before.wrapping_add(unzigzag(take(&mut rest)?));
            // A newer build may count more, which this one does not know.
            if let Some(value) = row.get_mut(column) {
                *value = before;
            }
        }
    }
    rest.is_empty().then_some(rows)
}

/// Appends a number, seven bits a byte, the lowest first.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for place in 0..10 {
        let (&byte, more) = rest.split_first()?;
        *rest = more;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Makes small numbers of small differences, whichever their sign.
fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0_u64), 0..1_000_u64, any::<u64>(), Just(u64::MAX)]
    }

    fn rows() -> impl Strategy<Value = Rows> {
        let row = proptest::collection::vec(value(), WIDTH);
        proptest::collection::btree_map(0..MOST_ROWS as u16, row, 0..80).prop_map(
            |rows: BTreeMap<u16, Vec<u64>>| {
                rows.into_iter().map(|(number, row)| (number, row.try_into().unwrap())).collect()
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(rows in rows()) {
            let mut packer = Packer::default();
            let bytes = packer.pack(&rows);
            prop_assert!(bytes.len() <= MOST_BYTES);
            prop_assert_eq!(packer.unpack(&bytes), Some(rows));
        }

        /// The file may be damaged in ways that its engine does not see.
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), first in 0..3_u8, form in 0..3_u8,
        ) {
            let bytes = [vec![first, form], bytes].concat();
            if let Some(rows) = Packer::default().unpack(&bytes) {
                prop_assert!(rows.len() <= MOST_ROWS);
                prop_assert!(rows.is_sorted_by(|one, next| one.0 < next.0));
            }
        }
    }

    #[test]
    fn a_block_of_the_largest_size_is_read_back() {
        let spread = |number: u64, column: u64| (number * 37 + column).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rows: Rows = (0..MOST_ROWS as u16)
            .map(|number| (number, std::array::from_fn(|column| spread(u64::from(number), column as u64))))
            .collect();
        let mut packer = Packer::default();
        let bytes = packer.pack(&rows);
        assert_eq!(packer.unpack(&bytes), Some(rows));
    }

    /// Fifty policies with five to fifty requests a second, two of a hundred refused, over a day.
    #[test]
    fn a_day_of_fifty_policies_is_small() {
        let mut random = crate::usual::tests::Random(7);
        let (mut packer, mut bytes, mut samples) = (Packer::default(), 0, 0);
        for policy in 0..50 {
            for hour in 0..24 {
                let busy = 1.0 + 0.5 * (f64::from(hour) / 24.0 * std::f64::consts::TAU).sin();
                let a_minute = 60.0 * (5.0 + 45.0 * f64::from(policy) / 50.0) * busy;
                let rows: Rows = (0..60)
                    .map(|minute| {
                        let mut row = [0; WIDTH];
                        row[Series::Allowed as usize] = random.poisson(a_minute);
                        row[Series::Denied as usize] = random.poisson(a_minute * 0.02);
                        row[Series::KeysRefused as usize] = random.poisson(3.0);
                        row[Series::Near as usize] = random.poisson(a_minute * 0.01);
                        row[Series::AskedUnits as usize] =
                            row[Series::Allowed as usize] + row[Series::Denied as usize];
                        row[Series::AdmittedUnits as usize] = row[Series::Allowed as usize];
                        row[Series::HottestShare as usize] = 300 + random.poisson(60.0);
                        (minute, row)
                    })
                    .collect();
                samples += rows.len() * WIDTH;
                bytes += packer.pack(&rows).len();
            }
        }
        let each = bytes as f64 / samples as f64;
        assert!(each < 0.7, "{each:.2} bytes a sample, {bytes} bytes a day");
    }
}
