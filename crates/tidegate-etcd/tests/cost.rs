//! `cargo test -p tidegate-etcd --test all cost -- --ignored --nocapture` prints a table of `docs/figures.md`.

use std::sync::Arc;

mod measure;
use crate::server;

#[test]
#[ignore = "prints figures, and asserts nothing"]
fn what_a_decision_costs() {
    let Some(server) = server::Server::start(&[]) else { return };
    let runtime = tidegate_testkit::runtime();
    let store = Arc::new(server.connect(&runtime).store());
    measure::table(&runtime, Arc::clone(&store));
    measure::batches(&runtime, &store);
}
