//! Proposals for generated logs in which it is known which clients are to be cut.

mod harm;
mod held_out;
mod judge;
mod plants;
mod scenarios;
mod strangers;
mod traffic;
mod training;
