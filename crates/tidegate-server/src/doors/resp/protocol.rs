//! The bytes of the protocol: parses commands and encodes replies.
//!
//! Commands are parsed by hand: one has two kinds of lines, `*COUNT` and `$LENGTH`. The library that tests compare this
//! parser with reads any frame, and would be called for each word, which took a third of all instructions of a
//! `CL.THROTTLE`.

use smallvec::SmallVec;

/// The most bytes of one command.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// The most words of one command: a policy, 64 attributes, and what follows them.
const MAX_WORDS: usize = 140;

pub(super) type Words<'a> = SmallVec<[&'a [u8]; 8]>;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// A command, perhaps without words, and how many bytes it took.
    Command(Words<'a>, usize),
    Incomplete,
    /// Not a command. Holds the error to send before closing.
    Broken(&'static str),
}

/// Parses the first command: a list of byte strings, or a line of words. A list inside a list is none, so nothing
/// recurses.
pub(super) fn next(bytes: &[u8]) -> Next<'_> {
    match bytes.first() {
        None => Next::Incomplete,
        Some(b'*') => list(bytes),
        // A TLS handshake: its sender waits, and may never send a line end.
        Some(22) => {
            Next::Broken("this address is served without TLS; leave out --tls, or write redis:// in a URL")
        }
        Some(_) => line(bytes),
    }
}

fn list(bytes: &[u8]) -> Next<'_> {
    let (count, mut at) = match length(bytes) {
        Length::Is(count, after) => (count, after),
        Length::Incomplete => return Next::Incomplete,
        Length::Wrong => return Next::Broken("invalid multibulk length"),
    };
    // A negative count means no words, as in Redis.
    let count = usize::try_from(count).unwrap_or(0);
    if count > MAX_WORDS {
        return Next::Broken("too many words in a command");
    }
    let mut read = Words::new();
    for _ in 0..count {
        let rest = &bytes[at..];
        match rest.first() {
            None => return incomplete(bytes),
            Some(b'$') => {}
            Some(_) => return Next::Broken("expected '$'"),
        }
        let (length, from) = match length(rest) {
            Length::Is(length, from) => (usize::try_from(length).ok(), from),
            Length::Incomplete => return incomplete(bytes),
            Length::Wrong => (None, 0),
        };
        let Some(length) = length else { return Next::Broken("invalid bulk length") };
        let to = from.saturating_add(length);
        match (rest.get(from..to), rest.get(to..).and_then(|end| end.first_chunk())) {
            (Some(word), Some(b"\r\n")) => read.push(word),
            (_, Some(_)) => return Next::Broken("invalid bulk length"),
            (_, None) => return incomplete(bytes),
        }
        at += to + 2;
    }
    Next::Command(read, at)
}

/// The number in a list's or a word's first line.
enum Length {
    /// The number, and the end of its line.
    Is(i64, usize),
    Incomplete,
    Wrong,
}

#[inline]
fn length(bytes: &[u8]) -> Length {
    /// A first byte, a sign, nineteen digits, the line end, and some leading zeros.
    const LONGEST: usize = 24;
    // Most numbers are short: one or two digits.
    match bytes {
        [_, one @ b'0'..=b'9', b'\r', b'\n', ..] => return Length::Is(i64::from(one - b'0'), 4),
        [_, ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            return Length::Is(i64::from(ten - b'0') * 10 + i64::from(one - b'0'), 5);
        }
        _ => {}
    }
    let negative = bytes.get(1) == Some(&b'-');
    let first = if negative { 2 } else { 1 };
    let mut number = 0_i64;
    for (at, byte) in (first..).zip(&bytes[first..bytes.len().min(LONGEST)]) {
        let digit = match byte {
            b'0'..=b'9' => i64::from(byte - b'0'),
            b'\r' if at > first => {
                return match bytes.get(at + 1) {
                    Some(b'\n') => Length::Is(if negative { -number } else { number }, at + 2),
                    Some(_) => Length::Wrong,
                    None => Length::Incomplete,
                };
            }
            _ => return Length::Wrong,
        };
        match number.checked_mul(10).and_then(|tens| tens.checked_add(digit)) {
            Some(more) => number = more,
            None => return Length::Wrong,
        }
    }
    if bytes.len() < LONGEST { Length::Incomplete } else { Length::Wrong }
}

/// An incomplete command that has the most bytes is an error.
fn incomplete(bytes: &[u8]) -> Next<'_> {
    if bytes.len() >= MAX_BYTES { Next::Broken("too long a command") } else { Next::Incomplete }
}

/// Parses words on a line, as a person types them.
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

// Replies.

/// Replies to one read, sent together.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
}

impl Replies {
    /// Writes a simple string, such as `OK`.
    pub(super) fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// Writes an error: a code, and a message of one line.
    pub(super) fn error(&mut self, code: &str, what: &str) {
        self.bytes.push(b'-');
        self.bytes.extend_from_slice(code.as_bytes());
        self.bytes.push(b' ');
        // Control characters are replaced, so that the message stays on one line.
        self.bytes.extend(what.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.end();
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// Writes the reply to every `CL.THROTTLE`, as a whole.
    pub(super) fn five_integers(&mut self, numbers: [i64; 5]) {
        /// The list's head, and for each number its type byte, sign, nineteen digits and line end.
        const LONGEST: usize = 4 + 5 * 23;
        let (mut bytes, mut from) = ([0; LONGEST], LONGEST);
        let mut put = |byte: u8| {
            from -= 1;
            bytes[from] = byte;
        };
        // Written backwards, since the last digit of a number is computed first.
        for number in numbers.into_iter().rev() {
            put(b'\n');
            put(b'\r');
            let mut left = number.unsigned_abs();
            loop {
                put(b'0' + (left % 10) as u8);
                left /= 10;
                if left == 0 {
                    break;
                }
            }
            if number < 0 {
                put(b'-');
            }
            put(b':');
        }
        for byte in *b"\n\r5*" {
            put(byte);
        }
        self.bytes.extend_from_slice(&bytes[from..]);
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    /// Writes a string, or null.
    pub(super) fn text(&mut self, text: Option<&str>, resp3: bool) {
        match text {
            Some(text) => self.bulk(text.as_bytes()),
            None => self.null(resp3),
        }
    }

    /// Writes null, in the form of the protocol version.
    pub(super) fn null(&mut self, resp3: bool) {
        self.bytes.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Writes the head of a list of `count` replies.
    pub(super) fn list(&mut self, count: usize) {
        self.number(b'*', i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Writes the head of a map; before RESP3, of a list of twice as many replies.
    pub(super) fn map(&mut self, pairs: usize, resp3: bool) {
        if resp3 {
            self.number(b'%', i64::try_from(pairs).unwrap_or(i64::MAX));
        } else {
            self.list(pairs * 2);
        }
    }

    fn number(&mut self, kind: u8, number: i64) {
        // Most numbers are short.
        if let Ok(digit @ 0..10) = u8::try_from(number) {
            return self.bytes.extend_from_slice(&[kind, b'0' + digit, b'\r', b'\n']);
        }
        self.bytes.push(kind);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use redis_protocol::resp2::decode::decode;
    use redis_protocol::resp2::encode::encode;
    use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame as _};

    use super::*;

    /// Pieces of commands and of near misses.
    const PIECES: [&str; 11] =
        ["1\r\n", "2\r\n", "0\r\n", "-1\r\n", "$1\r\n", "$2\r\n", "a\r\n", "ab\r\n", "\r\n", "$", "*1\r\n"];

    proptest! {
        #[test]
        fn what_a_library_writes_is_read_as_it_was(words in vec(vec(any::<u8>(), 0..40), 0..9), more in vec(any::<u8>(), 0..4)) {
            let frame = OwnedFrame::Array(words.iter().cloned().map(OwnedFrame::BulkString).collect());
            let mut bytes = vec![0; 4096];
            let length = encode(&mut bytes, &frame, false).unwrap();
            bytes.truncate(length);
            bytes.extend_from_slice(&more);
            let expected = Next::Command(words.iter().map(Vec::as_slice).collect(), length);
            prop_assert_eq!(next(&bytes), expected);
            for end in 0..length {
                prop_assert_eq!(next(&bytes[..end]), Next::Incomplete);
            }
        }

        #[test]
        fn what_is_read_is_what_a_library_reads(pieces in vec(select(PIECES.to_vec()), 0..9)) {
            let bytes = [b"*", pieces.concat().as_bytes()].concat();
            let Next::Command(words, took) = next(&bytes) else { return Ok(()) };
            let library = decode(&bytes);
            if let Ok(Some((OwnedFrame::Array(frames), length))) = library {
                let frames: Vec<_> = frames.iter().map(|frame| frame.as_bytes().unwrap_or_default()).collect();
                prop_assert_eq!((words.into_vec(), took), (frames, length));
            } else {
                // The library treats a negative count as an error.
                prop_assert!(words.is_empty(), "{:?}", library);
            }
        }
    }

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
            (b"*1\r\n$\r\n", "invalid bulk length"),
            (b"*1\r\n$1\rx", "invalid bulk length"),
            (b"*1\r\n$1\r\nabc", "invalid bulk length"),
            (b"*1\r\n$0000000000000000000000001", "invalid bulk length"),
            (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
        ] {
            assert_eq!(next(bytes), Next::Broken(said), "{}", bytes.escape_ascii());
        }
        let mut long = b"*1\r\n$9223372036854775807\r\n".to_vec();
        assert_eq!(next(&long), Next::Incomplete);
        long.resize(MAX_BYTES, b'x');
        assert_eq!(next(&long), Next::Broken("too long a command"));
    }

    proptest! {
        #[test]
        fn five_numbers_are_a_list_of_each(numbers: [i64; 5]) {
            // Numbers of all lengths.
            for shift in [0, 20, 40, 60, 63] {
                let numbers = numbers.map(|number| number >> shift);
                let (mut together, mut each) = (Replies::default(), Replies::default());
                together.five_integers(numbers);
                each.list(5);
                numbers.into_iter().for_each(|number| each.integer(number));
                prop_assert_eq!(together.bytes, each.bytes);
            }
        }
    }

    #[test]
    fn the_longest_numbers_fit_a_list_of_five() {
        let mut replies = Replies::default();
        replies.five_integers([i64::MIN; 5]);
        assert_eq!(replies.bytes, format!("*5\r\n{}", format!(":{}\r\n", i64::MIN).repeat(5)).into_bytes());
    }

    #[test]
    fn replies_are_as_redis_has_them() {
        let mut replies = Replies::default();
        replies.simple("OK");
        replies.error("ERR", "no\r\nsecond line");
        replies.integer(-1);
        replies.integer(9);
        replies.bulk(b"a\r\nb");
        replies.null(false);
        replies.null(true);
        replies.map(1, true);
        replies.map(1, false);
        let text = "+OK\r\n-ERR no  second line\r\n:-1\r\n:9\r\n$4\r\na\r\nb\r\n$-1\r\n_\r\n%1\r\n*2\r\n";
        assert_eq!(String::from_utf8(replies.bytes).unwrap(), text);
    }
}
