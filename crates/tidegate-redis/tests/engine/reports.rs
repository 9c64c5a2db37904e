//! What nodes report to one another.

use crate::servers::{Server, connect, options, runtime};

#[test]
fn nodes_read_each_other_until_they_leave_or_are_silent_for_ten_seconds() {
    let Some(server) = Server::start_with_clock() else { return };
    let runtime = runtime();
    let options = options(&server);
    let names = (options.clone(), options.clone());
    let (one, two) = (connect(&runtime, names.0), connect(&runtime, names.1));
    let tell = |store: &tidegate_redis::RedisStore, node: &str, report: &str| {
        let mut all = runtime.block_on(store.exchange_reports(node, report)).unwrap().nodes;
        all.sort_unstable();
        all
    };
    assert_eq!(tell(&one, "1", "of one"), ["of one"]);
    assert_eq!(tell(&two, "2", "of two"), ["of one", "of two"]);
    server.set_clock(9);
    assert_eq!(tell(&one, "1", "anew"), ["anew", "of two"], "each has one report");
    server.set_clock(13);
    assert_eq!(tell(&one, "1", "anew"), ["anew"], "the other was silent");
    assert_eq!(tell(&two, "2", "of two"), ["anew", "of two"]);
    assert_eq!(tell(&one, "1", ""), ["of two"], "it has left");
    // After a step back of the clock, what nodes report anew counts.
    server.set_clock(-86_400);
    assert_eq!(tell(&one, "1", "of one"), ["of one"]);
}

/// A namespace has its own nodes; a key that something else has taken is an error, not a wrong answer.
#[test]
fn reports_are_of_one_namespace_and_a_foreign_value_is_an_error() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let (one, other) =
        (connect(&runtime, options(&server)), connect(&runtime, options(&server).namespace("taken")));
    assert_eq!(runtime.block_on(one.exchange_reports("1", "a")).unwrap().nodes, ["a"]);
    assert_eq!(runtime.block_on(other.exchange_reports("1", "b")).unwrap().nodes, ["b"]);
    server.ask(&["SET", "tg:1:{taken:0}:nodes", "x"]);
    let error = runtime.block_on(other.exchange_reports("1", "b")).unwrap_err().to_string();
    assert!(error.contains("WRONGTYPE"), "{error}");
}

#[test]
fn a_report_tells_how_busy_the_server_is() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let look = || runtime.block_on(store.exchange_reports("1", "a")).unwrap();
    let before = look();
    assert!(before.memory > 0.0 && before.memory < 0.1, "of all of the machine: {before:?}");
    server.ask(&["CONFIG", "SET", "maxmemory", "5000000"]);
    let part = look().memory;
    assert!(part > 0.1 && part < 1.0, "{part} of 5 MB");
    server.ask(&["EVAL", "for i=1,30000000 do end", "0"]);
    let after = look();
    assert!(after.processor > before.processor, "{before:?} {after:?}");
}
