//! For any headers of a sub-request: the attributes that policies name are present, and headers that the proxy does not
//! set do not change the request's own attributes.
#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tidegate::config::{Config, Format};
use tidegate_server::Settings;
use tidegate_server::fuzzing::ForwardAuthDoor;

const POLICIES: &str = "
access: { deny: [request.header.x-tenant=bad] }
policies:
  - name: key
    by: [request.header.x-api-key, request.path]
    match: { header: { accept: true }, not: { header: { x_old: true } } }
    limit: { rate: { by: request.header.x-plan, values: { a: 1/s }, otherwise: 2/s } }
";
const DYNAMIC: &str = "
policies:
  - name: batch
    cost: 'size(request.header) > 3 ? 2 : 1'
    limit: { rate: 1/s }
";

/// The most attributes from headers that no policy names.
const MAX_ATTRIBUTES: usize = 64;

/// A forward-auth endpoint, and the headers that its proxy sets.
struct Stand {
    door: ForwardAuthDoor,
    sets: [&'static str; 4],
}

static STANDS: LazyLock<[Stand; 3]> = LazyLock::new(|| {
    let stand = |client: &str, asks: &str, policies: &str, sets: [&'static str; 4]| {
        let file = format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [10.0.0.0/8], header: {client} }}\nforward_auth: {asks}\n{policies}"
        );
        let (config, _) = Config::parse(&file, "fuzz", Format::Yaml).expect("the file is sound");
        Stand { door: ForwardAuthDoor::new(&Settings::from(config)), sets }
    };
    [
        stand(
            "x-forwarded-for",
            "{ proxy: nginx }",
            POLICIES,
            ["x-original-method", "x-original-uri", "x-original-host", "x-forwarded-for"],
        ),
        stand(
            "forwarded",
            "{ proxy: caddy }",
            DYNAMIC,
            ["x-forwarded-method", "x-forwarded-uri", "x-forwarded-host", "forwarded"],
        ),
        stand(
            "x-real-ip",
            "{ method: x-m, path: x-u, host: x-h }",
            POLICIES,
            ["x-m", "x-u", "x-h", "x-real-ip"],
        ),
    ]
});

const NAMES: [&str; 26] = [
    "x-original-method",
    "x-original-uri",
    "x-original-host",
    "x-forwarded-for",
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-forwarded-host",
    "forwarded",
    "x-m",
    "x-u",
    "x-h",
    "x-real-ip",
    "x-api-key",
    "x_api_key",
    "x-tenant",
    "x-plan",
    "x_old",
    "x-old",
    "accept",
    "x-batch",
    "cookie",
    "host",
    "connection",
    "x-tidegate-token",
    "x_original_uri",
    "x-other",
];

/// The proxy's headers if the input does not set them, so that most inputs pass the first checks.
const USUAL: [&str; 4] = ["GET", "/api/thing?q", "example.org", "203.0.113.9"];

fuzz_target!(|input: (u8, u8, Vec<(u8, &[u8])>)| {
    let (which, leave_out, lines) = input;
    let stand = &STANDS[usize::from(which) % STANDS.len()];
    let mut headers = HeaderMap::new();
    for (at, bytes) in lines {
        let name = match NAMES.get(usize::from(at)) {
            Some(name) => HeaderName::from_static(name),
            None => HeaderName::try_from(format!("a-filler-{at}")).expect("letters and digits"),
        };
        if let Ok(value) = HeaderValue::from_bytes(bytes) {
            headers.append(name, value);
        }
    }
    for (at, (name, usual)) in stand.sets.iter().zip(USUAL).enumerate() {
        if leave_out & (1 << at) == 0 && !headers.contains_key(*name) {
            let usual = if *name == "forwarded" { "for=203.0.113.9" } else { usual };
            headers.insert(*name, HeaderValue::from_static(usual));
        }
    }
    let peer = IpAddr::from([10, 0, 0, 1]);
    let Some(attributes) = stand.door.attributes(&headers, peer) else { return };
    let value = |attributes: &[(String, String)], name: &str| {
        attributes.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone())
    };

    let mut unnamed = 0;
    for (at, (name, _)) in attributes.iter().enumerate() {
        assert!(attributes[..at].iter().all(|(other, _)| other != name), "{name} twice");
        unnamed += usize::from(!stand.door.named().contains(name));
    }
    assert!(unnamed <= MAX_ATTRIBUTES && attributes.len() <= MAX_ATTRIBUTES + headers.keys_len());
    for name in headers.keys().filter(|name| name.as_str() != "x-tidegate-token") {
        let attribute = format!("request.header.{name}");
        if stand.door.named().contains(&attribute) {
            assert!(value(&attributes, &attribute).is_some(), "{attribute} is named and was dropped");
        }
    }

    // Without the headers that the proxy does not set, the original request must be the same.
    let mut bare = HeaderMap::new();
    for name in stand.sets {
        headers.get_all(name).iter().for_each(|line| {
            bare.append(name, line.clone());
        });
    }
    let alone = stand.door.attributes(&bare, peer).expect("what is less is refused no sooner");
    for name in ["request.method", "request.path", "request.host", "client.ip"] {
        let told = value(&attributes, name);
        assert!(told.is_some() && told == value(&alone, name), "{name}");
    }
});
