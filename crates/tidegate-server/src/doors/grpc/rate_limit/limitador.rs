//! `kuadrant.service.ratelimit.v1.RateLimitService`: Limitador's own service, for Kuadrant's filter. A request is
//! checked and its cost reported once known; or an estimate is reserved and the real cost committed.
//!
//! | method | here |
//! |---|---|
//! | `CheckRateLimit` | checks, and spends nothing |
//! | `Report` | books the units, even beyond the limit |
//! | `Reserve` | charges the estimate; the reservation is a ticket, and the node returns its units when `ttl` is over |
//! | `Commit` | settles the ticket: unused units come back, additional ones become a debt; without a ticket, or after `ttl`, a report |
//!
//! The first two use Envoy's messages.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tidegate::Outcome;
use tidegate::gate::ticket::{Ticket, TicketError};
use tidegate::gate::{Charged, Check, Part};
use tidegate::policy::Usage;

use super::super::envoy::{RateLimitCode, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use super::super::framing::{self, Code, Status};
use super::super::service::Service;
use super::descriptors::{self, CallDescriptor, Units};
use super::response::{self, Details};
use crate::active_config::ActiveConfig;
use crate::decider::{Committed, Conclusion, Decider, SettleError, Settlement, Spent, TicketFor, Together};
use crate::doors::HungUp;
use crate::metrics::{RequestOutcome, Transport};

pub(in super::super) const CHECK: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";

pub(in super::super) const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";

pub(in super::super) const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";

pub(in super::super) const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";

/// The reservation id of a request that no limit was charged for, so there is nothing to settle.
const UNLIMITED: &str = "unlimited";

/// `kuadrant.service.ratelimit.v1.ReserveRequest`
#[derive(Clone, PartialEq, Message)]
struct ReserveRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    amount: u64,
    /// How long the reservation holds without a commit. After that its units are returned.
    #[prost(message, optional, tag = "4")]
    ttl: Option<prost_types::Duration>,
}

/// `kuadrant.service.ratelimit.v1.ReserveResponse`
#[derive(Clone, PartialEq, Eq, Message)]
struct ReserveResponse {
    /// A [`RateLimitCode`].
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    reservation_id: String,
}

/// `kuadrant.service.ratelimit.v1.CommitRequest`
#[derive(Clone, PartialEq, Message)]
struct CommitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(string, tag = "3")]
    reservation_id: String,
    #[prost(uint64, tag = "4")]
    actual_amount: u64,
}

/// `kuadrant.service.ratelimit.v1.CommitResponse`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct CommitResponse {
    #[prost(bool, tag = "1")]
    reservation_released: bool,
}

/// Answers whether a request would pass, and spends nothing.
///
/// # Errors
/// As [`super::answer`].
pub(in super::super) async fn check(service: &Service, message: Bytes) -> Result<Bytes, Status> {
    let request = super::read(&message)?;
    let decider = &service.app.decider;
    let live = decider.live();
    let descriptors = descriptors::read(&request, &service.quotas, &live)?;
    if descriptors.iter().any(|descriptor| descriptor.refused.is_some()) {
        decider.metrics.requests.count(Transport::grpc, RequestOutcome::denied);
        return Ok(framing::body(&response::refused(&descriptors)));
    }
    let together = decide(decider, &live, &descriptors, Check::peek, None).await?;
    let Together { conclusions, allowed, .. } = together;
    let facts = |conclusion: &Conclusion| conclusion.facts(&live, &decider.metrics);
    let mut answer = response::decided(&descriptors, &conclusions, allowed, facts);
    // Kuadrant's filter refuses what is over its limit.
    Details { enforces: true, ..Details::default() }.write(
        decider,
        &live,
        &descriptors,
        &conclusions,
        &mut answer,
        allowed,
    );
    Ok(framing::body(&answer))
}

/// Books units that were spent, even beyond the limit.
///
/// # Errors
/// As [`super::answer`]; [`Code::Unavailable`] if not everything was booked.
///
/// # Cancel safety
/// If dropped, what was booked stays so: some descriptors, or some limits of one.
pub(in super::super) async fn report(service: &Service, message: Bytes) -> Result<Bytes, Status> {
    book(service, &super::read(&message)?).await?;
    let answer = RateLimitResponse { overall_code: RateLimitCode::Ok as i32, ..RateLimitResponse::default() };
    Ok(framing::body(&answer))
}

/// Charges an estimate, in all limits or in none.
///
/// # Errors
/// As [`super::answer`]. A ticket too long is a refusal, and charges nothing.
///
/// # Cancel safety
/// If dropped before it ends, it has charged nothing.
pub(in super::super) async fn reserve(service: &Service, message: Bytes) -> Result<Bytes, Status> {
    let ReserveRequest { domain, descriptors, amount, ttl } =
        ReserveRequest::decode(message).map_err(|error| not_a("ReserveRequest", &error))?;
    let request = call(domain, descriptors, amount);
    let decider = &service.app.decider;
    let live = decider.live();
    let descriptors = descriptors::read(&request, &service.quotas, &live)?;
    let refused = ReserveResponse { code: RateLimitCode::OverLimit as i32, reservation_id: String::new() };
    if descriptors.iter().any(|descriptor| descriptor.refused.is_some()) {
        decider.metrics.requests.count(Transport::grpc, RequestOutcome::denied);
        return Ok(framing::body(&refused));
    }
    let mut hung_up = HungUp { decider, held: Some(Charged::default()), ticket: None };
    let together = decide(decider, &live, &descriptors, |check| check, hung_up.held.as_mut()).await?;
    if !together.allowed {
        return Ok(framing::body(&refused));
    }
    if !together.wait.is_zero() {
        tokio::time::sleep(together.wait).await;
    }
    let ticket = match (descriptors.first(), together.conclusions.first(), &hung_up.held) {
        (Some(first), Some(conclusion), Some(held)) => {
            let id = decider.telemetry.name(&live, &first.check(), None, conclusion);
            decider.tickets.make(
                &first.request,
                conclusion,
                held,
                TicketFor::Reservation(holds(decider, ttl)),
                id,
            )
        }
        _ => None,
    };
    let reservation_id = match ticket {
        None => UNLIMITED.to_owned(),
        Some(answer) => match (answer.ticket, answer.error) {
            (Some(ticket), _) => {
                decider.tickets.remember_reservation(&ticket);
                ticket.to_string()
            }
            // A client's long header may have made the keys too long for a ticket, and an error would let the request
            // pass at a proxy that fails open. Dropping `hung_up` undoes the charges.
            (None, _) => return Ok(framing::body(&refused)),
        },
    };
    hung_up.held = None;
    Ok(framing::body(&ReserveResponse { code: RateLimitCode::Ok as i32, reservation_id }))
}

/// Settles a reservation with what was spent. Without one, or after its end, books it.
///
/// # Errors
/// As [`report`].
///
/// # Cancel safety
/// A reservation is settled once or not at all; else as [`report`].
pub(in super::super) async fn commit(service: &Service, message: Bytes) -> Result<Bytes, Status> {
    let CommitRequest { domain, descriptors, reservation_id, actual_amount } =
        CommitRequest::decode(message).map_err(|error| not_a("CommitRequest", &error))?;
    let decider = &service.app.decider;
    if let Ok(ticket) = reservation_id.parse::<Ticket>() {
        let (outcome, spent) = match actual_amount {
            0 => (Outcome::Ignored, Spent::Undone),
            units => (Outcome::Success, Spent::Usage(Usage::cost(units))),
        };
        let settlement = Settlement { part: Part::All, outcome, spent };
        match decider.tickets.commit(&ticket, &settlement).await {
            Ok(Committed::Settled) => {
                return Ok(framing::body(&CommitResponse { reservation_released: true }));
            }
            // The earlier settlement stands. Booking these units too would count them twice.
            Ok(Committed::Repeated) => {
                return Ok(framing::body(&CommitResponse { reservation_released: false }));
            }
            Err(SettleError::Ticket(TicketError::Store(error))) => {
                return Err(Status::new(Code::Unavailable, error.to_string()));
            }
            // The estimate was returned, or the ticket is not from this server: nothing is charged.
            Ok(Committed::Ended) | Err(_) => {}
        }
    }
    if actual_amount > 0 && !descriptors.is_empty() {
        book(service, &call(domain, descriptors, actual_amount)).await?;
    }
    Ok(framing::body(&CommitResponse { reservation_released: false }))
}

/// Returns how long a reservation holds: the longest possible time if `ttl` is missing or invalid.
fn holds(decider: &Decider, ttl: Option<prost_types::Duration>) -> Duration {
    let longest = decider.tickets.longest_reservation();
    ttl.and_then(|ttl| Duration::try_from(ttl).ok()).map_or(longest, |ttl| ttl.min(longest))
}

/// Makes a call in which each descriptor has so many units.
fn call(domain: String, mut descriptors: Vec<RateLimitDescriptor>, units: u64) -> RateLimitRequest {
    for descriptor in &mut descriptors {
        descriptor.hits_addend = Some(units);
        descriptor.is_negative_hits = false;
    }
    RateLimitRequest { domain, descriptors, hits_addend: 0 }
}

async fn decide<'a, 'r>(
    decider: &Decider,
    live: &ActiveConfig,
    descriptors: &'a [CallDescriptor<'r>],
    how: impl Fn(Check<'a, 'r>) -> Check<'a, 'r>,
    held: Option<&mut Charged>,
) -> Result<Together, Status> {
    let checks: Vec<Check<'_, '_>> = descriptors.iter().map(|descriptor| how(descriptor.check())).collect();
    let together = decider.deciding.decide_together(live, &checks, held, Transport::grpc).await;
    together.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))
}

async fn book(service: &Service, request: &RateLimitRequest) -> Result<(), Status> {
    let decider = &service.app.decider;
    let live = decider.live();
    for descriptor in descriptors::read(request, &service.quotas, &live)? {
        // A value that is too long has no key under which it could be booked.
        if descriptor.refused.is_some() {
            continue;
        }
        match descriptor.units {
            Units::Peek => {}
            Units::GiveBack(units) => {
                decider.tickets.give_back(descriptor.check().maybe_cost(Some(units))).await;
            }
            Units::Take(_) => decider.tickets.book(descriptor.check(), 1).await.map_err(|error| {
                tracing::warn!(%error, "units that were spent elsewhere were not booked");
                Status::new(Code::Unavailable, error.to_string())
            })?,
        }
    }
    Ok(())
}

fn not_a(kind: &str, error: &prost::DecodeError) -> Status {
    Status::new(Code::Internal, format!("the message is not a {kind}: {error}"))
}
