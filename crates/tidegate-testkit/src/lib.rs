//! Helpers for the tests of several crates. Not part of the product.
//!
//! * [`FaultyProxy`]: a proxy in front of a real server that simulates network faults; [`charge_under_faults`] makes
//!   charges through it
//! * [`RedisServer`], [`EtcdServer`], [`ZooKeeperServer`]: real servers on free loopback ports, each in a folder of its
//!   own, that end with the test. They need the Debian packages `redis-server`, `etcd-server` and `etcd-client`,
//!   `zookeeper`. If one is missing, a test says so and is skipped, unless `TIDEGATE_REQUIRE_SERVERS=1`: then it fails
//! * [`Process`], [`program`], [`built`], [`folder`]: the building blocks of these servers
//! * [`keep_tables`], [`table`], [`cell`], [`name`]: the tables of the manual that are made from the program
//! * [`within`], [`free_port`], [`free_address`], [`runtime`]: further helpers for tests with servers

mod faulty_proxy;
mod manual;
mod peer_wires;
mod process;
mod servers;

pub use faulty_proxy::{Charges, Fault, FaultyProxy, charge_under_faults};
pub use manual::{cell, keep_tables, name, table};
pub use peer_wires::PeerWires;
pub use process::{
    PATIENCE, Process, built, folder, free_address, free_port, missing, program, python_program, runtime,
    within,
};
pub use servers::{EtcdServer, RedisServer, ZooKeeperServer};
