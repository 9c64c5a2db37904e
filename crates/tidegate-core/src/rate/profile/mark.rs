//! How the receipts of profiles are told apart.

/// The second half of a receipt's mark: whose it is, and a count of charges or changes. No other algorithm sets the highest bit, so
/// that after a change of the algorithm no receipt is taken for one of the new.
pub(super) const fn counted(profile: u8, count: u64) -> u128 {
    (1 << 127) | ((profile as u128) << 64) | count as u128
}
