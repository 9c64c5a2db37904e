//! The steps after a decision: its id and its ticket.

use tidegate::{Charged, Check};
use ulid::Ulid;

use crate::active_config::ActiveConfig;
use crate::engine::{Conclusion, Engine, NoTicket, TicketAnswer, TicketFor, Want};

/// A decision's id and ticket.
#[derive(Debug)]
pub(crate) struct Named {
    /// The id; `None` for a look.
    pub(crate) id: Option<Ulid>,
    /// The ticket, or why there is none; `None` if nobody wants one.
    pub(crate) ticket: Option<TicketAnswer>,
}

/// Gives a decision its id and its ticket. `held` has its charges, which may be undone here.
///
/// # Errors
/// [`NoTicket`] if a place was taken and no ticket could be made that returns it; then everything is undone. Otherwise
/// a few callers with long keys could hold all places until their time to live is over.
#[allow(clippy::too_many_arguments, reason = "what was asked, and what came of it")]
pub(crate) async fn conclude(
    engine: &Engine,
    live: &ActiveConfig,
    check: &Check<'_, '_>,
    only: Option<&[usize]>,
    want: Want,
    wanted: TicketFor,
    conclusion: &Conclusion,
    held: &Charged,
) -> Result<Named, NoTicket> {
    let id = (want == Want::Take).then(|| engine.telemetry.name(live, check, only, conclusion));
    let ticket = id.and_then(|id| engine.tickets.make(check.request, conclusion, held, wanted, id));
    match ticket {
        Some(TicketAnswer { error: Some(none), .. }) if none.keeps_place => {
            // Boxed: otherwise every check would reserve space for it.
            Box::pin(engine.tickets.undo(held)).await;
            Err(none)
        }
        ticket => Ok(Named { id, ticket }),
    }
}
