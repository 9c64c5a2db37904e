//! `serve` with a file of another rate limiter: the real program, called over gRPC as by Envoy.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::verbs::Desk;
use crate::verbs::serve::{PATIENCE, Serving};

/// A window of a year, so that no new one begins during the test.
const TREE: &str = "domain: d
descriptors:
  - key: a
    rate_limit: { unit: year, requests_per_unit: 2, name: n }
";

/// The HTTP/2 connection preface with settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A call of the domain `d` with the entry `a: b`.
const CALL: &[u8] = b"\0\0\0\0\x0d\x0a\x01d\x12\x08\x0a\x06\x0a\x01a\x12\x01b";

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, 1]);
    frame.extend_from_slice(payload);
    frame
}

/// Returns the overall code of the answer to the call.
fn asked(grpc: SocketAddr) -> u8 {
    // POST, http, and two headers that are not indexed.
    let mut head = vec![0x83, 0x86];
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for (name, value) in [(":path", path), ("content-type", "application/grpc")] {
        head.push(0);
        for text in [name, value] {
            head.push(u8::try_from(text.len()).unwrap());
            head.extend(text.bytes());
        }
    }
    let mut stream = TcpStream::connect_timeout(&grpc, PATIENCE).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&[PREFACE, &frame(1, 4, &head), &frame(0, 1, CALL)].concat()).unwrap();
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let more = stream.read(&mut piece).unwrap();
        assert_ne!(more, 0, "closed after {read:?}");
        read.extend_from_slice(&piece[..more]);
        // The overall code, and the first status.
        if let Some(found) = read.windows(3).find(|bytes| bytes[0] == 8 && bytes[2] == 0x12) {
            return found[1];
        }
    }
}

#[test]
fn a_tree_of_descriptors_is_served_beside_envoy() {
    let desk = Desk::new();
    desk.write("theirs.yaml", TREE);
    let serving = Serving::start(
        &desk,
        &["--from-envoy", "theirs.yaml", "--grpc", "127.0.0.1:0", "--store-path", "counters"],
    );
    let line = serving.hears("over gRPC on ");
    let grpc = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!([asked(grpc), asked(grpc), asked(grpc)], [1, 1, 2]);
    // An edited file is reloaded; a mistake leaves the old policies in force.
    desk.write("theirs.yaml", TREE.replace(": 2", ": 4"));
    serving.signal("HUP");
    serving.hears("reloaded");
    // The refused call was counted too, as envoyproxy/ratelimit does.
    assert_eq!([asked(grpc), asked(grpc), asked(grpc)], [1, 2, 2]);
    desk.write("theirs.yaml", TREE.replace("year", "years"));
    serving.signal("HUP");
    let refused = serving.hears("unknown unit");
    assert!(refused.contains("theirs.yaml:4:25"), "{refused}");
    assert_eq!(asked(grpc), 2);
}
