//! HTTP/1.1, one request at a time per connection.

use anyhow::{Context as _, Result, bail};

use super::{Wire, digits};

pub(crate) struct Http {
    what: What,
    answers: u64,
}

/// The kind of request.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// `POST /v1/check` with a user.
    Check,
    /// A sub-request in nginx's form, for an address.
    ForwardAuth,
    /// A request to nginx itself, which limits by the same header.
    Nginx,
}

impl Http {
    pub(crate) fn new(what: What) -> Self {
        Self { what, answers: 0 }
    }
}

impl Wire for Http {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        match self.what {
            What::Check => {
                out.extend_from_slice(
                    b"POST /v1/check HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 36\r\n\r\n{\"attributes\":{\"user\":\"",
                );
                out.extend_from_slice(&digits(key));
                out.extend_from_slice(b"\"}}");
            }
            What::ForwardAuth | What::Nginx => {
                let path: &[u8] = if matches!(self.what, What::Nginx) { b"/" } else { b"/v1/forward-auth" };
                out.extend_from_slice(b"GET ");
                out.extend_from_slice(path);
                out.extend_from_slice(
                    b" HTTP/1.1\r\nhost: 127.0.0.1\r\nx-original-uri: /api/x\r\nx-original-method: GET\r\nx-original-host: example.org\r\nx-forwarded-for: ",
                );
                let address = format!("10.1.{}.{}\r\n\r\n", key / 250 % 250, key % 250);
                out.extend_from_slice(address.as_bytes());
            }
        }
    }

    fn read(&mut self, bytes: &[u8], _out: &mut Vec<u8>, answered: &mut dyn FnMut(u64)) -> Result<usize> {
        let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(0) };
        let text = std::str::from_utf8(&bytes[..head]).context("a head that is no text")?;
        let mut lines = text.split("\r\n");
        let status = lines.next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 2") {
            bail!("unexpected answer: {text}{}", String::from_utf8_lossy(&bytes[head..]));
        }
        let mut length = 0;
        for line in lines {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        let whole = head + 4 + length;
        if bytes.len() < whole {
            return Ok(0);
        }
        answered(self.answers);
        self.answers += 1;
        Ok(whole)
    }
}
