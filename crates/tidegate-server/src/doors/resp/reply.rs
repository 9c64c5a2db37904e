//! Writes replies.

/// Replies to the commands of one read, to be written in one piece.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
}

impl Replies {
    /// A short text, as `OK`.
    pub(super) fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error: its code, and what is wrong in one line.
    pub(super) fn error(&mut self, code: &str, what: &str) {
        self.bytes.push(b'-');
        self.bytes.extend_from_slice(code.as_bytes());
        self.bytes.push(b' ');
        // Whatever stands in a message, it is one line.
        self.bytes.extend(what.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.end();
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    /// A text, or nothing.
    pub(super) fn text(&mut self, text: Option<&str>, resp3: bool) {
        match text {
            Some(text) => self.bulk(text.as_bytes()),
            None => self.null(resp3),
        }
    }

    /// Nothing, in the words of the version.
    pub(super) fn null(&mut self, resp3: bool) {
        self.bytes.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// The head of a list of so many replies.
    pub(super) fn list(&mut self, count: usize) {
        self.number(b'*', i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The head of so many pairs; before the third version these are a list of twice as many replies.
    pub(super) fn map(&mut self, pairs: usize, resp3: bool) {
        if resp3 {
            self.number(b'%', i64::try_from(pairs).unwrap_or(i64::MAX));
        } else {
            self.list(pairs * 2);
        }
    }

    fn number(&mut self, kind: u8, number: i64) {
        // Most are short, and are written in one piece.
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
    use super::*;

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
