//! A model check of the protocol of shares, in a world where anything may be late, lost, or cut off: is more ever in
//! use than the pool?
//!
//! Each exchange is split: the engine acts on a request at some time or never, and its answer arrives at some later
//! time or never. Nodes crash and start again, believe that they lead when they do not, and do not answer. The document
//! may be deleted. All orders of events are tried, up to a bound; beyond it, long random walks with more nodes.

mod world;

use std::collections::{HashSet, VecDeque};

use world::{Event, Random, World};

use crate::sync::short_or_long;

/// A world in which peers, or the given number of regions, have divided the pool, and the first one leads.
fn settled(peers: usize, regions: usize) -> World {
    let mut world = World::new(peers, regions);
    // The leader begins the document, asks all, divides, and hands out the parts that were given up.
    for _ in 0..8 {
        world.happens(Event::Tick);
        for at in 0..peers {
            for _ in 0..4 {
                world.happens(Event::Step(at));
            }
        }
        for _ in 0..3 {
            world.happens(Event::Looks(0));
        }
    }
    for at in 0..peers {
        for _ in 0..4 {
            world.happens(Event::Step(at));
        }
    }
    let (used, pool) = world.used();
    assert!(used > pool / 10 * 9, "{used} is in use: {:?}", world.document);
    world
}

/// All orders of events, from a world where the pool is divided and demand has just changed, up to a hundred thousand
/// worlds.
#[test]
fn no_order_of_events_has_more_in_use_than_there_is() {
    every_order_from(settled(2, 0));
}

/// The same, with two of three peers in one region.
#[test]
fn no_order_of_events_has_regions_use_more_than_there_is() {
    every_order_from(settled(3, 2));
}

fn every_order_from(mut first: World) {
    let worlds = short_or_long(12_000, 60_000);
    first.happens(Event::Turns);
    let mut seen = HashSet::from([first.key()]);
    let mut next = VecDeque::from([(first, Vec::new())]);
    while let Some((world, path)) = next.pop_front() {
        for event in world.events() {
            let mut after = world.clone();
            after.happens(event);
            let told = || format!("{path:?} then {event:?}");
            after.judge(&told);
            if seen.len() < worlds && seen.insert(after.key()) {
                let mut path = path.clone();
                path.push(event);
                next.push_back((after, path));
            }
        }
    }
}

/// Long walks, in which some events are more frequent than others, so that rounds complete and shares move.
#[test]
fn no_long_walk_has_more_in_use_than_there_is() {
    let mut moved = 0;
    let seeds = short_or_long(100, 400);
    for seed in 0..seeds {
        let mut random = Random(seed);
        let peers = 2 + random.below(4) as usize;
        // Every second world has regions, and every fourth loses its document.
        let regions = if seed % 2 == 0 { 0 } else { 2 };
        let mut world = settled(peers, regions);
        world.deletes = seed % 8 < 2;
        let before = world.document.as_ref().map_or(0, |document| document.turn);
        for step in 0..3_000 {
            let at = random.below(peers as u64) as usize;
            let event = match random.below(200) {
                0..25 => Event::Tick,
                25..110 => Event::Step(at),
                110..185 => Event::Looks(if random.below(3) == 0 { at } else { 0 }),
                185..190 => Event::Loses(at),
                190..195 => Event::LooksAway(at),
                195 => Event::Restarts(at),
                196 if world.deletes => Event::Deletes,
                _ => Event::Turns,
            };
            world.happens(event);
            world.judge(&|| format!("seed {seed}, step {step}, {event:?}"));
        }
        moved += world.document.map_or(0, |document| document.turn.saturating_sub(before));
    }
    assert!(moved > 25 * seeds, "shares have hardly moved: {moved}");
}

/// Each peer in turn has all the demand, for ten looks: nearly the whole pool is where the demand is, except while it
/// moves.
#[test]
fn what_there_is_goes_where_it_is_asked_for() {
    let mut world = settled(4, 0);
    let (mut used, mut of) = (0u64, 0u64);
    for second in 0..400u64 {
        if second % 20 == 0 {
            world.happens(Event::Turns);
        }
        world.happens(Event::Tick);
        // A look every second, and three rounds of each node, as changes wake it.
        for _ in 0..3 {
            for at in 0..4 {
                for _ in 0..4 {
                    world.happens(Event::Step(at));
                }
            }
            for _ in 0..3 {
                world.happens(Event::Looks(0));
            }
        }
        world.judge(&|| format!("second {second}"));
        // Allows for a look that asks, a round to see that, one to answer, and one to see what was given up.
        if second % 20 >= 4 {
            let hot = world.peers.iter().find(|peer| peer.demand > 0).unwrap();
            used += u64::from(hot.node.at(world.tick()) + world.division.permanent_part());
            of += u64::from(crate::cluster::Part::WHOLE);
        }
    }
    let hundredths = used * 100 / of;
    assert!(hundredths >= 90, "{hundredths} %");
}
