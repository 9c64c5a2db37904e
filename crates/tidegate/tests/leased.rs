//! Leases: what they admit, what they cost, and where units go when something fails.

mod behaviour;
mod distances;
mod loads;
mod refusals;
mod settled;
mod together;
mod world;
