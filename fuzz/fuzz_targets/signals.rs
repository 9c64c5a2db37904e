//! The kernel's files about processor time and memory: no text of theirs panics, whatever file it stands in.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tidegate::signals::read_as_every_file(text));
