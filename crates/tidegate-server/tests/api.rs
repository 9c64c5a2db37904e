//! The HTTP API: checks, reports, policies, keys and what they answer.

mod adaptive;
mod batch;
mod blocks;
mod breakers;
mod breakers_told;
mod bulkheads;
mod changed_limits;
mod check;
mod deadlines_and_over;
mod dry_run;
mod events;
mod extended_places;
mod in_flight;
mod in_force;
mod places;
mod priority;
mod put_policies;
mod reported_signals;
use crate::running;
mod scopes;
mod settled_halves;
mod settling;
mod shown;
mod sight;
mod switch_triggers;
mod ticket_in_header;
