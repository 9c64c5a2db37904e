//! SplitMix64: numbers that look like no pattern and are the same on every run. A few instructions, so that the models and not the
//! dice take the time; every seed is good.

/// Returns the next number of a stream, whose whole state is one number.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
