//! Any bytes are a valid trace or give an error for a line, for every algorithm.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::store::conformance;
use tidegate_sim::trace::Trace;

fuzz_target!(|input: (u8, &[u8])| {
    let quotas = conformance::quotas();
    let quota = &quotas[usize::from(input.0) % quotas.len()];
    let mut trace = Trace::of_limit(|_, _| Ok((**quota).clone())).expect("a quota that exists");
    let mut out = Vec::new();
    let _ = trace.run(input.1, &mut out);
});
