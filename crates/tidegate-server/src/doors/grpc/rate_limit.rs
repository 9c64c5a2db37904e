//! `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`: each call decides one request of a proxy's client.
//!
//! A descriptor is a request to the policies: its entries are attributes, and the domain is `rls.domain`. All
//! descriptors of a call are charged, or none. A refusal is an answer, never an error: by default proxies let a
//! request pass on an error, so no error may depend on what a client sends.

pub(super) mod descriptors;
pub(super) mod limitador;
mod response;

use std::borrow::Cow;
use std::slice::from_ref;
use std::str::from_utf8;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tidegate::Cost;
use tidegate::deadline::Deadline;
use tidegate::deadline::header::read_grpc_timeout;
use tidegate::gate::{Charged, Check};

use self::descriptors::{CallDescriptor, Units};
use self::response::Details;
use super::counts::Turn;
use super::envoy::{RateLimitRequest, RateLimitResponse};
use super::framing::{self, Code, Status};
use super::service::Service;
use crate::active_config::{ActiveConfig, Facts};
use crate::decider::{Conclusion, Decider, Together, Want};
use crate::doors::HungUp;
use crate::metrics::{RequestOutcome, Transport};

pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Decides a call, and counts the limits that it meets.
///
/// # Errors
/// [`Code::Internal`] for bytes that are no such message; [`Code::InvalidArgument`] for mistakes of the proxy's
/// configuration: those of [`descriptors::read`], unknown details, different quotas for one key.
///
/// # Cancel safety
/// If dropped before it ends, it has spent nothing.
pub(super) async fn answer(
    service: &Service,
    turn: &Turn,
    headers: &HeaderMap,
    message: Bytes,
) -> Result<Bytes, Status> {
    let details = Details::wanted(headers)?;
    let request = read(&message)?;
    let decider = &service.app.decider;
    let live = decider.live();
    let descriptors = descriptors::read(&request, &service.quotas, &live)?;
    let answer = if descriptors.iter().any(|descriptor| descriptor.refused.is_some()) {
        decider.metrics.requests.count(Transport::grpc, RequestOutcome::denied);
        let mut answer = response::refused(&descriptors);
        details.write_unjudged(&request, &descriptors, &mut answer);
        answer
    } else {
        decide(decider, turn, &live, &descriptors, headers, details).await?
    };
    Ok(framing::body(&answer))
}

/// Answers a message too long to be read: it is over the limit, as a value too long is. What makes it long
/// comes from a proxy's client, and an error would let that client pass at a proxy that fails open.
pub(super) fn too_long(service: &Service) -> Bytes {
    service.app.decider.metrics.requests.count(Transport::grpc, RequestOutcome::denied);
    framing::body(&response::refused(&[]))
}

/// Decodes the message of a call. Repairs invalid UTF-8 in it if need be.
fn read(message: &Bytes) -> Result<RateLimitRequest, Status> {
    let mut request = RateLimitRequest::decode(&**message)
        .or_else(|_| {
            let mut repaired = message.to_vec();
            repair_utf8(&mut repaired, Shape::Call);
            RateLimitRequest::decode(&*repaired)
        })
        .map_err(|error| {
            Status::new(Code::Internal, format!("the message is not a RateLimitRequest: {error}"))
        })?;
    if message.contains(&HITS) && hits(message).is_none() {
        request.hits_addend = u32::MAX;
    }
    Ok(request)
}

/// The tag of `hits_addend`, a varint.
const HITS: u8 = 3 << 3;

/// Returns the last `hits_addend`, 0 without one; `None` beyond 32 bits: the decoder drops those above, and 2^32
/// units would be none.
fn hits(mut message: &[u8]) -> Option<u32> {
    let mut hits = 0;
    while let Ok((tag, kind)) = decode_key(&mut message) {
        if (tag, kind) == (3, WireType::Varint) {
            hits = decode_varint(&mut message).ok()?;
        } else if skip_field(kind, tag, &mut message, DecodeContext::default()).is_err() {
            break;
        }
    }
    u32::try_from(hits).ok()
}

async fn decide(
    decider: &Decider,
    turn: &Turn,
    live: &ActiveConfig,
    descriptors: &[CallDescriptor<'_>],
    headers: &HeaderMap,
    details: Details,
) -> Result<RateLimitResponse, Status> {
    let deadline = waits_until(decider, live, headers);
    let mut hung_up = HungUp { decider, held: live.delays.then(Charged::default), ticket: None };
    let held = hung_up.held.as_mut();
    let (one, several);
    let (conclusions, allowed, wait) = match descriptors {
        [alone] if !matches!(alone.units, Units::GiveBack(_)) => {
            let want = if alone.units == Units::Peek { Want::Peek } else { Want::Take };
            let mut check = alone.check();
            check.deadline = deadline;
            one = decider.deciding.decide(live, check, None, want, held, Transport::grpc).await;
            if want == Want::Peek {
                decider.telemetry.count_look(live, &alone.request, &one);
            }
            let (allowed, wait) = match &one {
                Conclusion::Decided(decision) => (decision.allowed, decision.wait),
                Conclusion::Unsettled { allowed, .. } => (*allowed, Duration::ZERO),
            };
            (from_ref(&one), allowed, wait)
        }
        descriptors => {
            several = decide_several(decider, live, descriptors, deadline, held).await?;
            (&*several.conclusions, several.allowed, several.wait)
        }
    };
    turn.met(conclusions.iter().map(Conclusion::met).sum());
    if !wait.is_zero() {
        // A proxy cannot delay its client's request, so the answer is delayed instead.
        tokio::time::sleep(wait).await;
    }
    hung_up.held = None;
    let facts = |conclusion: &Conclusion| conclusion.facts(live, &decider.metrics);
    warn_of_lost_reports(descriptors, conclusions, facts);
    let mut answer = response::decided(descriptors, conclusions, allowed, facts);
    details.write(decider, live, descriptors, conclusions, &mut answer, allowed);
    Ok(answer)
}

/// Decides the descriptors that spend or peek; either all are charged or none. If they are allowed, those that give
/// back are carried out too.
async fn decide_several(
    decider: &Decider,
    live: &ActiveConfig,
    descriptors: &[CallDescriptor<'_>],
    deadline: Option<Deadline>,
    held: Option<&mut Charged>,
) -> Result<Together, Status> {
    let gives_back = |descriptor: &CallDescriptor<'_>| matches!(descriptor.units, Units::GiveBack(_));
    let checks: Vec<Check<'_, '_>> = descriptors
        .iter()
        .filter(|descriptor| !gives_back(descriptor))
        .map(|descriptor| {
            let mut check = descriptor.check();
            check.deadline = deadline;
            check
        })
        .collect();
    let together = decider.deciding.decide_together(live, &checks, held, Transport::grpc).await;
    let together = together.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    if checks.len() == descriptors.len() || together.conclusions.len() != checks.len() {
        return Ok(together);
    }
    // Boxed: otherwise all other calls would reserve space for it.
    Ok(Box::pin(give_back(decider, live, descriptors, together)).await)
}

/// Gives units back if `together`, the decision on the others, allows it.
async fn give_back(
    decider: &Decider,
    live: &ActiveConfig,
    descriptors: &[CallDescriptor<'_>],
    mut together: Together,
) -> Together {
    let mut spent = together.conclusions.into_iter();
    let mut conclusions = Vec::with_capacity(descriptors.len());
    for descriptor in descriptors {
        match descriptor.units {
            Units::Take(_) | Units::Peek => conclusions.extend(spent.next()),
            Units::GiveBack(units) => {
                if together.allowed {
                    decider.tickets.give_back(descriptor.check().maybe_cost(Some(units))).await;
                }
                let look = decider.deciding.decide(
                    live,
                    descriptor.check(),
                    None,
                    Want::Peek,
                    None,
                    Transport::grpc,
                );
                conclusions.push(look.await);
            }
        }
    }
    together.conclusions = conclusions;
    together
}

/// Warns once of a policy that is asked for 0 units and refuses a larger number: probably reports of use, which
/// Envoy sends when a stream ends (`apply_on_stream_done`): nothing in the call says so.
fn warn_of_lost_reports<'l>(
    descriptors: &[CallDescriptor<'_>],
    conclusions: &[Conclusion],
    facts: impl Fn(&Conclusion) -> Cow<'l, [Facts]>,
) {
    for (descriptor, conclusion) in descriptors.iter().zip(conclusions) {
        let Conclusion::Decided(decision) = conclusion else { continue };
        match descriptor.units {
            Units::Peek => {
                let facts = facts(conclusion);
                decision.limits.iter().for_each(|limit| facts[limit.policy].reports.asked_for_none());
            }
            Units::Take(cost) if !decision.allowed && cost > Cost::ONE => {
                let facts = facts(conclusion);
                for limit in decision.refusing() {
                    let policy = &decision.policies.policies()[limit.policy];
                    if !policy.charges_always() && facts[limit.policy].reports.refused_several() {
                        tracing::warn!(
                            policy = policy.name,
                            units = limit.cost.units(),
                            left = limit.remaining(),
                            "a call for more units than are left was refused and not charged; since there are calls for 0 units too, it was probably a report of what was used: write `charge: always`, or such reports limit nothing"
                        );
                    }
                }
            }
            Units::Take(_) | Units::GiveBack(_) => {}
        }
    }
}

/// When the caller stops waiting, if a policy may delay.
fn waits_until(decider: &Decider, live: &ActiveConfig, headers: &HeaderMap) -> Option<Deadline> {
    let left = if live.delays { headers.get("grpc-timeout")? } else { return None };
    Some(Deadline::Tick(decider.now().after(read_grpc_timeout(left.as_bytes())?)))
}

// Repairs invalid UTF-8 in the strings of a call: each such byte becomes a question mark.
//
// A proxy puts its client's headers into them. Envoy lets the request pass if its message cannot be decoded, so one
// such byte in a header that makes a key would evade the limit.

#[derive(Clone, Copy)]
enum Shape {
    Call,
    Descriptor,
    Entry,
    Text,
    Other,
}

impl Shape {
    const fn of(self, field: u64) -> Self {
        match (self, field) {
            (Self::Call, 1) | (Self::Entry, 1 | 2) => Self::Text,
            (Self::Call, 2) => Self::Descriptor,
            (Self::Descriptor, 1) => Self::Entry,
            _ => Self::Other,
        }
    }
}

/// Repairs the strings of a message of this shape. Stops at bytes that are not a message, which decoding reports.
fn repair_utf8(mut bytes: &mut [u8], shape: Shape) {
    while let Some(key) = varint(&mut bytes) {
        let length = match key & 7 {
            0 => {
                if varint(&mut bytes).is_none() {
                    return;
                }
                continue;
            }
            1 => Some(8),
            2 => varint(&mut bytes),
            5 => Some(4),
            _ => return,
        };
        let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else { return };
        let Some((field, rest)) = bytes.split_at_mut_checked(length) else { return };
        match shape.of(key >> 3) {
            Shape::Text if key & 7 == 2 => text(field),
            inner @ (Shape::Descriptor | Shape::Entry) if key & 7 == 2 => repair_utf8(field, inner),
            _ => {}
        }
        bytes = rest;
    }
}

/// Reads a varint, and advances past it.
fn varint(bytes: &mut &mut [u8]) -> Option<u64> {
    let mut number = 0_u64;
    for at in 0..bytes.len().min(10) {
        let byte = bytes[at];
        number |= u64::from(byte & 0x7f) << (7 * at as u32).min(63);
        if byte < 0x80 {
            *bytes = std::mem::take(bytes).split_at_mut(at + 1).1;
            return Some(number);
        }
    }
    None
}

fn text(bytes: &mut [u8]) {
    let mut from = 0;
    while let Err(error) = from_utf8(&bytes[from..]) {
        let at = from + error.valid_up_to();
        from = error.error_len().map_or(bytes.len(), |length| at + length);
        bytes[at..from].fill(b'?');
    }
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use std::fmt;
    use std::sync::Arc;

    use bytes::Bytes;
    use http::header::{HeaderMap, HeaderValue};
    use tidegate::clock::Clock;
    use tokio::runtime::Runtime;

    use super::super::counts::Turn;
    use super::super::framing;
    use super::super::service::Service;
    use crate::app::fuzzed;

    /// A door without its connections.
    pub struct RateLimitDoor {
        pub(in super::super) runtime: Runtime,
        pub(in super::super) service: Service,
    }

    impl fmt::Debug for RateLimitDoor {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("RateLimitDoor").finish_non_exhaustive()
        }
    }

    impl RateLimitDoor {
        /// Makes a door with the policies of this file.
        ///
        /// # Panics
        /// If the file has errors.
        #[must_use]
        pub fn new(policies: &str, clock: Arc<dyn Clock>) -> Self {
            let runtime = fuzzed::runtime();
            let service = runtime.block_on(async { Service::new(fuzzed::app(policies, clock).await) });
            Self { runtime, service }
        }

        /// Answers the body of a call, or with a code and a message. `details`: the value of `x-tidegate-details`.
        pub fn answer(&self, details: &'static str, body: &[u8]) -> Result<Vec<u8>, (u8, String)> {
            let mut headers = HeaderMap::new();
            headers.insert("x-tidegate-details", HeaderValue::from_static(details));
            let answered = self.runtime.block_on(async {
                let message = framing::message(Bytes::copy_from_slice(body))?;
                super::answer(&self.service, &Turn::default(), &headers, message).await
            });
            match answered {
                Ok(body) => Ok(body.to_vec()),
                Err(status) => Err((status.code as u8, status.message.into_owned())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    #[test]
    fn bytes_that_are_no_text_count_as_question_marks() {
        // The domain "d\xff", an entry "k" with the value "a\xc3(\xe2\x82", the number 1, and an unknown field.
        let mut call =
            b"\x0a\x02d\xff\x12\x0c\x0a\x0a\x0a\x01k\x12\x05a\xc3(\xe2\x82\x18\x01\x52\x01\xff".to_vec();
        assert!(RateLimitRequest::decode(&call[..]).is_err());
        repair_utf8(&mut call, Shape::Call);
        let read = RateLimitRequest::decode(&call[..]).unwrap();
        assert_eq!((&*read.domain, read.hits_addend), ("d?", 1));
        assert_eq!(read.descriptors[0].entries[0].value, "a?(??");
    }

    proptest! {
        #[test]
        fn any_bytes_end_and_what_can_be_read_stays(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let before = RateLimitRequest::decode(&bytes[..]).ok();
            repair_utf8(&mut bytes, Shape::Call);
            if let Some(before) = before {
                prop_assert_eq!(RateLimitRequest::decode(&bytes[..]).ok(), Some(before));
            }
        }
    }
}
