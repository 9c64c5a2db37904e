//! The protocol of shares, in a world where anything may be late, lost, or cut off: is more ever in use than there is?
//!
//! Each exchange is taken apart: an engine does what it is asked at some time or never, and its answer comes at some later time or never.
//! Nodes crash and start again, believe to lead when they do not, and do not answer. The document may be deleted. All orders of events are
//! tried, to a bound; beyond it, long random walks with more nodes.

mod world;

use std::collections::{HashSet, VecDeque};

use world::{Event, Random, World};

/// A world in which peers, or so many regions of them, have divided the pool, and the first one leads.
fn settled(peers: usize, regions: usize) -> World {
    let mut world = World::new(peers, regions);
    // One begins the document, asks all, divides, and gives what was given up.
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

/// All orders of events, from a world where the pool is divided and demand has just turned, as far as a hundred thousand worlds go.
#[test]
fn no_order_of_events_has_more_in_use_than_there_is() {
    every_order_from(settled(2, 0));
}

/// The same where two of three peers are in one region.
#[test]
fn no_order_of_events_has_regions_use_more_than_there_is() {
    every_order_from(settled(3, 2));
}

fn every_order_from(mut first: World) {
    const WORLDS: usize = 60_000;
    first.happens(Event::Turns);
    let mut seen = HashSet::from([first.key()]);
    let mut next = VecDeque::from([(first, Vec::new())]);
    while let Some((world, path)) = next.pop_front() {
        for event in world.events() {
            let mut after = world.clone();
            after.happens(event);
            let told = || format!("{path:?} then {event:?}");
            after.judge(&told);
            if seen.len() < WORLDS && seen.insert(after.key()) {
                let mut path = path.clone();
                path.push(event);
                next.push_back((after, path));
            }
        }
    }
}

/// Long walks, in which some events come more often than others, so that rounds end and shares move.
#[test]
fn no_long_walk_has_more_in_use_than_there_is() {
    let mut moved = 0;
    for seed in 0..400 {
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
    assert!(moved > 10_000, "shares have hardly moved: {moved}");
}

/// One peer after the other is asked for everything, for ten looks each: nearly all of it is where it is asked for, but while it moves.
#[test]
fn what_there_is_goes_where_it_is_asked_for() {
    let mut world = settled(4, 0);
    let (mut used, mut of) = (0u64, 0u64);
    for second in 0..400u64 {
        if second % 20 == 0 {
            world.happens(Event::Turns);
        }
        world.happens(Event::Tick);
        // A look every second, and each node's round three times, as a change wakes it.
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
        // A look that asks, a round to see that and one to answer, and what is given up has to be seen too.
        if second % 20 >= 4 {
            let hot = world.peers.iter().find(|peer| peer.demand > 0).unwrap();
            used += u64::from(hot.node.at(world.tick()) + world.division.own());
            of += u64::from(crate::cluster::Part::WHOLE);
        }
    }
    let hundredths = used * 100 / of;
    assert!(hundredths >= 90, "{hundredths} %");
}
