//! The suite that every store passes, over a real server.

use std::sync::Arc;

use tidegate::store::conformance;
use tidegate_redis::RedisStore;

use crate::servers::{Server, connect, options, runtime};

#[test]
fn a_single_server_conforms() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    conformance::run(|| connect(&runtime, options(&server)), &conformance::quotas(), 500);
}

#[test]
fn a_single_server_conforms_by_a_clock_that_jumps() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let make = |clock| {
        let connected = RedisStore::connect_with_clock(options(&server), Arc::new(clock));
        runtime.block_on(connected).unwrap()
    };
    conformance::run_by_clock(make, &conformance::quotas(), 500);
}
