//! Who is calling, behind proxies: the peer's address, or what trusted proxies say of it.
//!
//! Each proxy appends the address it saw to the right of a list, so only the right end can be believed, and only as far as
//! the proxies are ours. The walk starts at the peer and goes right to left while the address it stands on is trusted; the
//! first one that is not is the client. What stands further left was written by that client and is never looked at. A hop
//! that cannot be read ends the walk too: the client is then the last hop that could.
//!
//! Only the one configured header counts. `X-Forwarded-For` cannot speak where `Forwarded` was configured.
//!
//! # Source
//! RFC 7239 for `Forwarded`; the list form of `X-Forwarded-For` as proxies write it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Which header a trusted proxy reports the client in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForwardHeader {
    /// `x-forwarded-for`: a list, the nearest hop last.
    #[default]
    XForwardedFor,
    /// `forwarded`, RFC 7239: a list of `for=` elements, the nearest last.
    Forwarded,
    /// A header that holds one address, as `cf-connecting-ip` or `x-real-ip`; lower-case.
    Single(String),
}

impl ForwardHeader {
    /// Reads a header name as written in the file; case does not matter.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "x-forwarded-for" => Self::XForwardedFor,
            "forwarded" => Self::Forwarded,
            other => Self::Single(other.to_owned()),
        }
    }

    /// Returns the lower-case name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::Single(name) => name,
        }
    }
}

/// How the client's address is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIp {
    /// Networks of our own proxies. Empty: nobody is believed, the peer is the client.
    pub trusted_proxies: Vec<IpNet>,
    /// The one header that is read.
    pub header: ForwardHeader,
    /// How many leading bits of an IPv6 address make a key; 1 to 128.
    ///
    /// 64 by default: that is what one customer is given, and a key per address would let each customer have 2⁶⁴ limits.
    pub ipv6_prefix: u8,
}

impl Default for ClientIp {
    fn default() -> Self {
        Self { trusted_proxies: Vec::new(), header: ForwardHeader::default(), ipv6_prefix: 64 }
    }
}

/// A client's address and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundIp {
    /// The address; an IPv4-mapped IPv6 address is given as IPv4.
    pub address: IpAddr,
    /// Where it comes from.
    pub from: IpSource,
}

/// Where a client's address comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpSource {
    /// The connection itself: the peer is no trusted proxy.
    Peer,
    /// The connection, although the peer is trusted: the header was missing, or its nearest hop unreadable.
    PeerForWantOfHeader {
        /// The header.
        header: String,
    },
    /// A hop that a trusted proxy reported.
    Hop {
        /// The header.
        header: String,
        /// Which hop, counted from the right; the nearest is 1.
        hop: usize,
        /// The network that vouched for it.
        trusted: IpNet,
    },
}

impl fmt::Display for IpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("from the connection"),
            Self::PeerForWantOfHeader { header } => write!(f, "from the connection, no usable {header}"),
            Self::Hop { header, hop, trusted } => write!(f, "from {header} hop {hop}, trusted {trusted}"),
        }
    }
}

impl ClientIp {
    /// Finds the client behind `peer`.
    ///
    /// `lines` are the values of the configured header ([`ForwardHeader::name`]), in the order received; other headers must
    /// not be passed. Linear in the hops walked, which ends at the first untrusted one.
    #[must_use]
    pub fn find<'h, I>(&self, peer: IpAddr, lines: I) -> FoundIp
    where
        I: IntoIterator<Item = &'h str>,
        I::IntoIter: DoubleEndedIterator,
    {
        let mut found = FoundIp { address: canonical(peer), from: IpSource::Peer };
        let Some(mut voucher) = self.trusting(found.address) else { return found };
        let header = self.header.name();
        found.from = IpSource::PeerForWantOfHeader { header: header.to_owned() };
        let mut lines = lines.into_iter().rev();
        if let ForwardHeader::Single(_) = self.header {
            // A proxy that sets the header sets it once: of two lines, one is the caller's own.
            if let (Some(line), None) = (lines.next(), lines.next())
                && let Some(address) = address(line)
            {
                found.address = address;
                found.from = IpSource::Hop { header: header.to_owned(), hop: 1, trusted: voucher };
            }
            return found;
        }
        let mut hop = 0;
        for line in lines {
            for element in Elements::from_the_right(line) {
                let read = match self.header {
                    ForwardHeader::Forwarded => forwarded_for(element),
                    _ => address(element),
                };
                let Some(address) = read else { return found };
                hop += 1;
                found.address = address;
                found.from = IpSource::Hop { header: header.to_owned(), hop, trusted: voucher };
                match self.trusting(address) {
                    Some(network) => voucher = network,
                    None => return found,
                }
            }
        }
        found
    }

    fn trusting(&self, address: IpAddr) -> Option<IpNet> {
        self.trusted_proxies.iter().find(|network| network.contains(&address)).copied()
    }
}

/// Returns an IPv4-mapped IPv6 address as IPv4, any other as it is.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Returns the network that an address is keyed by: IPv4 whole, IPv6 cut to `prefix` bits.
#[must_use]
pub fn keyed_network(address: IpAddr, prefix: u8) -> IpNet {
    match canonical(address) {
        IpAddr::V4(address) => IpNet::from(IpAddr::V4(address)),
        IpAddr::V6(address) => {
            let bits = u32::from(prefix.clamp(1, 128));
            let mask = u128::MAX << (128 - bits);
            let cut = Ipv6Addr::from(u128::from(address) & mask);
            // The prefix is in range, so the network is never refused; the whole address stands in all the same.
            IpNet::new(IpAddr::V6(cut), prefix.clamp(1, 128))
                .unwrap_or_else(|_| IpNet::from(IpAddr::V6(address)))
        }
    }
}

/// Reads an address as proxies write it: with or without port, brackets or a zone.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, after) = rest.split_once(']')?;
        let port_is_fine = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return port_is_fine.then(|| v6(inner)).flatten();
    }
    // IPv4 has a dot before any colon, also with a port: what has not need not be tried as such.
    if text.bytes().find(|byte| matches!(byte, b'.' | b':')) == Some(b':') {
        return v6(text);
    }
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(IpAddr::V4(address));
    }
    if let Some((host, port)) = text.split_once(':')
        && let Ok(address) = host.parse::<Ipv4Addr>()
    {
        return is_port(port).then_some(IpAddr::V4(address));
    }
    v6(text)
}

fn v6(text: &str) -> Option<IpAddr> {
    // A zone names an interface of the proxy, not the client.
    let text = text.split_once('%').map_or(text, |(address, _)| address);
    text.parse::<Ipv6Addr>().ok().map(|address| canonical(IpAddr::V6(address)))
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads the `for=` of one element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let value = element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value.trim())
    })?;
    match value.strip_prefix('"') {
        Some(quoted) => address(quoted.strip_suffix('"')?),
        // Unquoted, an IPv6 address or a port is not allowed by the grammar; old proxies write them all the same.
        None => address(value),
    }
}

/// The comma-separated elements of a header line, last first; commas within quotes do not separate.
struct Elements<'h> {
    rest: Option<&'h str>,
}

impl<'h> Elements<'h> {
    fn from_the_right(line: &'h str) -> Self {
        Self { rest: Some(line) }
    }
}

impl<'h> Iterator for Elements<'h> {
    type Item = &'h str;

    fn next(&mut self) -> Option<&'h str> {
        let line = self.rest?;
        let mut quoted = false;
        for (at, byte) in line.bytes().enumerate().rev() {
            match byte {
                b'"' => quoted = !quoted,
                b',' if !quoted => {
                    self.rest = Some(&line[..at]);
                    return Some(&line[at + 1..]);
                }
                _ => {}
            }
        }
        self.rest = None;
        Some(line)
    }
}
