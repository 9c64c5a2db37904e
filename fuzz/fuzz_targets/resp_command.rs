//! Any bytes from a Redis client are parsed as commands, as an incomplete command, or as an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::fuzzing::{RespBytes, resp_bytes};

fuzz_target!(|bytes: &[u8]| {
    let mut at = 0;
    // Same as the server: one command after the other, until more bytes are needed or the connection is closed.
    loop {
        let rest = &bytes[at..];
        match resp_bytes(rest) {
            RespBytes::Command { words, took } => {
                assert!(0 < took && took <= rest.len(), "{took} of {}", rest.len());
                assert!(words.iter().map(Vec::len).sum::<usize>() <= took, "words are made of what was read");
                assert_eq!(
                    resp_bytes(&rest[..took]),
                    RespBytes::Command { words, took },
                    "what follows says nothing"
                );
                let cut = &rest[..took - 1];
                assert!(
                    !matches!(resp_bytes(cut), RespBytes::Command { .. }),
                    "a command ends with its last byte"
                );
                at += took;
            }
            RespBytes::Incomplete => {
                assert!(rest.len() < 64 << 10, "what is never complete is not waited for");
                break;
            }
            RespBytes::Broken => break,
        }
    }
});
