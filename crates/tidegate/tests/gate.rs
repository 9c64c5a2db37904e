//! Gates: what a check decides, charges, settles and tells.

mod adaptive_guard;
mod admission_orders;
mod async_send;
mod canary;
mod charge_each;
mod check;
mod client_ip;
mod deadlines;
mod guards;
mod keep_for;
#[cfg(all(feature = "config", feature = "http"))]
mod next_hop;
mod observed;
mod over;
mod paced_work;
mod policy_set;
mod races;
mod together;
