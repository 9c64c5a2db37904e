//! What is proposed for logs in which it is known who is who.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harm;
mod held_out;
mod judge;
mod plants;
mod scenarios;
mod traffic;
