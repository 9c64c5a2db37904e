//! Exact ratios in 128 bits, and the one operation that needs 256.

/// Returns `⌈a · b / d⌉`, exact; saturates at `u128::MAX`, and is `u128::MAX` when `d` is zero.
///
/// For cold paths: long multiplication and a division bit by bit.
pub(crate) fn mul_div_ceil(a: u128, b: u128, d: u128) -> u128 {
    let (quotient, remainder) = mul_div(a, b, d);
    if remainder == 0 { quotient } else { quotient.saturating_add(1) }
}

/// Returns `⌊a · b / d⌋`, exact; saturates like [`mul_div_ceil`].
pub(crate) fn mul_div_floor(a: u128, b: u128, d: u128) -> u128 {
    mul_div(a, b, d).0
}

fn mul_div(a: u128, b: u128, d: u128) -> (u128, u128) {
    if let Some(product) = a.checked_mul(b) {
        return match product.checked_div(d) {
            Some(quotient) => (quotient, product % d),
            None => (u128::MAX, 0),
        };
    }
    let (high, low) = wide_mul(a, b);
    if high >= d {
        return (u128::MAX, 0);
    }
    // `remainder < d` holds before each step, so the quotient fits 128 bits and one bit of carry is enough.
    let (mut remainder, mut quotient) = (high, 0u128);
    for bit in (0..128).rev() {
        let carry = remainder >> 127;
        remainder = (remainder << 1) | ((low >> bit) & 1);
        quotient <<= 1;
        if carry == 1 || remainder >= d {
            remainder = remainder.wrapping_sub(d);
            quotient |= 1;
        }
    }
    (quotient, remainder)
}

fn wide_mul(a: u128, b: u128) -> (u128, u128) {
    const HALF: u128 = (1 << 64) - 1;
    let (a1, a0, b1, b0) = (a >> 64, a & HALF, b >> 64, b & HALF);
    let (low, middle_a, middle_b, high) = (a0 * b0, a1 * b0, a0 * b1, a1 * b1);
    let middle = (low >> 64) + (middle_a & HALF) + (middle_b & HALF);
    (high + (middle_a >> 64) + (middle_b >> 64) + (middle >> 64), (middle << 64) | (low & HALF))
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigUint;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_big_integers(a: u128, b: u128, d: u128, shift in 0u32..128) {
            let d = d >> shift;
            prop_assume!(d > 0);
            let product = BigUint::from(a) * b;
            let max = BigUint::from(u128::MAX);
            prop_assert_eq!(BigUint::from(mul_div_floor(a, b, d)), (&product / d).min(max.clone()));
            prop_assert_eq!(BigUint::from(mul_div_ceil(a, b, d)), ((&product + d - 1u32) / d).min(max));
        }
    }
}
