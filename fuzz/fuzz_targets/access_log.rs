//! Any bytes are a log of requests and malformed lines, whatever format is claimed.
#![no_main]

use std::io::Write as _;
use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use tidegate_sim::log::{Format, Log, LogOptions};
use tidegate_sim::source::Input;

fuzz_target!(|input: (u8, &[u8])| {
    let formats = [Format::Auto, Format::Common, Format::Combined, Format::Vhost, Format::Json, Format::Csv];
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(input.1).expect("room for it");
    let format = formats[usize::from(input.0) % formats.len()];
    let options = LogOptions { format, ..LogOptions::default() };
    if let Ok(mut log) = Log::open(vec![Input::File(file.path().to_owned())], options) {
        let _ = log.read(|record| {
            let _ = record.describe();
            ControlFlow::Continue(())
        });
    }
});
