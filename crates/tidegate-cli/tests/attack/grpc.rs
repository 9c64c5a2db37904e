//! A stranger at the gRPC door: floods of frames, endless bodies, thousands of connections. Memory must stay bounded,
//! and honest callers of this and the other doors must be served meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::attack::raw::connect;
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving};

const FILE: &str = "version: 1
policies:
  - name: witness
    limit: { rate: 1000000/s }
";

/// The HTTP/2 connection preface with settings.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A call of the domain `d` with the entry `a: b`.
const CALL: &[u8] = b"\0\0\0\0\x0d\x0a\x01d\x12\x08\x0a\x06\x0a\x01a\x12\x01b";

/// The most additional memory that an attack may take, in KiB.
pub(crate) const MORE: usize = 64 << 10;

pub(crate) fn serve(desk: &Desk, arguments: &[&str]) -> (Serving, SocketAddr) {
    let serving = desk.serve(&[&["--grpc", "127.0.0.1:0"], arguments].concat());
    let line = serving.hears("over gRPC on ");
    let grpc = line.rsplit(' ').next().unwrap().parse().unwrap();
    (serving, grpc)
}

/// Builds one frame from its type, flags, stream and payload.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The head of a call, without indexed headers, so that each head is self-contained.
fn head() -> Vec<u8> {
    head_of("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", &[])
}

/// The head of a call of this method, with additional headers.
pub(crate) fn head_of(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    // POST, http.
    let mut block = vec![0x83, 0x86];
    for (name, value) in [&[(":path", path), ("content-type", "application/grpc")], more].concat() {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    block
}

fn begin(stream: u32) -> Vec<u8> {
    frame(1, 4, stream, &head())
}

/// Sends as many of these bytes as the server accepts within a second: once it stops reading, the write would block
/// forever.
fn pour(grpc: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(grpc);
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = stream.write_all(PREFACE).and_then(|()| stream.write_all(bytes));
    stream
}

/// Requires that a valid call is answered with OK.
#[track_caller]
pub(crate) fn is_served(grpc: SocketAddr) {
    assert!(passes(grpc, CALL));
}

/// Returns whether a call, as its framed message, is answered with OK.
#[track_caller]
pub(crate) fn passes(grpc: SocketAddr, call: &[u8]) -> bool {
    let mut stream = connect(grpc);
    stream.write_all(&[PREFACE, &begin(1), &frame(0, 1, 1, call)].concat()).unwrap();
    let mut read = Vec::new();
    let mut piece = [0; 4096];
    // The overall code of the answer, and the status of the first descriptor.
    let code = |read: &[u8]| {
        let answer = read.windows(3).find(|bytes| matches!(bytes, [8, 1 | 2, 0x12]))?;
        Some(answer[1])
    };
    loop {
        if let Some(code) = code(&read) {
            return code == 1;
        }
        let more = stream.read(&mut piece).unwrap();
        assert_ne!(more, 0, "closed after {read:?}");
        read.extend_from_slice(&piece[..more]);
    }
}

/// Builds the framed message of a call of the domain `d` with one descriptor of short entries.
pub(crate) fn call_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let part = |tag: u8, bytes: &[u8]| [&[tag, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    let entry = |(key, value): &(&str, &str)| {
        part(0x0a, &[part(0x0a, key.as_bytes()), part(0x12, value.as_bytes())].concat())
    };
    let descriptor: Vec<u8> = entries.iter().flat_map(entry).collect();
    let message = [part(0x0a, b"d"), part(0x12, &descriptor)].concat();
    [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &message[..]].concat()
}

/// A proxy reports what was used after the answer, so the reports are whatever its clients make them. However large and
/// many they are, they are counted, the limit refuses from then on, and nobody else is concerned.
#[test]
fn reports_of_any_size_are_counted_and_never_free() {
    const TOKENS: &str = "version: 1
policies:
  - name: tokens
    by: [a]
    absent: skip
    limit: { rate: 1000/day }
    charge: always
";
    let desk = Desk::with(TOKENS);
    let (mut serving, grpc) = serve(&desk, &[]);
    // A call of the domain `d` with one descriptor `a: value`, and its own number of units.
    let call = |value: u8, mut units: u64| {
        let mut number = vec![8];
        while units > 0x7f {
            number.push(units as u8 | 0x80);
            units >>= 7;
        }
        number.push(units as u8);
        let size = number.len() as u8;
        let mut message = vec![0, 0, 0, 0, 15 + size, 0x0a, 1, b'd', 0x12, 10 + size];
        message.extend([0x0a, 6, 0x0a, 1, b'a', 0x12, 1, value, 0x1a, size]);
        message.extend(number);
        message
    };
    assert!(passes(grpc, &call(b'x', 0)));
    assert!(passes(grpc, &call(b'x', 900)));
    assert!(passes(grpc, &call(b'x', 0)), "100 are left");
    assert!(!passes(grpc, &call(b'x', 101)));
    assert!(!passes(grpc, &call(b'x', 0)), "the report counts");
    for units in [1, 1 << 40, u64::MAX, u64::MAX, u64::MAX - 1, 1] {
        assert!(!passes(grpc, &call(b'x', units)), "{units}");
        assert!(!passes(grpc, &call(b'x', 0)), "{units}");
    }
    assert!(passes(grpc, &call(b'y', 1000)) && !passes(grpc, &call(b'y', 0)));
    let metrics = serving.get("/metrics").body;
    assert!(metrics.contains(&format!(
        "tidegate_settled_units_total{{policy=\"tokens\",fate=\"owed\"}} {}",
        // No report counts for more than the largest cost.
        101 + 1 + (1_u64 << 40) + 3 * (1 << 60) + 1
    )));
    serving.is_well();
}

/// Regression: of the number for the whole call, the bits above the 32nd were dropped, so 2^32 units cost one.
#[test]
fn a_number_of_units_that_does_not_fit_is_not_taken_for_a_small_one() {
    let desk = Desk::with("version: 1\npolicies:\n  - { name: all, limit: { rate: 1000/day } }\n");
    let (_serving, grpc) = serve(&desk, &[]);
    let call = |units: &[u8]| {
        let mut call = CALL.to_vec();
        call.push(0x18);
        call.extend_from_slice(units);
        call[4] = u8::try_from(call.len() - 5).unwrap();
        call
    };
    assert!(passes(grpc, &call(&[5])));
    for units in [&[0x80, 0x80, 0x80, 0x80, 0x10][..], &[0x85, 0x80, 0x80, 0x80, 0x10], &[0xff; 9]] {
        let units = if units.len() == 9 { [units, &[1]].concat() } else { units.to_vec() };
        assert!(!passes(grpc, &call(&units)), "{units:x?}");
    }
    assert!(passes(grpc, &call(&[0xe3, 7])), "995 are left");
}

#[test]
fn floods_of_frames_cost_bounded_memory_and_nobody_else() {
    let desk = Desk::with(FILE);
    let (mut serving, grpc) = serve(&desk, &[]);
    is_served(grpc);
    let before = serving.resident();
    let many = rounds(50_000, 2_000_000);
    let streams = || (0..u32::try_from(many / 2).unwrap()).map(|at| 2 * at + 1);
    let reset = |stream| frame(3, 0, stream, &[0, 0, 0, 8]);
    // A header of 4,000 bytes, in an endless list.
    let endless = [&[0x00, 0x01, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000]].concat();
    for (what, flood) in [
        ("reset at once", streams().flat_map(|stream| [begin(stream), reset(stream)].concat()).collect()),
        ("calls without an end", streams().flat_map(begin).collect()),
        ("settings", frame(4, 0, 0, &[]).repeat(many)),
        ("settings that change", frame(4, 0, 0, &[0, 4, 0, 0, 255, 255]).repeat(many)),
        ("pings", frame(6, 0, 0, &[0; 8]).repeat(many)),
        ("empty data", [begin(1), frame(0, 0, 1, &[]).repeat(many)].concat()),
        ("data byte by byte", [begin(1), frame(0, 0, 1, &[0]).repeat(many)].concat()),
        ("windows", frame(8, 0, 0, &[0, 0, 0, 1]).repeat(many)),
        ("a window too large", frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(3)),
        (
            "headers without end",
            [frame(1, 0, 1, &head()), frame(9, 0, 1, &endless).repeat(many / 50)].concat(),
        ),
        ("frames that there are not", frame(0xee, 0xff, 1, &[1; 64]).repeat(many)),
        ("a promise", frame(5, 4, 1, &[0, 0, 0, 2]).repeat(10)),
    ] {
        let flood: Vec<u8> = flood;
        let held = pour(grpc, &flood);
        is_served(grpc);
        let more = serving.resident().saturating_sub(before);
        assert!(more < MORE, "{what}: {more} KiB more");
        drop(held);
    }
    serving.is_well();
}

#[test]
fn messages_that_never_end_and_answers_that_nobody_reads_cost_bounded_memory() {
    let desk = Desk::with(FILE);
    let (mut serving, grpc) = serve(&desk, &[]);
    is_served(grpc);
    let before = serving.resident();
    // 200 interleaved calls of 5 MB each on one connection.
    let mut held = Vec::new();
    for _ in 0..rounds(2, 20) {
        let mut bytes: Vec<u8> = (0..200).flat_map(|at| begin(2 * at + 1)).collect();
        for _ in 0..10 {
            bytes.extend((0..200).flat_map(|at| frame(0, 0, 2 * at + 1, &[0; 16_000])));
        }
        held.push(pour(grpc, &bytes));
        is_served(grpc);
    }
    let more = serving.resident().saturating_sub(before);
    assert!(more < MORE, "bodies: {more} KiB more");
    drop(held);
    // Endless calls whose answers are not read: their window is closed, and the socket is not read.
    let shut = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let calls = |from: u32| {
        (from..from + 20_000).flat_map(|at| [begin(2 * at + 1), frame(0, 1, 2 * at + 1, CALL)].concat())
    };
    let unread = pour(grpc, &[shut, calls(0).collect()].concat());
    is_served(grpc);
    let more = serving.resident().saturating_sub(before);
    assert!(more < MORE, "answers: {more} KiB more");
    drop(unread);
    serving.is_well();
}

#[test]
fn bytes_that_are_no_frames_end_their_own_connection() {
    let desk = Desk::with(FILE);
    let (mut serving, grpc) = serve(&desk, &[]);
    let mut seed = Seed::printed("bytes_that_are_no_frames");
    for _ in 0..rounds(200, 20_000) {
        let length = 1 + seed.below(4096);
        let mut bytes = seed.bytes(length);
        match seed.below(4) {
            // These reach more of the parser: frames of all kinds on few streams, and calls with any message.
            0 => {
                let (kind, flags) = (seed.below(11) as u8, seed.below(64) as u8);
                bytes = frame(kind, flags, seed.below(8) as u32, &bytes);
            }
            1 => bytes = [begin(1), frame(0, 1, 1, &bytes)].concat(),
            2 => {
                let framed = [&[0][..], &(length as u32).to_be_bytes(), &bytes].concat();
                bytes = [begin(1), frame(0, 1, 1, &framed)].concat();
            }
            _ => {}
        }
        drop(pour(grpc, &bytes));
    }
    is_served(grpc);
    serving.is_well();
}

#[test]
fn thousands_of_connections_that_do_nothing_keep_nobody_out() {
    let desk = Desk::with(FILE);
    let (mut serving, grpc) = serve(&desk, &["--connections", "200"]);
    is_served(grpc);
    let mut held = Vec::new();
    for at in 0..rounds(800, 5000) {
        let mut stream = connect(grpc);
        // Some send nothing, some send a valid preface and stay idle, some begin a call and abandon it.
        let said = match at % 3 {
            0 => Vec::new(),
            1 => PREFACE.to_vec(),
            _ => [PREFACE, &begin(1)[..20]].concat(),
        };
        let _ = stream.write_all(&said);
        held.push(stream);
        if at % 100 == 0 {
            is_served(grpc);
        }
    }
    is_served(grpc);
    serving.is_well();
}
