//! Finding the client behind proxies: what is believed, what is not, and how it is told.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::IpAddr;

use tidegate::policy::{ClientIp, ForwardHeader, IpSource, keyed_network};

fn finder(header: &str, trusted: &[&str]) -> ClientIp {
    ClientIp {
        trusted_proxies: trusted.iter().map(|network| network.parse().unwrap()).collect(),
        header: ForwardHeader::named(header),
        ..ClientIp::default()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_rightmost_untrusted_hop_is_the_client() {
    let ours = finder("X-Forwarded-For", &["10.0.0.0/8", "fd00::/8"]);
    for (peer, lines, client) in [
        // no proxy: the header is the caller's own invention
        ("203.0.113.9", &["1.1.1.1"][..], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        // a caller who sends a header of their own only moves it to the left
        ("10.0.0.1", &["127.0.0.1, 10.9.9.9, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["evil\", 203.0.113.9"], "203.0.113.9"),
        // all trusted: the one furthest out
        ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        // ports, brackets, mapped addresses, zones
        ("10.0.0.1", &["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", &["[2001:db8::7]:443"], "2001:db8::7"),
        ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ("fd00::1", &["fe80::1%eth0"], "fe80::1"),
        // malformed hops end the walk at the last good one
        ("10.0.0.1", &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", &["203.0.113.9, "], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.999"], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.9:port"], "10.0.0.1"),
        ("10.0.0.1", &[], "10.0.0.1"),
    ] {
        assert_eq!(ours.find(ip(peer), lines.iter().copied()).address, ip(client), "{peer} {lines:?}");
    }
}

#[test]
fn forwarded_is_read_by_its_own_grammar() {
    let ours = finder("forwarded", &["10.0.0.0/8"]);
    for (line, client) in [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=\"[2001:db8:cafe::17]:4711\";proto=https;by=10.0.0.1", "2001:db8:cafe::17"),
        ("for=1.1.1.1, for=203.0.113.9;host=\"a,b\", for=10.0.0.2", "203.0.113.9"),
        ("for=203.0.113.9, for=_hidden", "10.0.0.1"),
        ("for=203.0.113.9, proto=https", "10.0.0.1"),
        ("for=203.0.113.9, for=\"10.0.0.7", "10.0.0.1"),
    ] {
        assert_eq!(ours.find(ip("10.0.0.1"), [line]).address, ip(client), "{line}");
    }
}

#[test]
fn a_single_value_header_that_comes_twice_is_not_believed() {
    let ours = finder("CF-Connecting-IP", &["10.0.0.0/8"]);
    assert_eq!(ours.find(ip("10.0.0.1"), ["203.0.113.9"]).address, ip("203.0.113.9"));
    assert_eq!(ours.find(ip("10.0.0.1"), ["1.1.1.1", "203.0.113.9"]).address, ip("10.0.0.1"));
    assert_eq!(ours.find(ip("10.0.0.1"), ["1.1.1.1, 203.0.113.9"]).address, ip("10.0.0.1"));
    assert_eq!(ours.find(ip("198.51.100.1"), ["203.0.113.9"]).address, ip("198.51.100.1"));
}

#[test]
fn the_way_it_was_found_is_told() {
    let ours = finder("x-forwarded-for", &["10.0.0.0/8"]);
    let found = ours.find(ip("10.0.0.1"), ["203.0.113.9, 10.0.0.2"]);
    assert_eq!(found.from.to_string(), "from x-forwarded-for hop 2, trusted 10.0.0.0/8");
    assert_eq!(ours.find(ip("203.0.113.9"), []).from, IpSource::Peer);
    assert_eq!(
        ours.find(ip("10.0.0.1"), []).from.to_string(),
        "from the connection, no usable x-forwarded-for"
    );
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
