//! The marks that tell the receipts of profiles apart.

/// Returns the second half of a receipt's mark: the profile, and a count of charges or changes. No other algorithm
/// sets the highest bit, so a receipt of another algorithm is never taken for one of a profile.
pub(super) const fn counted(profile: u8, count: u64) -> u128 {
    (1 << 127) | ((profile as u128) << 64) | count as u128
}
