//! What tests of several crates have in common. No part of the product.
//!
//! * [`FaultyProxy`]: stands before a real server, and does to its connections what networks do; [`charge_under_faults`]
//!   has something charged through it
//! * [`RedisServer`], [`EtcdServer`], [`ZooKeeperServer`]: real servers on free ports of loopback, each in a folder of its own, that end with the
//!   test. They need the Debian packages `redis-server`, `etcd-server` and `etcd-client`, `zookeeper`. Where one is missing a test says so and
//!   skips, unless `TIDEGATE_REQUIRE_SERVERS=1`: then it fails
//! * [`Process`], [`program`], [`built`], [`folder`]: what those are made of
//! * [`FaultRun`]: what is noted of a run of fault scenarios
//! * [`within`], [`free_port`], [`runtime`]: what tests over them need

mod charges;
mod etcd_server;
mod fault_run;
mod faulty_proxy;
mod process;
mod redis_server;
mod tcp;
mod waiting;
mod zookeeper_server;

pub use charges::{Charges, charge_under_faults};
pub use etcd_server::EtcdServer;
pub use fault_run::FaultRun;
pub use faulty_proxy::{Fault, FaultyProxy};
pub use process::{Process, built, folder, missing, program, python_program};
pub use redis_server::RedisServer;
pub use waiting::{PATIENCE, free_port, runtime, within};
pub use zookeeper_server::ZooKeeperServer;
