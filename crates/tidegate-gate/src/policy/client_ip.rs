//! Finds the client's address behind proxies: the address of the peer, or what trusted proxies report.
//!
//! Each proxy appends the address it saw to the right of a list, so only the right end can be trusted. The search starts at
//! the peer and goes from right to left as long as the address reached is trusted; the first one that is not is the client.
//! Anything further left was written by that client and is ignored.
//!
//! An entry that cannot be parsed is an error, and so is a missing header from a trusted proxy: if the proxy counted as
//! the client, the caller would share the proxy's limit and escape the deny-lists. Only the one configured header is
//! read. A header that is not valid text counts as sent too.
//!
//! # Source
//! RFC 7239 for `Forwarded`; the list form of `X-Forwarded-For` as proxies write it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use tidegate_limits::visible::excerpt;

/// The header in which a trusted proxy reports the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForwardHeader {
    /// `x-forwarded-for`: a list, the nearest hop last.
    #[default]
    XForwardedFor,
    /// `forwarded`, RFC 7239: a list of `for=` elements, the nearest last.
    Forwarded,
    /// A header that holds one address, such as `cf-connecting-ip` or `x-real-ip`; the name is in lower case.
    Single(String),
}

impl ForwardHeader {
    /// Returns the header for a name as written in the file; case does not matter.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "x-forwarded-for" => Self::XForwardedFor,
            "forwarded" => Self::Forwarded,
            other => Self::Single(other.to_owned()),
        }
    }

    /// Returns the header's name in lower case.
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
    /// Networks of the operator's own proxies. Empty: no header is trusted, and the peer is the client.
    pub trusted_proxies: Vec<IpNet>,
    /// The header that is read; all others are ignored.
    pub header: ForwardHeader,
    /// How many leading bits of an IPv6 address make a key, 1 to 128.
    ///
    /// 64 by default: customers are usually given a network of that size, and so 2⁶⁴ addresses.
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
    /// The address; an IPv4-mapped IPv6 address and one of NAT64 are returned as IPv4, see [`canonical`].
    pub address: IpAddr,
    /// The source of the address.
    pub from: IpSource,
}

/// The source of a client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpSource {
    /// The connection itself: the peer is not a trusted proxy.
    Peer,
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

/// Why the client behind a trusted proxy is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientIpError {
    /// The proxy sent no such header.
    #[error("the trusted proxy {proxy} sent no {header}, so its caller is unknown; have it send that header")]
    Missing {
        /// The header.
        header: String,
        /// The peer.
        proxy: IpAddr,
    },
    /// An entry is not an address.
    #[error(
        "{header}: \"{entry}\", entry {hop} from the right, is not an address, so the caller of {proxy} is unknown; trusted \
         proxies must write addresses"
    )]
    Unreadable {
        /// The header.
        header: String,
        /// Which entry, counted from the right; the nearest is 1.
        hop: usize,
        /// The entry, escaped and cut to 60 characters.
        entry: String,
        /// The trusted proxy that wrote it.
        proxy: IpAddr,
    },
    /// A header for one address came more than once: one of the lines may come from the caller.
    #[error(
        "{header} came {lines} times; the trusted proxy {proxy} must set it once, in place of what its caller sent"
    )]
    Repeated {
        /// The header.
        header: String,
        /// The number of lines.
        lines: usize,
        /// The peer.
        proxy: IpAddr,
    },
}

impl fmt::Display for IpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("from the connection"),
            Self::Hop { header, hop, trusted } => write!(f, "from {header} hop {hop}, trusted {trusted}"),
        }
    }
}

impl ClientIp {
    /// Finds the client's address behind `peer`.
    ///
    /// `lines` are the values of the configured header ([`ForwardHeader::name`]) as raw bytes, in the order received;
    /// do not pass those of other headers. The time is linear in the hops examined.
    ///
    /// # Errors
    /// [`ClientIpError`] if a trusted proxy did not report its caller: best refused.
    pub fn find<'h, I>(&self, peer: IpAddr, lines: I) -> Result<FoundIp, ClientIpError>
    where
        I: IntoIterator<Item = &'h [u8]>,
        I::IntoIter: DoubleEndedIterator,
    {
        let mut found = FoundIp { address: canonical(peer), from: IpSource::Peer };
        let Some(mut voucher) = self.trusting(found.address) else { return Ok(found) };
        let header = || self.header.name().to_owned();
        let mut lines = lines.into_iter();
        if let ForwardHeader::Single(_) = self.header {
            let Some(line) = lines.next() else {
                return Err(ClientIpError::Missing { header: header(), proxy: found.address });
            };
            let others = lines.count();
            if others > 0 {
                let (header, lines) = (header(), others + 1);
                return Err(ClientIpError::Repeated { header, lines, proxy: found.address });
            }
            let Some(address) = read(line) else { return Err(self.unreadable(line, 1, found.address)) };
            return Ok(FoundIp {
                address,
                from: IpSource::Hop { header: header(), hop: 1, trusted: voucher },
            });
        }
        let forwarded = self.header == ForwardHeader::Forwarded;
        let mut hop = 0;
        for line in lines.rev() {
            for element in (Elements { rest: Some(line), quotes: forwarded }) {
                let address = if forwarded { forwarded_for(element) } else { read(element) };
                hop += 1;
                let Some(address) = address else {
                    return Err(self.unreadable(element, hop, found.address));
                };
                found.address = address;
                match self.trusting(address) {
                    Some(network) => voucher = network,
                    None => {
                        found.from = IpSource::Hop { header: header(), hop, trusted: voucher };
                        return Ok(found);
                    }
                }
            }
        }
        if hop == 0 {
            return Err(ClientIpError::Missing { header: header(), proxy: found.address });
        }
        found.from = IpSource::Hop { header: header(), hop, trusted: voucher };
        Ok(found)
    }

    /// Reports whether a peer is one of the trusted proxies, whose headers are read.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusting(canonical(peer)).is_some()
    }

    #[cold]
    fn unreadable(&self, entry: &[u8], hop: usize, proxy: IpAddr) -> ClientIpError {
        let entry = String::from_utf8_lossy(&entry[..entry.len().min(240)]);
        let entry = excerpt(entry.trim());
        ClientIpError::Unreadable { header: self.header.name().to_owned(), hop, entry, proxy }
    }

    fn trusting(&self, address: IpAddr) -> Option<IpNet> {
        self.trusted_proxies.iter().find(|network| network.contains(&address)).copied()
    }
}

/// Returns the IPv4 address in an IPv4-mapped address, and in one of NAT64's well-known prefix `64:ff9b::/96`; any
/// other address as it is.
///
/// A translator puts all callers of the IPv4 internet into one /64, so they would share one key. An address of a
/// private or otherwise special IPv4 network stays as it is: a caller who wrote one must not be taken for a trusted
/// proxy. So does `64:ff9b:1::/48`, where each operator chooses the place of the IPv4 address; `ipv6_prefix: 128` keeps
/// its callers apart.
///
/// # Source
/// RFC 6052, sections 2.1 and 3.1; RFC 8215.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => translated(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    }
}

/// Returns the IPv4 address that a translator wrote into an address; `None` if none did, or none may.
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = address.segments() else { return None };
    let inner = Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let [first, second, ..] = inner.octets();
    // 100.64.0.0/10 is shared by the customers of a carrier, 240.0.0.0/4 is reserved.
    let is_special = first == 0 || first >= 240 || (first == 100 && second & 0xc0 == 64);
    let is_local = inner.is_private() || inner.is_loopback() || inner.is_link_local() || inner.is_multicast();
    (!is_special && !is_local).then_some(inner)
}

/// Returns the network that an address is keyed by: the whole IPv4 address, or the first `prefix` bits of an IPv6
/// address.
#[must_use]
pub fn keyed_network(address: IpAddr, prefix: u8) -> IpNet {
    match canonical(address) {
        IpAddr::V4(address) => IpNet::from(IpAddr::V4(address)),
        IpAddr::V6(address) => {
            let bits = u32::from(prefix.clamp(1, 128));
            let mask = u128::MAX << (128 - bits);
            let cut = Ipv6Addr::from(u128::from(address) & mask);
            // The prefix is in range, so this cannot fail. If it did, the whole address would be the network.
            IpNet::new(IpAddr::V6(cut), prefix.clamp(1, 128))
                .unwrap_or_else(|_| IpNet::from(IpAddr::V6(address)))
        }
    }
}

/// Returns whether values of an attribute are addresses of callers, which are keyed by their network: `client.ip`, and the
/// name that Envoy gives the same.
#[inline]
pub(super) fn is_address(name: &str) -> bool {
    name == "client.ip" || name == "remote_address"
}

/// Returns the text of the network that a value of `client.ip` or `remote_address` is keyed by; `None` for other attributes
/// and for plain IPv4 addresses.
pub(crate) fn network_of(name: &str, value: &str, ipv6_prefix: u8) -> Option<String> {
    // Only IPv6 addresses contain a colon; the text of an IPv4 address is its key as it stands.
    let address = (is_address(name) && value.contains(':')).then(|| address(value)).flatten()?;
    let network = keyed_network(address, ipv6_prefix);
    Some(if network.addr().is_ipv4() { network.addr().to_string() } else { network.to_string() })
}

/// Parses an address as proxies write it: with or without port, brackets or a zone.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, after) = rest.split_once(']')?;
        let port_is_fine = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return port_is_fine.then(|| v6(inner)).flatten();
    }
    // An IPv4 address has a dot before any colon, even with a port; any other text need not be parsed as IPv4.
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
    // A zone names an interface of the proxy, so it is ignored.
    let text = text.split_once('%').map_or(text, |(address, _)| address);
    text.parse::<Ipv6Addr>().ok().map(|address| canonical(IpAddr::V6(address)))
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn read(text: &[u8]) -> Option<IpAddr> {
    address(std::str::from_utf8(text).ok()?)
}

/// Parses the `for=` of one element of `Forwarded`; `None` if there is none, more than one or an invalid one.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in pairs(std::str::from_utf8(element).ok()?) {
        let (name, value) = pair.split_once('=')?;
        let value = value.trim();
        // The grammar requires quotes around an IPv6 address or a port; old proxies omit them.
        let bare = value.strip_prefix('"').map_or(Some(value), |quoted| quoted.strip_suffix('"'))?;
        if !name.trim().eq_ignore_ascii_case("for") {
            continue;
        }
        let address = address(bare)?;
        if found.replace(address).is_some() {
            return None;
        }
    }
    found
}

/// Splits an element of `Forwarded` at semicolons outside quotes: `host="a;for=9.9.9.9"` is one pair, whose value the
/// caller chose.
fn pairs(element: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(element);
    std::iter::from_fn(move || {
        let text = rest?;
        let (mut quoted, mut escaped) = (false, false);
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                b';' if !quoted => {
                    rest = Some(&text[at + 1..]);
                    return Some(&text[..at]);
                }
                _ => {}
            }
        }
        rest = None;
        Some(text)
    })
}

/// Iterates over the comma-separated elements of a header line, last first: a quote that the caller left open must not
/// swallow what the proxies added. With `quotes`, commas inside quotes do not separate.
struct Elements<'h> {
    rest: Option<&'h [u8]>,
    quotes: bool,
}

impl<'h> Iterator for Elements<'h> {
    type Item = &'h [u8];

    fn next(&mut self) -> Option<&'h [u8]> {
        let line = self.rest?;
        let mut quoted = false;
        for (at, byte) in line.iter().enumerate().rev() {
            match byte {
                b'"' if self.quotes && !is_escaped(&line[..at]) => quoted = !quoted,
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

/// Reports whether the character after these is escaped: preceded by an odd number of backslashes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}
