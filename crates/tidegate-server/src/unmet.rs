//! Requests that no policy is about, and calls that cannot be read: counted for each kind, and logged once for each.
//!
//! A kind is the door, the names of the attributes and, over gRPC, the domain: what a configuration of a proxy or a
//! program writes, and not its callers. Nevertheless the number of kinds is bounded, and a kind that is known costs one
//! comparison for each kind before it. Each configuration begins anew, since a change may have corrected some.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate::config::Address;
use tidegate::policy::{Descriptor, PolicySet};
use tidegate::visible::excerpt;

use crate::metrics::Transport;

/// How many kinds are told apart. All others are counted together.
const KINDS: usize = 32;
/// How many characters of an error are told.
#[cfg(feature = "grpc")]
const MESSAGE: usize = 300;
/// How many names of attributes are told of one kind.
const NAMES: usize = 12;

/// The kinds that one configuration has seen.
#[derive(Debug, Default)]
pub(crate) struct Unmet {
    hasher: RandomState,
    /// In the order in which they came; a hash of 0 is a free place.
    kinds: [Kind; KINDS],
    /// What is told of each kind, with its index in `kinds`.
    told: Mutex<Vec<(usize, Told)>>,
    others: AtomicU64,
}

#[derive(Debug, Default)]
struct Kind {
    hash: AtomicU64,
    count: AtomicU64,
}

/// What people are told of one kind.
#[derive(Clone, Debug)]
struct Told {
    what: String,
    /// What was probably meant, as sentences.
    advice: Vec<String>,
}

/// Why a call was not decided, although a proxy in front may let the request pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Misdirected {
    /// A gRPC call, or HTTP/2, at an HTTP address.
    GrpcAtHttp,
    /// HTTP/1 at the gRPC address.
    #[cfg(feature = "grpc")]
    Http1AtGrpc,
    /// TLS at a gRPC address without TLS.
    #[cfg(feature = "grpc")]
    TlsAtGrpc,
}

/// The numbers of a configuration.
#[derive(Debug)]
pub(crate) struct UnmetSoFar {
    /// All requests that were noted.
    pub(crate) count: u64,
    /// Each kind with its count, the most frequent first.
    pub(crate) kinds: Vec<(u64, String)>,
}

impl Unmet {
    /// Counts one request of a kind. `tell` is called for the first of its kind.
    fn note(&self, hash: u64, tell: impl FnOnce() -> Told) {
        let hash = hash.max(1);
        for (at, kind) in self.kinds.iter().enumerate() {
            // Relaxed throughout: each number stands alone, and what is told has a lock.
            let mut held = kind.hash.load(Ordering::Relaxed);
            if held == 0 {
                match kind.hash.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        kind.count.fetch_add(1, Ordering::Relaxed);
                        let told = tell();
                        told.log(at + 1 == KINDS);
                        self.told.lock().push((at, told));
                        return;
                    }
                    Err(other) => held = other,
                }
            }
            if held == hash {
                kind.count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns what was noted so far; `None` if nothing was.
    pub(crate) fn so_far(&self) -> Option<UnmetSoFar> {
        let told = self.told.lock().clone();
        let count = |at: usize| self.kinds[at].count.load(Ordering::Relaxed);
        let mut kinds: Vec<(u64, String)> =
            told.into_iter().map(|(at, told)| (count(at), told.to_string())).collect();
        kinds.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        let others = self.others.load(Ordering::Relaxed);
        let count = kinds.iter().fold(others, |sum, (count, _)| sum.saturating_add(*count));
        (count > 0).then_some(UnmetSoFar { count, kinds })
    }

    /// Notes a request that no policy of this set is about.
    pub(crate) fn note_request(&self, set: &PolicySet, transport: Transport, request: &Descriptor<'_>) {
        self.note(self.hash_of(transport, request), || Told::of(set, transport, request));
    }

    /// Notes a call that was not decided, since it came to the wrong address or in the wrong protocol. `grpc`: the
    /// address for calls over gRPC.
    pub(crate) fn note_misdirected(&self, why: Misdirected, grpc: Option<&Address>) {
        self.note(self.hasher.hash_one(why), || Told::misdirected(why, grpc));
    }

    /// Notes a call over gRPC that is answered with an error.
    #[cfg(feature = "grpc")]
    pub(crate) fn note_unreadable(&self, code: &'static str, message: &str) {
        self.note(self.hasher.hash_one(code), || Told {
            what: format!(
                "calls over gRPC are answered {code}, and a proxy that fails open lets their requests pass"
            ),
            advice: vec![message.chars().take(MESSAGE).collect()],
        });
    }

    fn hash_of(&self, transport: Transport, request: &Descriptor<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        transport.hash(&mut hasher);
        request.pairs().for_each(|(name, _)| name.hash(&mut hasher));
        request.value("rls.domain").hash(&mut hasher);
        hasher.finish()
    }
}

impl Told {
    fn of(set: &PolicySet, transport: Transport, request: &Descriptor<'_>) -> Self {
        let mut names: Vec<&str> =
            request.pairs().map(|(name, _)| name).filter(|name| !name.starts_with("rls.")).collect();
        names.sort_unstable();
        names.dedup();
        let more = names.len().saturating_sub(NAMES);
        let shown: Vec<String> = names.into_iter().take(NAMES).map(excerpt).collect();
        let mut what = format!("{} requests with the attributes {}", transport.word(), shown.join(", "));
        if shown.is_empty() {
            what = format!("{} requests without attributes", transport.word());
        }
        if more > 0 {
            what += &format!(" and {more} more");
        }
        if let Some(domain) = request.value("rls.domain") {
            what += &format!(", in the domain \"{}\"", excerpt(domain));
        }
        let mut advice = set.unread(request);
        if set.is_empty() {
            advice = vec!["there are no policies".to_owned()];
        }
        Self { what: format!("no policy is about {what}"), advice }
    }

    fn misdirected(why: Misdirected, grpc: Option<&Address>) -> Self {
        let (what, advice) = match why {
            Misdirected::GrpcAtHttp => (
                "gRPC calls (HTTP/2) reach the HTTP address, which cannot decide them, and a proxy that fails open lets their requests pass",
                match grpc {
                    Some(grpc) => format!("gRPC is served on {grpc}: give the proxy's cluster that address"),
                    None => "start the server with --grpc ADDRESS (server.grpc), and give the proxy's cluster that address".to_owned(),
                },
            ),
            #[cfg(feature = "grpc")]
            Misdirected::Http1AtGrpc => (
                "HTTP/1 reaches the gRPC address, which cannot decide it, and a proxy that fails open lets its requests pass",
                "gRPC needs HTTP/2: add `typed_extension_protocol_options` with `explicit_http_config: { http2_protocol_options: {} }` to Envoy's cluster; for HTTP/1 give the HTTP address".to_owned(),
            ),
            #[cfg(feature = "grpc")]
            Misdirected::TlsAtGrpc => (
                "TLS reaches the gRPC address, which is served without TLS, and a proxy that fails open lets its requests pass",
                "remove `transport_socket` from the proxy's cluster, or serve with TLS (server.tls)".to_owned(),
            ),
        };
        Self { what: what.to_owned(), advice: vec![advice] }
    }

    fn log(&self, is_last: bool) {
        let advice = (!self.advice.is_empty()).then(|| self.advice.join("; "));
        let no_more = is_last.then_some("further kinds are only counted");
        if self.advice.is_empty() {
            // Everything in it is read by some policy, so it is probably meant to have no limit.
            tracing::info!(no_more, "{}", self.what);
        } else {
            tracing::warn!(advice, no_more, "{}", self.what);
        }
    }
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        self.advice.iter().try_for_each(|advice| write!(f, "; {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once_and_made_up_kinds_take_no_room() {
        let unmet = Unmet::default();
        assert!(unmet.so_far().is_none());
        let told = |name: u64| Told { what: format!("kind {name}"), advice: Vec::new() };
        let mut times_told = 0;
        for round in 0..3 {
            for kind in 1..=1000 {
                unmet.note(kind, || {
                    times_told += 1;
                    told(kind)
                });
            }
            assert_eq!(times_told, KINDS, "round {round}");
        }
        unmet.note(7, || unreachable!("known"));
        let so_far = unmet.so_far().unwrap();
        assert_eq!(so_far.count, 3001);
        assert_eq!(so_far.kinds.len(), KINDS);
        assert_eq!(so_far.kinds[0], (4, "kind 7".to_owned()));
    }
}
