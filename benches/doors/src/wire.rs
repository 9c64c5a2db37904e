//! The callers' side of the protocols: the least that each needs, so that one core of callers can keep one core of a
//! server busy.

use anyhow::{Context as _, Result, bail, ensure};

/// One answer: the number of its request, and whether it refuses.
pub(crate) struct Answer {
    pub(crate) question: u64,
    pub(crate) refused: bool,
}

/// One connection's side of a protocol. Requests are numbered from 0 in the order of sending.
pub(crate) trait Wire {
    /// Appends the bytes that open the connection.
    fn open(&mut self, _out: &mut Vec<u8>) {}

    /// Appends a request for the key with this number.
    fn ask(&mut self, key: u64, out: &mut Vec<u8>);

    /// Reads the complete answers, and returns their length in bytes. Bytes to send in return are appended to `out`.
    ///
    /// # Errors
    /// Fails on an answer that is malformed, or neither permits nor refuses.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, answered: &mut dyn FnMut(Answer)) -> Result<usize>;
}

/// Writes a key of ten digits.
pub(crate) fn digits(key: u64) -> [u8; 10] {
    let (mut digits, mut rest) = ([b'0'; 10], key);
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

// HTTP/1.1, one request at a time per connection.

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

impl What {
    /// The beginning of a refusal. nginx takes 403 for one from the server it asks, and itself refuses with 503.
    fn refusal(self) -> &'static str {
        match self {
            Self::Check => "HTTP/1.1 429",
            Self::ForwardAuth => "HTTP/1.1 403",
            Self::Nginx => "HTTP/1.1 503",
        }
    }
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
                let (a, b, c) = (key / 62_500 % 250 + 1, key / 250 % 250, key % 250);
                let address = format!("10.{a}.{b}.{c}\r\n\r\n");
                out.extend_from_slice(address.as_bytes());
            }
        }
    }

    fn read(&mut self, bytes: &[u8], _out: &mut Vec<u8>, answered: &mut dyn FnMut(Answer)) -> Result<usize> {
        let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(0) };
        let text = std::str::from_utf8(&bytes[..head]).context("a head that is no text")?;
        let mut lines = text.split("\r\n");
        let status = lines.next().unwrap_or_default();
        let refused = status.starts_with(self.what.refusal());
        if !refused && !status.starts_with("HTTP/1.1 2") {
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
        answered(Answer { question: self.answers, refused });
        self.answers += 1;
        Ok(whole)
    }
}

// Redis commands, answered in order.

pub(crate) enum Resp {
    /// `CL.THROTTLE` for a limit that allows everything.
    Throttle(Answers),
    /// `CL.THROTTLE` for a limit of one unit a day.
    ThrottleOne(Answers),
    /// `INCR`.
    Increment(Answers),
}

/// The number of answers read.
#[derive(Default)]
pub(crate) struct Answers(u64);

/// `CL.THROTTLE` up to its key, and the limits after the key.
const THROTTLE: &[u8] = b"*6\r\n$11\r\nCL.THROTTLE\r\n$10\r\n";
const PLENTY: &[u8] = b"\r\n$7\r\n1000000\r\n$7\r\n1000000\r\n$1\r\n1\r\n$1\r\n1\r\n";
/// The first unit is not part of `max_burst`.
const ONE_A_DAY: &[u8] = b"\r\n$1\r\n0\r\n$1\r\n1\r\n$5\r\n86400\r\n$1\r\n1\r\n";

impl Wire for Resp {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        match self {
            Self::Throttle(_) | Self::ThrottleOne(_) => {
                out.extend_from_slice(THROTTLE);
                out.extend_from_slice(&digits(key));
                out.extend_from_slice(if matches!(self, Self::Throttle(_)) { PLENTY } else { ONE_A_DAY });
            }
            Self::Increment(_) => {
                out.extend_from_slice(b"*2\r\n$4\r\nINCR\r\n$10\r\n");
                out.extend_from_slice(&digits(key));
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn read(&mut self, bytes: &[u8], _out: &mut Vec<u8>, answered: &mut dyn FnMut(Answer)) -> Result<usize> {
        let (lines, Answers(seen)) = match self {
            Self::Throttle(seen) | Self::ThrottleOne(seen) => (6, seen),
            Self::Increment(seen) => (1, seen),
        };
        let (mut at, mut ends, mut whole, mut refused) = (0, 0, 0, false);
        while let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') {
            let line = &bytes[at..at + length];
            // An array of five numbers whose first says whether it is refused, or a number.
            let expected = match (lines, ends) {
                (6, 0) => line == b"*5\r",
                (6, 1) => {
                    refused = line == b":1\r";
                    refused || line == b":0\r"
                }
                _ => line.first() == Some(&b':'),
            };
            if !expected {
                bail!("unexpected answer: {}", String::from_utf8_lossy(line));
            }
            at += length + 1;
            ends += 1;
            if ends == lines {
                answered(Answer { question: *seen, refused });
                *seen += 1;
                (ends, whole) = (0, at);
            }
        }
        Ok(whole)
    }
}

// `ShouldRateLimit` over HTTP/2 (RFC 9113), with frames prepared in advance: after the first call each header block
// has one byte per header, as sent by Envoy's client and gRPC's libraries (RFC 7541, indexed fields).

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// The length of a frame's head, in bytes.
const HEAD: usize = 9;

/// The first index of RFC 7541's dynamic table.
const FIRST_INDEX: u8 = 62;

pub(crate) struct Grpc {
    headers: Vec<(&'static str, &'static str)>,
    /// One message, with a placeholder for each key.
    message: Vec<u8>,
    keys: Vec<usize>,
    /// The next stream id; clients use odd ones.
    stream: u32,
    /// The flow-control window for sending, and the bytes that were read and not yet returned to the server's window.
    window: i64,
    owed: u32,
    /// The calls whose message was read and whose end was not.
    decided: Vec<Decided>,
}

struct Decided {
    stream: u32,
    refused: bool,
}

impl Grpc {
    /// Sends requests with this many descriptors, with or without the headers that Envoy adds.
    pub(crate) fn new(descriptors: usize, envoy: bool) -> Self {
        let mut headers = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
            (":authority", "ratelimit"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ];
        if envoy {
            headers.extend([
                ("grpc-timeout", "250m"),
                ("x-envoy-internal", "true"),
                ("x-forwarded-for", "10.0.0.7"),
                ("x-envoy-expected-rq-timeout-ms", "250"),
            ]);
        }
        let (mut body, mut keys) = (vec![0x0a, 5], Vec::new());
        body.extend_from_slice(b"bench");
        for name in ["user", "path", "tier", "team"].iter().take(descriptors) {
            // RateLimitDescriptor { entries: [Entry { key, value }] }: 18 bytes of entry, 20 of descriptor.
            body.extend_from_slice(&[0x12, 20, 0x0a, 18, 0x0a, 4]);
            body.extend_from_slice(name.as_bytes());
            body.extend_from_slice(&[0x12, 10]);
            keys.push(body.len());
            body.extend_from_slice(&[b'0'; 10]);
        }
        let mut message = vec![0];
        message.extend_from_slice(&(body.len() as u32).to_be_bytes());
        message.extend_from_slice(&body);
        for key in &mut keys {
            *key += 5;
        }
        Self { headers, message, keys, stream: 1, window: 65_535, owed: 0, decided: Vec::new() }
    }

    fn head_block(&self) -> Vec<u8> {
        let mut block = Vec::new();
        let count = self.headers.len() as u8;
        for (at, (name, value)) in self.headers.iter().enumerate() {
            if self.stream == 1 {
                // A literal field with a new name, added to the dynamic table.
                block.push(0x40);
                for text in [name, value] {
                    block.push(text.len() as u8);
                    block.extend_from_slice(text.as_bytes());
                }
            } else {
                // The field that was added last has the first index.
                block.push(0x80 | (FIRST_INDEX + count - 1 - at as u8));
            }
        }
        block
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

impl Wire for Grpc {
    fn open(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frame(SETTINGS, 0, 0, &[], out);
        frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes(), out);
    }

    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        frame(HEADERS, END_HEADERS, self.stream, &self.head_block(), out);
        for (number, at) in self.keys.iter().enumerate() {
            self.message[*at..at + 10].copy_from_slice(&digits(key + 10_000 * number as u64));
        }
        frame(DATA, END_STREAM, self.stream, &self.message, out);
        self.window -= self.message.len() as i64;
        self.stream += 2;
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, answered: &mut dyn FnMut(Answer)) -> Result<usize> {
        let mut at = 0;
        while bytes.len() - at >= HEAD {
            let head = &bytes[at..at + HEAD];
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some(payload) = bytes.get(at + HEAD..at + HEAD + length) else { break };
            match kind {
                DATA => {
                    // An uncompressed message whose overall code is OK or OVER_LIMIT.
                    let refused = match payload {
                        [0, _, _, _, _, 8, 1, ..] => false,
                        [0, _, _, _, _, 8, 2, ..] => true,
                        _ => bail!("neither allowed nor refused: {payload:?}"),
                    };
                    self.decided.push(Decided { stream, refused });
                    self.owed += length as u32;
                }
                HEADERS if flags & END_STREAM != 0 => {
                    let decided = self.decided.iter().position(|decided| decided.stream == stream);
                    let decided = decided.context("a call has ended without a decision")?;
                    let Decided { refused, .. } = self.decided.swap_remove(decided);
                    answered(Answer { question: u64::from(stream / 2), refused });
                }
                RST_STREAM | GOAWAY => bail!("the server has given up: {payload:?}"),
                SETTINGS if flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[], out),
                PING if flags & ACK == 0 => frame(PING, ACK, 0, payload, out),
                WINDOW_UPDATE if stream == 0 => {
                    self.window +=
                        i64::from(u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]));
                }
                _ => {}
            }
            at += HEAD + length;
        }
        ensure!(self.window > 0, "the server lets us send no more");
        if self.owed > 1 << 24 {
            frame(WINDOW_UPDATE, 0, 0, &self.owed.to_be_bytes(), out);
            self.owed = 0;
        }
        Ok(at)
    }
}
