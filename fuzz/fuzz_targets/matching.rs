//! Generated policy files and requests: compares the indexed matcher with the slow model, which shares no code with it,
//! and checks that an accepted policy can match at all.
#![no_main]

#[path = "../../crates/tidegate/tests/matching_model/judge.rs"]
mod judge;
#[path = "../../crates/tidegate/tests/matching_model/model.rs"]
mod model;
#[path = "../../crates/tidegate/tests/matching_model/witness.rs"]
mod witness;
#[path = "../../crates/tidegate/tests/matching_model/words.rs"]
mod words;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    judge::compare(bytes);
    judge::can_be_met(bytes);
});
