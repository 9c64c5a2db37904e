//! What follows a decision: its name, and its ticket.

use tidegate::Check;
use ulid::Ulid;

use crate::engine::{Conclusion, Engine, Held, NoTicket, TicketAnswer, TicketFor, Want};
use crate::live::Live;

/// A decision that was given a name.
#[derive(Debug)]
pub(crate) struct Named {
    /// The name; `None` of a look.
    pub(crate) id: Option<Ulid>,
    /// The ticket, or why there is none; `None` where nobody wants one.
    pub(crate) ticket: Option<TicketAnswer>,
}

/// Names a decision and makes its ticket. `held` is what it charged, which may be undone here.
///
/// # Errors
/// [`NoTicket`] where a place was taken and there is no ticket that returns it: everything was undone. Otherwise a few callers with
/// long keys would hold all places until their time to live is over.
#[allow(clippy::too_many_arguments, reason = "what was asked, and what came of it")]
pub(crate) async fn conclude(
    engine: &Engine,
    live: &Live,
    check: &Check<'_, '_>,
    only: Option<&[usize]>,
    want: Want,
    wanted: TicketFor,
    conclusion: &Conclusion,
    held: &Held,
) -> Result<Named, NoTicket> {
    let id = (want == Want::Take).then(|| engine.name(live, check, only, conclusion));
    let ticket = id.and_then(|id| engine.ticket(check.request, conclusion, held, wanted, id));
    match ticket {
        Some(TicketAnswer { error: Some(none), .. }) if none.keeps_place => {
            // In a box: every check would have room for it.
            Box::pin(engine.undo(held)).await;
            Err(none)
        }
        ticket => Ok(Named { id, ticket }),
    }
}
