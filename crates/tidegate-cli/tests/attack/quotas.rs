//! A caller of the two services that trust reports: Envoy's quota service and Limitador's. Every report is answered
//! or ends its own call, invented buckets cost bounded memory, and honest callers are served meanwhile.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::attack::grpc::{MORE, PREFACE, frame, head_of, is_served, serve};
use crate::attack::raw::connect;
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::Desk;

const FILE: &str = "version: 1
policies:
  - name: witness
    match: { attributes: { rls.domain: d } }
    limit: { rate: 1000000/s }
  - name: each
    match: { attributes: { rls.domain: q } }
    by: [k]
    absent: skip
    limit: { rate: 100/day }
";

const QUOTA: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
const LIMITADOR: [&str; 4] = ["CheckRateLimit", "Report", "Reserve", "Commit"];

/// A connection that respects the flow-control windows, and reads only what it waits for.
struct Peer {
    stream: TcpStream,
    /// How many bytes may still be sent: in all streams (0), and in each.
    windows: HashMap<u32, usize>,
    /// The type, flags and stream of the frames received.
    came: Vec<(u8, u8, u32)>,
}

impl Peer {
    /// Announces the window of each stream.
    fn new(grpc: SocketAddr, reads: u32) -> Self {
        let mut stream = connect(grpc);
        let settings = frame(4, 0, 0, &[&[0, 4][..], &reads.to_be_bytes()].concat());
        // The largest window for all streams together.
        let all = frame(8, 0, 0, &[0x7f, 0xfe, 0, 0]);
        stream.write_all(&[PREFACE, &settings, &all].concat()).unwrap();
        Self { stream, windows: HashMap::from([(0, 65_535)]), came: Vec::new() }
    }

    fn begin(&mut self, stream: u32, path: &str) {
        self.windows.insert(stream, 65_535);
        let head = head_of(path, &[("x-tidegate-assignment-ttl", "600")]);
        self.stream.write_all(&frame(1, 4, stream, &head)).unwrap();
    }

    /// Sends bytes as the stream's window allows. Returns whether the call goes on.
    fn send(&mut self, stream: u32, mut bytes: &[u8], ends: bool) -> bool {
        loop {
            let room = self.windows[&0].min(self.windows[&stream]).min(16_384).min(bytes.len());
            if room == 0 && !bytes.is_empty() {
                if self.is_over(stream) || !self.read() {
                    return false;
                }
                continue;
            }
            let (piece, rest) = bytes.split_at(room);
            let last = ends && rest.is_empty();
            if self.stream.write_all(&frame(0, u8::from(last), stream, piece)).is_err() {
                return false;
            }
            for window in [0, stream] {
                *self.windows.get_mut(&window).unwrap() -= room;
            }
            if rest.is_empty() {
                return true;
            }
            bytes = rest;
        }
    }

    /// Reads one frame. Returns whether there was one.
    fn read(&mut self) -> bool {
        let mut head = [0; 9];
        if self.stream.read_exact(&mut head).is_err() {
            return false;
        }
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        let id = u32::from_be_bytes(id) & 0x7fff_ffff;
        match kind {
            8 => {
                let more = u32::from_be_bytes(payload.try_into().unwrap()) as usize;
                *self.windows.entry(id).or_default() += more;
            }
            4 if flags == 0 => drop(self.stream.write_all(&frame(4, 1, 0, &[]))),
            6 if flags == 0 => drop(self.stream.write_all(&frame(6, 1, 0, &payload))),
            _ => self.came.push((kind, flags, id)),
        }
        true
    }

    /// Says whether the call has ended, by trailers or by a reset.
    fn is_over(&self, stream: u32) -> bool {
        self.came.iter().any(|(kind, flags, id)| *id == stream && (*kind == 3 || flags & 1 == 1))
    }

    fn is_answered(&self, stream: u32) -> bool {
        self.is_over(stream) || self.came.iter().any(|(kind, _, id)| (*kind, *id) == (0, stream))
    }

    /// Waits for the answer to a call, or for its end.
    #[track_caller]
    fn waits(&mut self, stream: u32, what: &str) {
        while !self.is_answered(stream) {
            assert!(self.read(), "{what}: the connection ended");
        }
    }
}

fn number(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encodes a field of bytes.
fn field(number_of: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    number(number_of << 3 | 2, &mut out);
    number(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

/// Encodes the report of a bucket with these pairs.
fn usage(pairs: &[(&[u8], &[u8])], allowed: u64, denied: u64) -> Vec<u8> {
    let pairs: Vec<u8> =
        pairs.iter().flat_map(|(key, value)| field(1, &[field(1, key), field(2, value)].concat())).collect();
    // A negative time, which must be ignored.
    let time = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let mut out = [field(1, &pairs), field(2, &time)].concat();
    for (key, value) in [(3 << 3, allowed), (4 << 3, denied)] {
        out.push(key);
        number(value, &mut out);
    }
    field(2, &out)
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// Encodes a report for the domain `q`.
fn report(usages: &[Vec<u8>]) -> Vec<u8> {
    framed(&[field(1, b"q"), usages.concat()].concat())
}

#[test]
fn whatever_is_reported_is_answered_or_ends_its_own_call() {
    let desk = Desk::with(FILE);
    let (mut serving, grpc) = serve(&desk, &[]);
    let mut seed = Seed::printed("whatever_is_reported");
    let one = |allowed, denied| usage(&[(b"k", b"v")], allowed, denied);
    let mut tried: Vec<(String, Vec<u8>)> = Vec::new();
    for (what, bytes) in [
        ("no message", framed(&[0xff; 64])),
        ("a length that is none", vec![0, 0xff, 0xff, 0xff, 0xff]),
        ("compressed", vec![1, 0, 0, 0, 0]),
        ("no domain", framed(&[])),
        ("an unknown domain", framed(&[field(1, b"nowhere"), one(1, 1)].concat())),
        ("a domain without end", framed(&field(1, &[b'd'; 100_000]))),
        ("a bucket without a name", report(&[field(2, b"")])),
        ("an empty pair", report(&[usage(&[(b"", b"")], 1, 1)])),
        ("a long key", report(&[usage(&[(&[b'k'; 300_000], b"v")], 1, 1)])),
        ("a long value", report(&[usage(&[(b"k", &[b'v'; 300_000])], 1, 1)])),
        ("a name in many parts", report(&[field(2, &field(1, &field(1, b"\x0a\x01k")).repeat(100_000))])),
        ("no text", report(&[usage(&[(b"k", b"\xff\xfe")], 1, 1)])),
        ("many pairs", report(&[usage(&vec![(&b"k"[..], &b"v"[..]); 20_000], 1, 1)])),
        ("as much as there is", report(&[one(u64::MAX, u64::MAX), one(u64::MAX, 1), one(1, u64::MAX)])),
        ("a negative number", report(&[one((-1_i64).cast_unsigned(), i64::MIN.cast_unsigned())])),
        ("a bucket longer than the message", framed(&[&field(1, b"q")[..], &[0x12, 0x7f, 1]].concat())),
        ("many empty buckets", framed(&[&field(1, b"q")[..], &field(2, b"").repeat(200_000)].concat())),
    ] {
        tried.push((what.to_owned(), bytes));
    }
    for at in 0..rounds(20, 5000) {
        let length = 1 + seed.below(200);
        let mut bytes = report(&[one(7, 8), usage(&[(b"k", &seed.bytes(length))], 1, 0)]);
        for _ in 0..1 + seed.below(4) {
            let at = 5 + seed.below(bytes.len() - 5);
            bytes[at] = seed.below(256) as u8;
        }
        tried.push((format!("bent bytes {at}"), bytes));
    }
    for (what, bytes) in &tried {
        let mut peer = Peer::new(grpc, 1 << 30);
        peer.begin(1, QUOTA);
        // The end of the call is answered too.
        peer.send(1, bytes, true);
        peer.waits(1, what);
        for (at, method) in (1..).zip(LIMITADOR) {
            let stream = 2 * at + 1;
            peer.begin(stream, &format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}"));
            peer.send(stream, bytes, true);
            peer.waits(stream, &format!("{method}: {what}"));
        }
    }
    is_served(grpc);
    // The counters do not wrap: they stay at the largest number.
    let page = serving.get("/metrics").body;
    let allowed =
        page.lines().find(|line| line.starts_with("tidegate_quota_allowed_requests_total")).unwrap();
    assert!(allowed.ends_with(&u64::MAX.to_string()), "{allowed}");
    serving.is_well();
}

#[test]
fn buckets_that_are_made_up_cost_bounded_memory() {
    let desk = Desk::with(FILE);
    let (mut serving, grpc) = serve(&desk, &[]);
    is_served(grpc);
    let before = serving.resident();
    // Buckets of 60 kB each, more than fit into a call.
    let long = vec![b'x'; 60_000];
    for call in 0..rounds(2, 20) {
        let mut peer = Peer::new(grpc, 1 << 30);
        peer.begin(1, QUOTA);
        for bucket in 0..100 {
            let name = format!("{call}.{bucket}");
            assert!(peer.send(1, &report(&[usage(&[(b"k", name.as_bytes()), (b"x", &long)], 1, 0)]), false));
        }
        peer.waits(1, "long pairs");
        is_served(grpc);
    }
    let more = serving.resident().saturating_sub(before);
    assert!(more < MORE, "long pairs: {more} KiB more");
    // New names in each call; after the call ends, their assignments count for ten minutes.
    for call in 0..rounds(2, 400) {
        let mut peer = Peer::new(grpc, 1 << 30);
        peer.begin(1, QUOTA);
        let usages = (0..rounds(2000, 8192))
            .map(|bucket| usage(&[(b"k", format!("{call}.{bucket}").as_bytes())], 1, 0));
        assert!(peer.send(1, &report(&usages.collect::<Vec<_>>()), false));
        peer.waits(1, "new names");
        is_served(grpc);
    }
    let more = serving.resident().saturating_sub(before);
    // Pools have 256 MiB, and the store has memory of its own.
    assert!(more < 10 * MORE, "new names: {more} KiB more");
    serving.is_well();
}

#[test]
fn answers_that_nobody_reads_and_calls_that_say_nothing_cost_bounded_memory() {
    let desk = Desk::with(FILE);
    let (mut serving, grpc) = serve(&desk, &[]);
    is_served(grpc);
    let before = serving.resident();
    // Each answer has 400 kB, and a connection holds at most 4 MiB of them.
    let usages = (0..1000).map(|bucket| usage(&[(b"k", format!("{bucket:0350}").as_bytes())], 1, 0));
    let bytes = report(&usages.collect::<Vec<_>>());
    let mut held = Vec::new();
    for _ in 0..rounds(1, 8) {
        let mut peer = Peer::new(grpc, 0);
        for at in 0..rounds(16, 256) as u32 {
            peer.begin(2 * at + 1, QUOTA);
            // A call is ended when its connection holds too much.
            peer.send(2 * at + 1, &bytes, false);
        }
        held.push(peer);
        is_served(grpc);
    }
    let more = serving.resident().saturating_sub(before);
    assert!(more < 2 * MORE, "answers: {more} KiB more");
    drop(held);
    // Calls that send nothing or half a message, and calls that are reset right after their report.
    let mut held = Vec::new();
    for _ in 0..rounds(4, 100) {
        let mut peer = Peer::new(grpc, 1 << 30);
        for at in 0..256 {
            peer.begin(2 * at + 1, QUOTA);
            if at % 2 == 0 {
                peer.send(2 * at + 1, &bytes[..40], false);
            }
        }
        held.push(peer);
        is_served(grpc);
        let mut peer = Peer::new(grpc, 1 << 30);
        for at in 0..50 {
            peer.begin(2 * at + 1, QUOTA);
            let small = report(&[usage(&[(b"k", b"v")], 1, 0)]);
            if !peer.send(2 * at + 1, &small, false) {
                break;
            }
            peer.stream.write_all(&frame(3, 0, 2 * at + 1, &[0, 0, 0, 8])).unwrap();
        }
    }
    let more = serving.resident().saturating_sub(before);
    assert!(more < 2 * MORE, "calls that say nothing: {more} KiB more");
    drop(held);
    is_served(grpc);
    serving.is_well();
}
