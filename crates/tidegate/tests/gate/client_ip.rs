//! Finding the client behind proxies: which addresses are trusted, which are not, and how errors are reported.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::IpAddr;

use tidegate::policy::{ClientIp, ClientIpError, ForwardHeader, FoundIp, IpSource, keyed_network};

fn finder(header: &str, trusted: &[&str]) -> ClientIp {
    ClientIp {
        trusted_proxies: trusted.iter().map(|network| network.parse().unwrap()).collect(),
        header: ForwardHeader::named(header),
        ..ClientIp::default()
    }
}

fn find(ours: &ClientIp, peer: &str, lines: &[&[u8]]) -> Result<FoundIp, ClientIpError> {
    ours.find(ip(peer), lines.iter().copied())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_rightmost_untrusted_hop_is_the_client() {
    let ours = finder("X-Forwarded-For", &["10.0.0.0/8", "fd00::/8"]);
    for (peer, lines, client) in [
        // not from a proxy: the caller itself wrote the header
        ("203.0.113.9", &["1.1.1.1"][..], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        // a header sent by the caller only appears further left
        ("10.0.0.1", &["127.0.0.1, 10.9.9.9, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["evil\", 203.0.113.9"], "203.0.113.9"),
        // all trusted: the leftmost address
        ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        // ports, brackets, mapped addresses, zones
        ("10.0.0.1", &["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", &["[2001:db8::7]:443"], "2001:db8::7"),
        ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ("fd00::1", &["fe80::1%eth0"], "fe80::1"),
        // a translator's addresses are the IPv4 addresses inside, but never those of private networks
        ("64:ff9b::203.0.113.9", &["1.1.1.1"], "203.0.113.9"),
        ("10.0.0.1", &["64:ff9b::203.0.113.9"], "203.0.113.9"),
        ("64:ff9b::10.0.0.1", &["1.1.1.1"], "64:ff9b::10.0.0.1"),
        ("64:ff9b::127.0.0.1", &["1.1.1.1"], "64:ff9b::127.0.0.1"),
        ("64:ff9b::100.64.0.1", &["1.1.1.1"], "64:ff9b::100.64.0.1"),
        ("64:ff9b:1::203.0.113.9", &["1.1.1.1"], "64:ff9b:1::203.0.113.9"),
        // entries to the left of an untrusted hop are ignored
        ("10.0.0.1", &["", "unknown,,", ", \"203.0.113.9, 203.0.113.9"], "203.0.113.9"),
    ] {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        assert_eq!(find(&ours, peer, &lines).unwrap().address, ip(client), "{peer} {lines:?}");
    }
    let beyond_ascii: &[&[u8]] = &[b"\xff\xfe", b"\xff, 203.0.113.9"];
    assert_eq!(find(&ours, "10.0.0.1", beyond_ascii).unwrap().address, ip("203.0.113.9"));
    let huge = format!("{}203.0.113.9{}", "1.1.1.1, ".repeat(7000), ", 10.0.0.2".repeat(100_000));
    assert_eq!(find(&ours, "10.0.0.1", &[huge.as_bytes()]).unwrap().address, ip("203.0.113.9"));
}

/// Regression: a caller sent `X-Forwarded-For: \xff` and was taken for the proxy, which no deny list or limit matched.
#[test]
fn what_a_trusted_proxy_leaves_unsaid_is_an_error_and_never_the_proxy() {
    let ours = finder("X-Forwarded-For", &["10.0.0.0/8", "fd00::/8"]);
    for line in [
        &b"203.0.113.9, unknown, 10.0.0.2"[..],
        b"203.0.113.9, ",
        b"203.0.113.9, , 10.0.0.2",
        b"203.0.113.9, \xff",
        b"\xff203.0.113.9",
        b"203.0.113.999",
        b"203.0.113.9:port",
        b"203.0.113.9:",
        b"0203.0.113.9",
        b"[2001:db8::7",
        b"unix:",
        b"",
        b"\"203.0.113.9\"",
    ] {
        let error = find(&ours, "10.0.0.1", &[line]).unwrap_err();
        assert!(matches!(error, ClientIpError::Unreadable { .. }), "{error}");
    }
    let error = find(&ours, "10.0.0.1", &[b"203.0.113.9, un\x01known, 10.0.0.2"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "x-forwarded-for: \"un\\u{1}known\", entry 2 from the right, is not an address, so the caller of 10.0.0.2 is \
         unknown; trusted proxies must write addresses"
    );
    let error = find(&ours, "10.0.0.1", &[]).unwrap_err();
    assert!(matches!(error, ClientIpError::Missing { .. }), "{error}");
}

#[test]
fn forwarded_is_read_by_its_own_grammar() {
    let ours = finder("forwarded", &["10.0.0.0/8"]);
    for (line, client) in [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=\"[2001:db8:cafe::17]:4711\";proto=https;by=10.0.0.1", "2001:db8:cafe::17"),
        ("for=1.1.1.1, for=203.0.113.9;host=\"a,b\", for=10.0.0.2", "203.0.113.9"),
        // a quoted value may contain commas, semicolons and escaped quotes, which the caller chose
        ("host=\"a;for=1.1.1.1;b\";for=203.0.113.9", "203.0.113.9"),
        ("for=203.0.113.9;host=\"a\\\", for=1.1.1.1;x=\\\"\"", "203.0.113.9"),
        ("for=203.0.113.9;host=\"a\\\\\"", "203.0.113.9"),
        // an unclosed quote or backslash on the left does not swallow the entries to its right
        ("for=\"1.1.1.1, for=203.0.113.9", "203.0.113.9"),
        ("for=\"1.1.1.1\\, for=\"[2001:db8::7]:443\"", "2001:db8::7"),
    ] {
        assert_eq!(find(&ours, "10.0.0.1", &[line.as_bytes()]).unwrap().address, ip(client), "{line}");
    }
    for line in [
        "for=203.0.113.9, for=_hidden",
        "for=203.0.113.9, for=unknown;by=10.0.0.1",
        "for=203.0.113.9, proto=https",
        "for=203.0.113.9, for=\"10.0.0.7",
        "for=203.0.113.9;for=1.1.1.1",
        "for=203.0.113.9;junk",
        "for=203.0.113.9;host=\"a",
    ] {
        let found = find(&ours, "10.0.0.1", &[line.as_bytes()]);
        assert!(matches!(found, Err(ClientIpError::Unreadable { .. })), "{line}: {found:?}");
    }
}

#[test]
fn a_single_value_header_that_comes_twice_is_not_believed() {
    let ours = finder("CF-Connecting-IP", &["10.0.0.0/8"]);
    assert_eq!(find(&ours, "10.0.0.1", &[b"203.0.113.9"]).unwrap().address, ip("203.0.113.9"));
    let twice = find(&ours, "10.0.0.1", &[b"1.1.1.1", b"203.0.113.9"]).unwrap_err();
    assert!(matches!(twice, ClientIpError::Repeated { lines: 2, .. }), "{twice}");
    assert!(find(&ours, "10.0.0.1", &[b"1.1.1.1, 203.0.113.9"]).is_err());
    assert!(find(&ours, "10.0.0.1", &[b"203.0.113.9\xff"]).is_err());
    assert!(find(&ours, "10.0.0.1", &[]).is_err());
    assert_eq!(find(&ours, "198.51.100.1", &[b"203.0.113.9"]).unwrap().address, ip("198.51.100.1"));
}

#[test]
fn the_way_it_was_found_is_told() {
    let ours = finder("x-forwarded-for", &["10.0.0.0/8"]);
    let found = find(&ours, "10.0.0.1", &[b"203.0.113.9, 10.0.0.2"]).unwrap();
    assert_eq!(found.from.to_string(), "from x-forwarded-for hop 2, trusted 10.0.0.0/8");
    assert_eq!(find(&ours, "203.0.113.9", &[]).unwrap().from, IpSource::Peer);
}

#[test]
fn one_customer_is_one_key() {
    let key = |text: &str| keyed_network(ip(text), 64).to_string();
    assert_eq!(key("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    assert_eq!(key("2001:db8:1:2::ffff"), "2001:db8:1:2::/64");
    assert_eq!(key("203.0.113.9"), "203.0.113.9/32");
    assert_eq!(key("::ffff:203.0.113.9"), "203.0.113.9/32");
    assert_eq!(keyed_network(ip("2001:db8::1"), 0).to_string(), "::/1", "a prefix of 0 is read as 1");
}
