//! Encodes replies.

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
    use proptest::prelude::*;

    use super::*;

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
