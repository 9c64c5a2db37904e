//! Compares the real matcher, with its index and compiled patterns, with a slow and obvious model. Also tests what the
//! check of a file promises: some request meets each accepted policy.
#![cfg(feature = "config")]

mod judge;
mod model;
mod witness;
mod words;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_index_finds_what_trying_every_policy_finds(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        judge::compare(&bytes);
    }

    /// For each policy that the check of a file accepts, some request made from its words is charged to it by the real
    /// matcher.
    #[test]
    fn a_policy_that_is_accepted_can_be_met(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        judge::can_be_met(&bytes);
    }
}

#[test]
fn the_made_up_files_are_often_accepted_and_often_refused() {
    let mut bytes = [0_u8; 200];
    let mut state = 1_u32;
    let accepted = (0..400).filter(|_| {
        bytes.iter_mut().for_each(|byte| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        });
        judge::compare(&bytes)
    });
    let accepted = accepted.count();
    assert!((8..392).contains(&accepted), "{accepted} of 400");
}
