//! The size of cells, the deletion of full ones, and the handling of unreadable bytes.

use std::sync::Arc;

use tidegate::store::conformance::Random;
use tidegate::store::{Charge, Op, StoreError};
use tidegate_core::{Cost, Quota};

use crate::servers::{Server, allowed, ask, blocking_each, connect, left, options, runtime, take, within};
use tidegate::store::{Step, StepClock};
use tidegate_core::Tick;

fn quota(count: u64, burst: u64) -> Arc<Quota> {
    Arc::new(Quota::per_second(count).burst(burst).gcra().unwrap())
}

/// Takes a unit of each of many keys.
fn touch(store: &tidegate_redis::RedisStore, quota: &Arc<Quota>, keys: std::ops::Range<u32>) {
    let keys: Vec<[u8; 4]> = keys.map(u32::to_be_bytes).collect();
    for keys in keys.chunks(100) {
        let charges: Vec<[Charge<'_>; 1]> =
            keys.iter().map(|key| [Charge::new(key, quota, Cost::ONE)]).collect();
        let engine = |charges| Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, Op::Take, charges) };
        let steps: Vec<Step<'_>> = charges.iter().map(|charges| engine(charges)).collect();
        for answer in blocking_each(store, &steps) {
            assert!(answer.unwrap().allowed);
        }
    }
}

fn bytes_of(server: &Server, key: &str) -> i64 {
    redis::from_redis_value(server.ask(&["MEMORY", "USAGE", key, "SAMPLES", "0"])).unwrap()
}

#[test]
fn a_cell_takes_less_than_100_bytes_and_less_than_half_in_a_small_hash() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let daily = Arc::new(Quota::per_day(5000).burst(100).gcra().unwrap());
    for (cells, most) in [(400, 45), (20_000, 100)] {
        let options = options(&server).namespace(&format!("room-{cells}")).shards(1);
        let store = connect(&runtime, options);
        touch(&store, &daily, 0..cells);
        let key = format!("tg:1:{{room-{cells}:0}}:h");
        let held: i64 = redis::from_redis_value(server.ask(&["HLEN", &key])).unwrap();
        assert_eq!(held, i64::from(cells));
        let each = bytes_of(&server, &key) / held;
        println!("{cells} cells in one hash: {each} bytes each");
        assert!(each <= most, "{each} bytes a cell, of {cells} in one hash");
    }
}

/// Keys that are never used again must not fill the server.
#[test]
fn full_cells_are_deleted_while_others_are_used() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).namespace("swept").shards(4));
    let (fast, slow) = (quota(1000, 5), Arc::new(Quota::per_day(5).gcra().unwrap()));
    touch(&store, &fast, 0..3000);
    take(&store, b"slow", &slow, 3).unwrap();
    let held = || -> i64 {
        let of = |shard| redis::from_redis_value(server.ask(&["HLEN", &format!("tg:1:{{swept:{shard}}}:h")]));
        (0..4).map(|shard| of(shard).unwrap_or(0i64)).sum()
    };
    within("full cells are deleted", || {
        allowed(&store, b"busy", &slow, 100);
        held() < 60
    });
    // The count is raised when the server has answered, which may be after the deletion is visible here.
    within("what was deleted is counted", || store.counts().swept > 2900);
    assert_eq!(left(&store, b"slow", &slow), 2, "what is not full stays");
}

#[test]
fn garbage_in_a_cell_is_that_keys_trouble_alone() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).namespace("garbage").shards(1));
    let quota = quota(1, 5);
    take(&store, b"bad", &quota, 1).unwrap();
    let fields: Vec<Vec<u8>> = redis::from_redis_value(server.ask(&["HKEYS", "tg:1:{garbage:0}:h"])).unwrap();
    let good: Vec<u8> = {
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        redis::cmd("HGET").arg("tg:1:{garbage:0}:h").arg(&fields[0]).query(&mut connection).unwrap()
    };
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut put = |bytes: &[u8]| {
        let mut command = redis::cmd("HSET");
        command.arg("tg:1:{garbage:0}:h").arg(&fields[0]).arg(bytes);
        command.exec(&mut connection).unwrap();
    };
    // A good cell with every byte changed, cut at every length, and noise of every length.
    let mut random = Random::seeded(7);
    let changed = (0..good.len() * 3).map(|at| {
        let mut bytes = good.clone();
        bytes[at % good.len()] = random.below(256) as u8;
        bytes
    });
    let mut tried: Vec<Vec<u8>> = changed.collect();
    tried.extend((1..good.len()).map(|length| good[..length].to_vec()));
    tried.extend((1..80).map(|length| (0..length).map(|_| random.below(256) as u8).collect()));
    let mut corrupt = 0;
    for bytes in tried {
        put(&bytes);
        match take(&store, b"bad", &quota, 1) {
            Ok(_) => {}
            Err(StoreError::Corrupt { charge: 0, .. }) => corrupt += 1,
            Err(error) => panic!("{bytes:?}: {error}"),
        }
        assert!(take(&store, b"other", &quota, 6).is_ok(), "others are decided");
        ask(&store, Op::Reset, &[Charge::new(b"bad", &quota, Cost::ONE)]).unwrap();
        assert_eq!(left(&store, b"bad", &quota), 5, "a reset mends {bytes:?}");
    }
    assert!(corrupt > 50, "{corrupt}");
}

#[test]
fn a_key_that_is_no_hash_stops_its_shard_alone_until_it_is_reset() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).namespace("type").shards(2));
    let quota = quota(1, 5);
    let keys: Vec<[u8; 1]> = (0..16).map(|key| [key]).collect();
    server.ask(&["SET", "tg:1:{type:0}:h", "not ours"]);
    let refused: Vec<_> = keys.iter().filter(|key| take(&store, &key[..], &quota, 1).is_err()).collect();
    assert!((1..16).contains(&refused.len()), "{} of 16 lie in the one shard", refused.len());
    let error = take(&store, refused[0], &quota, 1).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert_eq!(server.text(&["GET", "tg:1:{type:0}:h"]), "not ours", "nothing is done to it unasked");
    ask(&store, Op::Reset, &[Charge::new(refused[0], &quota, Cost::ONE)]).unwrap();
    assert!(keys.iter().all(|key| take(&store, key, &quota, 1).unwrap().allowed));
}

/// Several limits of one request are decided in one call, in whichever hashes their cells are.
#[test]
fn limits_of_one_request_are_all_spent_or_none() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).shards(64));
    let (wide, narrow) = (quota(1, 1_000_000), Arc::new(Quota::per_day(50).fixed_window().unwrap()));
    let charges = [
        Charge::new(b"user", &wide, Cost::ONE),
        Charge::new(b"tenant", &wide, Cost::ONE),
        Charge::new(b"all", &narrow, Cost::ONE),
    ];
    let before = store.counts();
    let allowed = (0..500).filter(|_| ask(&store, Op::Take, &charges).unwrap().allowed).count();
    let after = store.counts();
    assert_eq!(allowed, 50);
    // A unit or more has been refilled in a second; refused requests were not charged.
    assert!(left(&store, b"user", &wide) >= 1_000_000 - 50);
    assert_eq!((after.exchanges - before.exchanges, after.by_library), (500, 0), "one round trip each");
}
