//! Any bytes from a Redis client are parsed as commands, as an incomplete command, or as an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::fuzzing::resp_command;

fuzz_target!(|bytes: &[u8]| {
    let mut at = 0;
    // Same as the server: one command after the other, until more bytes are needed or the connection is closed.
    loop {
        let rest = &bytes[at..];
        match resp_command(rest) {
            Ok(Some((words, took))) => {
                assert!(0 < took && took <= rest.len(), "{took} of {}", rest.len());
                let read: usize = words.iter().map(|word| word.len()).sum();
                assert!(read <= took, "words are made of what was read");
                assert_eq!(resp_command(&rest[..took]), Ok(Some((words, took))), "what follows says nothing");
                let cut = resp_command(&rest[..took - 1]);
                assert!(!matches!(cut, Ok(Some(_))), "a command ends with its last byte");
                at += took;
            }
            Ok(None) => {
                assert!(rest.len() < 64 << 10, "what is never complete is not waited for");
                break;
            }
            Err(_) => break,
        }
    }
});
