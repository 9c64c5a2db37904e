//! Callers ask for much and read nothing, or keep the server busy with long work. What the server holds for all of them
//! together is bounded, and others are answered meanwhile.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_testkit::free_port;

use crate::attack::grpc::{PREFACE, frame, head_of};
use crate::attack::raw::{JSON, connect};
use crate::attack::rounds;
use crate::attack::serving::{Desk, Serving};
use crate::attack::waiting::PATIENCE;

/// The most memory that callers who do not read may take, in KiB: what the manual promises, and what the allocator keeps.
const MORE: usize = 96 << 10;

/// A file of so many policies that all apply to every request.
fn policies(count: usize, by: &str) -> String {
    let mut file = "version: 1\npolicies:\n".to_owned();
    for number in 0..count {
        let _ = writeln!(file, "  - {{ name: policy-number-{number}, {by} limit: {{ rate: 1000000/s }} }}");
    }
    file
}

/// A batch of 26 KB, whose answer has 5 MB if twenty policies apply.
fn batch() -> String {
    let checks = vec![r#"{"attributes":{"a":"b"}}"#; 1000];
    format!("[{}]", checks.join(","))
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Opens a connection that has room for little, and sends as much of these bytes as the server takes at once.
fn never_reads(addr: SocketAddr, bytes: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let connecting = async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // The system takes little too, so that the server meets a peer that does not read soon.
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(addr).await.unwrap().into_std().unwrap()
    };
    let stream = runtime.block_on(connecting);
    let mut sent = 0;
    while sent < bytes.len() {
        match (&stream).write(&bytes.as_bytes()[sent..]) {
            Ok(more) => sent += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock && sent == 0 => {}
            Err(_) => break,
        }
    }
    stream
}

/// Returns the most memory that the process has ever had resident, in KiB.
fn peak(serving: &Serving) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", serving.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// Opens connections that send these bytes and never read, and returns what they cost at most, in KiB.
fn cost_of(serving: &mut Serving, addr: SocketAddr, count: usize, bytes: &str) -> usize {
    serving.is_well();
    let before = serving.resident();
    let held: Vec<_> = (0..count).map(|_| never_reads(addr, bytes)).collect();
    // Each goes to the next thread, so all threads have done before what came before.
    for _ in 0..20 {
        serving.is_well();
    }
    let cost = peak(serving).saturating_sub(before);
    drop(held);
    serving.is_well();
    cost
}

#[test]
fn batches_that_nobody_reads_cost_bounded_memory() {
    let desk = Desk::with(&policies(20, ""));
    let mut serving = desk.serve(&[]);
    let count = rounds(30, 400);
    let (addr, long) = (serving.addr, request("POST", "/v1/check/batch", &batch()));
    let cost = cost_of(&mut serving, addr, count, &long);
    assert!(cost < MORE, "{count} batches cost {cost} KiB");
}

/// In 512 MiB the program lives, whatever is asked and not read.
#[test]
fn with_little_memory_the_program_lives() {
    let desk = Desk::with(&policies(20, ""));
    // Address space, of which threads and code take a part.
    let script = "ulimit -v 786432; MALLOC_ARENA_MAX=2 exec \"$0\" serve --http 127.0.0.1:0 -c p.yaml";
    let mut serving = Serving::start(desk.shell(script));
    let long = request("POST", "/v1/check/batch", &batch());
    let held: Vec<_> = (0..rounds(120, 1000)).map(|_| never_reads(serving.addr, &long)).collect();
    for _ in 0..20 {
        serving.is_well();
    }
    drop(held);
}

/// A batch that is read is answered whole, however long, and in order.
#[test]
fn a_batch_that_is_read_is_answered_whole() {
    let serving = Desk::with(&policies(20, "")).serve(&[]);
    let checks: Vec<String> =
        (1..=1000).map(|cost| format!(r#"{{"attributes":{{"a":"b"}},"cost":{cost}}}"#)).collect();
    let answer = serving.ask("POST", "/v1/check/batch", &[JSON], &format!("[{}]", checks.join(",")));
    assert_eq!(answer.status, 200);
    let answers = answer.json();
    let answers = answers.as_array().unwrap();
    for one in answers {
        assert_eq!(
            (one["status"].as_u64(), one["policies"].as_array().unwrap().len()),
            (Some(200), 20),
            "{one}"
        );
    }
    let costs: Vec<_> = answers.iter().map(|one| one["policies"][0]["cost"].as_u64().unwrap()).collect();
    assert!((1..=1000).eq(costs), "in order");
}

/// Reads an answer of any length and drops it.
fn read_all(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut end, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    while !end.ends_with(b"\r\n0\r\n\r\n") {
        let read = stream.read(&mut piece)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        end.extend_from_slice(&piece[..read]);
        end.drain(..end.len().saturating_sub(7));
    }
    Ok(())
}

/// Sets the flag when dropped, however the test ends; otherwise its threads would never end.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "how long a real server takes is what is tested")]
fn beside_sixteen_that_ask_for_much_others_are_answered() {
    let desk = Desk::with(&policies(20, ""));
    let mut serving = desk.serve(&[]);
    let (addr, done, answered) = (serving.addr, AtomicBool::new(false), AtomicUsize::new(0));
    let long = request("POST", "/v1/check/batch", &batch());
    let worst = std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for _ in 0..16 {
            scope.spawn(|| {
                let mut stream = connect(addr);
                while !done.load(Ordering::Relaxed) {
                    let asked = stream.write_all(long.as_bytes()).and_then(|()| read_all(&mut stream));
                    answered.fetch_add(usize::from(asked.is_ok()), Ordering::Relaxed);
                    if asked.is_err() {
                        break;
                    }
                }
            });
        }
        let mut worst = Duration::ZERO;
        // Until each of the sixteen may have been answered.
        while answered.load(Ordering::Relaxed) < rounds(16, 200) {
            let asked = Instant::now();
            serving.is_well();
            worst = worst.max(asked.elapsed());
            assert!(worst < PATIENCE);
        }
        worst
    });
    // Without optimisation a slice takes ten times its time, and two connections are made for each of these.
    assert!(worst < Duration::from_millis(1500), "somebody waited for {worst:?}");
}

#[test]
fn pages_that_nobody_reads_cost_bounded_memory() {
    let desk = Desk::with(&policies(rounds(60, 1000), "by: [client.ip],"));
    let mut serving = desk.serve(&[]);
    let pages = ["/v1/policies", "/metrics", "/openapi.json", "/v1/keys/top", "/config.schema.json"];
    let pipeline = pages.map(|page| request("GET", page, "")).concat().repeat(20);
    let count = rounds(30, 600);
    let addr = serving.addr;
    let cost = cost_of(&mut serving, addr, count, &pipeline);
    assert!(cost < MORE, "{count} pipelines cost {cost} KiB");
    // With more than fit, the longest wait is cut, and it is said so.
    assert!(serving.get("/metrics").body.contains("tidegate_connections_cut_total"));
}

#[test]
fn pipelines_of_redis_clients_that_nobody_reads_cost_bounded_memory() {
    let desk = Desk::with(&policies(20, ""));
    let resp = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut serving = desk.serve(&["--resp", &resp.to_string()]);
    let commands = "MULTI\r\n".to_owned() + &"TG.CHECK * a b\r\n".repeat(400) + "EXEC\r\n";
    let count = rounds(60, 1000);
    let cost = cost_of(&mut serving, resp, count, &commands.repeat(rounds(3, 50)));
    assert!(cost < MORE, "{count} pipelines cost {cost} KiB");
}

/// A call of Envoy's that is as long as calls may be, with policies that read all of it.
#[test]
fn a_call_that_a_policy_cannot_read_whole_is_over_the_limit() {
    let file = "version: 1
policies:
  - name: whole
    by: [rls.call]
    limit: { rate: 1000000/s }
";
    let desk = Desk::with(file);
    let (mut serving, grpc) = crate::attack::grpc::serve(&desk, &[]);
    assert_eq!(overall(grpc, &call(2, 2, 100)), 1, "an ordinary call");
    assert_eq!(
        overall(grpc, &call(32, 4, 8000)),
        2,
        "each value may be judged, and all of them are too long"
    );
    serving.is_well();
}

/// Regression: over gRPC, only each connection had a bound.
#[test]
fn answers_and_messages_over_grpc_are_bounded_over_all_connections() {
    let desk = Desk::with(&policies(1, "by: [key],").replace("policy-number", &"n".repeat(120)));
    let (mut serving, grpc) = crate::attack::grpc::serve(&desk, &[]);
    serving.is_well();
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // Answers with details for 32 descriptors, with a window of 0.
    let shut = [&PREFACE[..PREFACE.len() - 9], &frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    let head = head_of(path, &[("x-tidegate-details", "headers, decision")]);
    let body = call(32, 1, 20);
    let calls =
        (0..200).flat_map(|at| [frame(1, 4, 2 * at + 1, &head), frame(0, 1, 2 * at + 1, &body)].concat());
    let unread: Vec<u8> = shut.into_iter().chain(calls).collect();
    // Messages of which the last byte never comes, as much as the server's windows let in.
    let prefix = [&[0][..], &(1_000_000_u32).to_be_bytes()].concat();
    let unfinished = |stream: &mut TcpStream| {
        let (mut sent, mut window) = (0, 65_535_usize);
        let (mut streams, mut at) = ([65_535_usize; 4], 0);
        let mut bytes = PREFACE.to_vec();
        for at in 0..4 {
            bytes.extend([frame(1, 4, 2 * at + 1, &head), frame(0, 0, 2 * at + 1, &prefix)].concat());
        }
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        stream.write_all(&bytes)?;
        while sent < 3_900_000 {
            if window > 16_500 && streams[at] > 16_500 {
                let piece = frame(0, 0, 2 * u32::try_from(at).unwrap() + 1, &[0; 16_000]);
                stream.write_all(&piece)?;
                (sent, window) = (sent + 16_000, window - 16_000);
                streams[at] -= 16_000;
                at = (at + 1) % 4;
                continue;
            }
            let mut head = [0; 9];
            stream.read_exact(&mut head)?;
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload)?;
            if head[3] == 8 {
                let more = u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]) as usize;
                match head[8] {
                    0 => window += more,
                    which => streams[usize::from(which / 2)] += more,
                }
            }
        }
        Ok::<_, std::io::Error>(())
    };
    let before = serving.resident();
    let count = rounds(50, 200);
    let mut held = Vec::new();
    for _ in 0..count {
        let mut one = connect(grpc);
        let _ = one.write_all(&unread);
        let mut other = connect(grpc);
        // It may be cut meanwhile.
        let _ = unfinished(&mut other);
        held.extend([one, other]);
    }
    crate::attack::grpc::is_served(grpc);
    let cost = peak(&serving).saturating_sub(before);
    assert!(cost < MORE, "{count} connections cost {cost} KiB");
    let metrics = serving.get("/metrics").body;
    let cut =
        metrics.lines().find(|line| line.starts_with("tidegate_connections_cut_total{reason=\"unread\"}"));
    assert!(cut.is_some_and(|line| !line.ends_with(" 0")), "{cut:?}");
    drop(held);
    serving.is_well();
}

/// Pipelines of one connection are answered in turns. Regression: nobody else was answered before 976 requests were.
#[test]
#[allow(clippy::disallowed_methods, reason = "how long a real server takes is what is tested")]
fn beside_long_pipelines_others_are_answered() {
    let desk = Desk::with(&policies(20, ""));
    let (mut serving, grpc) = crate::attack::grpc::serve(&desk, &[]);
    serving.is_well();
    let ask = request("POST", "/v1/check", r#"{"attributes":{"a":"b"}}"#);
    let peek = request("POST", "/v1/peek", r#"{"attributes":{"a":"b"}}"#);
    let explain = request("POST", "/v1/explain", r#"{"attributes":{"a":"b"}}"#);
    let head = head_of("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", &[]);
    let body = call(32, 1, 20);
    let calls =
        (0..250).flat_map(|at| [frame(1, 4, 2 * at + 1, &head), frame(0, 1, 2 * at + 1, &body)].concat());
    let window = |more: &[u8]| [PREFACE, &frame(8, 0, 0, &[0x3f, 0, 0, 0]), more].concat();
    let calls: Vec<u8> = calls.collect();
    for (what, addr, bytes) in [
        ("checks", serving.addr, ask.repeat(2000).into_bytes()),
        ("looks", serving.addr, peek.repeat(2000).into_bytes()),
        ("explanations", serving.addr, explain.repeat(300).into_bytes()),
        ("calls", grpc, window(&calls)),
    ] {
        let mut sender = connect(addr);
        let (mut reader, ends) = (sender.try_clone().unwrap(), sender.try_clone().unwrap());
        let worst = std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut piece = vec![0; 1 << 16];
                while reader.read(&mut piece).is_ok_and(|read| read > 0) {}
            });
            let sending = scope.spawn(|| sender.write_all(&bytes).is_ok());
            let mut worst = Duration::ZERO;
            for _ in 0..rounds(40, 400) {
                let asked = Instant::now();
                assert_eq!(serving.get("/livez").status, 200);
                worst = worst.max(asked.elapsed());
            }
            assert!(sending.join().unwrap(), "{what}");
            let _ = ends.shutdown(std::net::Shutdown::Both);
            worst
        });
        println!("beside {what}: {worst:?}");
        // Without optimisation a turn takes ten times its time.
        assert!(worst < Duration::from_millis(400), "beside {what} somebody waited for {worst:?}");
        serving.is_well();
    }
}

/// Encodes a field of a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        field.push(u8::try_from(length % 0x80).unwrap() | 0x80);
        length /= 0x80;
    }
    field.push(u8::try_from(length).unwrap());
    field.extend_from_slice(bytes);
    field
}

/// Makes the body of a call with so many descriptors, entries in each, and bytes in each value.
fn call(descriptors: usize, entries: usize, bytes: usize) -> Vec<u8> {
    let entry = [field(1, b"key"), field(2, &vec![b'%'; bytes])].concat();
    let descriptor = field(1, &entry).repeat(entries);
    let message = [field(1, b"d"), field(2, &descriptor).repeat(descriptors)].concat();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &message].concat()
}

/// Sends a call within the windows that the server grants. Returns the overall code of its answer.
fn overall(grpc: SocketAddr, body: &[u8]) -> u8 {
    let mut stream = connect(grpc);
    let head = head_of("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", &[]);
    stream.write_all(&[PREFACE, &frame(1, 4, 1, &head)].concat()).unwrap();
    let (mut sent, mut windows) = (0, [65_535_usize; 2]);
    loop {
        let room = windows[0].min(windows[1]).min(16_384).min(body.len() - sent);
        if room > 0 {
            let last = u8::from(sent + room == body.len());
            stream.write_all(&frame(0, last, 1, &body[sent..sent + room])).unwrap();
            sent += room;
            windows = windows.map(|window| window - room);
            continue;
        }
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).unwrap();
        match (head[3], head[8]) {
            (8, which @ 0..=1) => {
                let more = u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]);
                windows[usize::from(which)] += more as usize;
            }
            // The first field of the answer, behind the prefix of a message.
            (0, 1) if payload.len() > 6 => {
                assert_eq!(payload[5], 8, "{payload:?}");
                return payload[6];
            }
            (3 | 7, _) => panic!("ended: {head:?} {payload:?}"),
            _ => {}
        }
    }
}
