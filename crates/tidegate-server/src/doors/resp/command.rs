//! Reads commands out of bytes.

use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;
use smallvec::SmallVec;

/// The most bytes of one command.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// The most words of one command: a policy, 64 attributes, and what follows them.
const MAX_WORDS: usize = 140;

/// The words of a command, in the bytes that they were read from.
pub(super) type Words<'a> = SmallVec<[&'a [u8]; 8]>;

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// A command, and how many bytes it took. It may have no words.
    Command(Words<'a>, usize),
    /// The begin of one.
    Incomplete,
    /// No command; what is said before the connection is closed.
    Broken(&'static str),
}

/// Reads the first command.
///
/// A command is a list of byte strings, or a line of words. A list inside a list is no command, so nothing here goes deeper than one.
pub(super) fn next(bytes: &[u8]) -> Next<'_> {
    match bytes.first() {
        None => Next::Incomplete,
        Some(b'*') => list(bytes),
        // The begin of a handshake, whose sender waits for an answer: it may never send a line end.
        Some(22) => {
            Next::Broken("this address is served without TLS; leave out --tls, or write redis:// in a URL")
        }
        Some(_) => line(bytes),
    }
}

fn list(bytes: &[u8]) -> Next<'_> {
    let Some(end) = end_of_head(bytes) else {
        // The longest length has 20 digits and a sign.
        return if bytes.len() > 24 { Next::Broken("invalid multibulk length") } else { Next::Incomplete };
    };
    let Some(words) = std::str::from_utf8(&bytes[1..end]).ok().and_then(|text| text.parse::<i64>().ok())
    else {
        return Next::Broken("invalid multibulk length");
    };
    let Ok(count) = usize::try_from(words.max(0)) else { return Next::Broken("invalid multibulk length") };
    if count > MAX_WORDS {
        return Next::Broken("too many words in a command");
    }
    let mut read = Words::new();
    let mut at = end + 2;
    for _ in 0..count {
        match bytes.get(at) {
            None => return incomplete(bytes),
            Some(b'$') => {}
            Some(_) => return Next::Broken("expected '$'"),
        }
        match decode_range(&bytes[at..]) {
            Ok(Some((RangeFrame::BulkString((from, to)), took))) => {
                read.push(&bytes[at + from..at + to]);
                at += took;
            }
            Ok(None) => return incomplete(bytes),
            Ok(Some(_)) | Err(_) => return Next::Broken("invalid bulk length"),
        }
    }
    Next::Command(read, at)
}

/// A command that is not complete although it has the most bytes never will be.
fn incomplete(bytes: &[u8]) -> Next<'_> {
    if bytes.len() >= MAX_BYTES { Next::Broken("too long a command") } else { Next::Incomplete }
}

/// Words on a line, as a person types them.
fn line(bytes: &[u8]) -> Next<'_> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return incomplete(bytes) };
    let words: Words<'_> = bytes[..end]
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .take(MAX_WORDS + 1)
        .collect();
    if words.len() > MAX_WORDS {
        return Next::Broken("too many words in a command");
    }
    Next::Command(words, end + 1)
}

/// Finds the line end behind a list's length, which 26 bytes have room for.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.iter().take(26).zip(bytes.iter().skip(1)).position(|pair| pair == (&b'\r', &b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
        match next(bytes) {
            Next::Command(words, took) => Some((words.into_vec(), took)),
            _ => None,
        }
    }

    #[test]
    fn a_command_is_a_list_or_a_line() {
        let list = b"*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n*1\r\n";
        assert_eq!(words(list), Some((vec![b"ECHO".as_slice(), b"a\r\n"], 23)));
        assert_eq!(words(b"PING  hello\r\nPING"), Some((vec![b"PING".as_slice(), b"hello"], 13)));
        assert_eq!(words(b"*0\r\nx"), Some((vec![], 4)));
        assert_eq!(words(b"*-1\r\n"), Some((vec![], 5)));
        assert_eq!(words(b"\r\n"), Some((vec![], 2)));
    }

    #[test]
    fn every_beginning_of_a_command_waits_for_the_rest() {
        let whole = b"*3\r\n$8\r\nTG.CHECK\r\n$1\r\n*\r\n$0\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(next(&whole[..end]), Next::Incomplete, "{end}");
        }
        assert_eq!(words(whole).map(|(_, took)| took), Some(whole.len()));
    }

    #[test]
    fn what_is_no_command_is_said_to_be_none() {
        for (bytes, said) in [
            (b"*x\r\n".as_slice(), "invalid multibulk length"),
            (b"*99999999999999999999\r\n", "invalid multibulk length"),
            (b"*9999999\r\n", "too many words in a command"),
            (b"*1\r\n*1\r\n*1\r\n", "expected '$'"),
            (b"*1\r\n:1\r\n", "expected '$'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$-2\r\n", "invalid bulk length"),
            (b"*1\r\n$x\r\n", "invalid bulk length"),
        ] {
            assert_eq!(next(bytes), Next::Broken(said), "{}", bytes.escape_ascii());
        }
        let mut long = b"*1\r\n$9223372036854775807\r\n".to_vec();
        assert_eq!(next(&long), Next::Incomplete);
        long.resize(MAX_BYTES, b'x');
        assert_eq!(next(&long), Next::Broken("too long a command"));
    }
}
