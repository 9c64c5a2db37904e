//! Redis commands, answered in order.

use anyhow::{Result, bail};

use super::{Wire, digits};

pub(crate) enum Resp {
    /// `CL.THROTTLE` for a limit that allows everything.
    Throttle(Answers),
    /// `INCR`.
    Increment(Answers),
}

/// The number of answers read.
#[derive(Default)]
pub(crate) struct Answers(u64);

impl Wire for Resp {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        match self {
            Self::Throttle(_) => {
                out.extend_from_slice(b"*6\r\n$11\r\nCL.THROTTLE\r\n$10\r\n");
                out.extend_from_slice(&digits(key));
                out.extend_from_slice(b"\r\n$7\r\n1000000\r\n$7\r\n1000000\r\n$1\r\n1\r\n$1\r\n1\r\n");
            }
            Self::Increment(_) => {
                out.extend_from_slice(b"*2\r\n$4\r\nINCR\r\n$10\r\n");
                out.extend_from_slice(&digits(key));
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn read(&mut self, bytes: &[u8], _out: &mut Vec<u8>, answered: &mut dyn FnMut(u64)) -> Result<usize> {
        let (lines, Answers(seen)) = match self {
            Self::Throttle(seen) => (6, seen),
            Self::Increment(seen) => (1, seen),
        };
        let (mut at, mut ends, mut whole) = (0, 0, 0);
        while let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') {
            let line = &bytes[at..at + length];
            // An array of five numbers whose first says that it is allowed, or a number.
            let expected = match (lines, ends) {
                (6, 0) => line == b"*5\r",
                (6, 1) => line == b":0\r",
                _ => line.first() == Some(&b':'),
            };
            if !expected {
                bail!("unexpected answer: {}", String::from_utf8_lossy(line));
            }
            at += length + 1;
            ends += 1;
            if ends == lines {
                answered(*seen);
                *seen += 1;
                (ends, whole) = (0, at);
            }
        }
        Ok(whole)
    }
}
