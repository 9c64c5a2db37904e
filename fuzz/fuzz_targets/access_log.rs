//! Any bytes are read as requests and malformed lines, in any format; any text is a valid `log_format` or gives an
//! error.
#![no_main]

use std::io::Write as _;
use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use tidegate_sim::log::{Format, Input, Log, LogOptions};

fuzz_target!(|input: (u8, &[u8])| {
    let (chosen, mut bytes) = input;
    let mut formats = vec![
        Format::Auto,
        Format::Common,
        Format::Combined,
        Format::Vhost,
        Format::Json,
        Format::Csv,
        Format::Alb,
        Format::CloudFront,
        Format::W3c,
        Format::Envoy,
        Format::Istio,
        Format::HaProxy,
    ];
    let at = usize::from(chosen) % (formats.len() + 1);
    if at == formats.len() {
        // The first line is the format of the others; a form feed in it stands for a line end.
        let (first, rest) =
            bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
        let Ok(format) = String::from_utf8_lossy(first).replace('\x0c', "\n").parse() else { return };
        formats.push(Format::LogFormat(format));
        bytes = rest.strip_prefix(b"\n").unwrap_or(rest);
    }
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    let options = LogOptions { format: formats.swap_remove(at), ..LogOptions::default() };
    if let Ok(mut log) = Log::open(vec![Input::File(file.path().to_owned())], options) {
        let _ = log.read(|record| {
            let _ = record.describe();
            ControlFlow::Continue(())
        });
    }
});
