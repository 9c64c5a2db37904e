//! The readers of the kernel's files about processor time and memory do not panic on any text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tidegate::concurrency::signals::read_as_every_file(text));
