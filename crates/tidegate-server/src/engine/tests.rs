//! The parts of an engine together: one limit in memory, and a clock that stands still.

use std::net::{Ipv4Addr, SocketAddr};

use tidegate::clock::ManualClock;
use tidegate::config::StoreSettings;
use tidegate::gate::ticket::TicketError;
use tidegate::gate::{Check, Part};
use tidegate::policy::{Descriptor, Limit, Policy};
use tidegate::{Charged, Outcome, Quota};

use super::*;
use crate::metrics::Transport;
use crate::ticket_options::TicketOptions;

/// Makes an engine with one policy: one request a minute, for all together.
fn engine() -> Engine {
    let quota = Quota::per_minute(1).gcra().unwrap();
    let policies = PolicySet::new(vec![Policy::new("all", Limit::new(quota, "1/minute"))]).unwrap();
    let store = OpenStore::in_memory(&StoreSettings::default(), Some(100)).unwrap();
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let seal = TicketSeal::of(&TicketOptions::default(), &here.into()).unwrap();
    let clock = Arc::new(ManualClock::at(Tick::from_secs(1000)));
    Engine::new(&Settings::new(policies), store, clock, seal, EngineOptions::default())
}

async fn take(engine: &Engine, check: Check<'_, '_>, held: Option<&mut Charged>) -> Conclusion {
    engine.deciding.decide(&engine.live(), check, None, Want::Take, held, Transport::http).await
}

#[tokio::test]
async fn a_refusal_is_found_by_its_id_and_a_permission_is_not() {
    let (engine, request) = (engine(), Descriptor::new());
    let check = Check::of(&request);
    let (first, second) = (take(&engine, check, None).await, take(&engine, check, None).await);
    assert_eq!((first.allowed(), second.allowed()), (true, false));
    let name = |conclusion: &Conclusion| engine.telemetry.name(&engine.live(), &check, None, conclusion);
    assert!(engine.telemetry.find(name(&first)).is_none());
    let refused = engine.telemetry.find(name(&second)).unwrap();
    assert_eq!((refused.record.policy.as_deref(), refused.record.by), (Some("all"), "limit"));
}

#[tokio::test]
async fn a_ticket_gives_its_units_back_once() {
    let (engine, request, mut held) = (engine(), Descriptor::new(), Charged::default());
    let check = Check::of(&request);
    let decided = take(&engine, check, Some(&mut held)).await;
    let id = engine.telemetry.name(&engine.live(), &check, None, &decided);
    let wanted = TicketFor::Caller(Some(true));
    let made = engine.tickets.make_or_undo(&request, &decided, &held, wanted, Some(id)).await;
    let ticket = made.unwrap().and_then(|answer| answer.ticket).unwrap();
    let undone = Settlement { part: Part::All, outcome: Outcome::Ignored, spent: Spent::Undone };
    let live = engine.live();
    let settled = engine.tickets.settle(&live, &ticket, &undone, |settled| settled.id).await;
    assert_eq!(settled.unwrap(), id);
    let again = engine.tickets.settle(&live, &ticket, &undone, |settled| settled.id).await;
    assert!(matches!(again, Err(SettleError::Ticket(TicketError::Settled))), "{again:?}");
    assert!(take(&engine, check, None).await.allowed());
    assert!(!take(&engine, check, None).await.allowed());
}

#[tokio::test]
async fn a_key_that_is_let_go_has_its_units_again() {
    let (engine, request) = (engine(), Descriptor::new());
    let check = Check::of(&request);
    assert!(take(&engine, check, None).await.allowed());
    let let_go = engine.keys.let_go(&engine.live(), 0, &request).await.unwrap();
    assert_eq!((let_go.unblocked, let_go.places, let_go.still_forced), (false, Some(0), Some(0)));
    assert!(take(&engine, check, None).await.allowed());
}
