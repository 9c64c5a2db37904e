//! A model check of the protocol of shares, in a world where anything may be late, lost, or cut off: is more ever in
//! use than the pool?
//!
//! Each exchange is split: the engine acts on a request at some time or never, and its answer arrives at some later
//! time or never. Nodes crash and start again, believe that they lead when they do not, and do not answer. The document
//! may be deleted. All orders of events are tried, up to a bound; beyond it, long random walks with more nodes.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use tidegate_core::Tick;
use tidegate_limits::sync::short_or_long;

use super::protocol::{Leader, Node, Seen};
use super::{Division, Reported, Shares, by_region, region_number};
use crate::MemberReport;

/// A generator of pseudo-random numbers, the same for one seed.
struct Random(u64);

impl Random {
    /// Returns a number below a bound.
    fn below(&mut self, bound: u64) -> u64 {
        // The multiplier and the step of Knuth's MMIX; the high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The number of ticks for which a member is kept: few enough that everything that can expire does so within a walk.
const KEEPS: u64 = 5;

/// The demand of the one peer that has any, in thousandths of a unit per second.
const DEMAND: u64 = 100_000;

const fn secs(ticks: u64) -> Duration {
    Duration::from_secs(ticks)
}

/// The progress of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Round {
    Idle,
    /// Has sent a renewal, at this tick, which reports this line and turn.
    Renews {
        began: Tick,
        seen: Seen,
    },
    /// Renewed; has not read yet.
    Renewed {
        began: Tick,
    },
    /// The engine has answered with this document; the answer is on its way.
    Reads {
        began: Tick,
        found: Option<Shares>,
    },
}

/// The progress of a look.
#[derive(Clone, Debug)]
enum Look {
    Idle,
    /// Has read the document at a version.
    Read {
        version: u64,
        found: Option<Shares>,
    },
    /// Has asked to replace that version.
    Writes {
        version: u64,
        next: Shares,
    },
}

/// The progress of a change that a peer makes to its own row, as a node that leaves or has joined.
#[derive(Clone, Debug)]
enum OwnRow {
    /// Wants to take what is free.
    Takes,
    TakesFrom {
        version: u64,
        found: Option<Shares>,
    },
    /// Has left, and wants to write that it holds nothing.
    GivesAway,
    Writes {
        version: u64,
        next: Shares,
    },
    Done,
}

#[derive(Clone, Debug)]
struct Peer {
    joined: u64,
    own_row: OwnRow,
    /// Whether it has left: it makes no more rounds.
    left: bool,
    /// Empty: it has a part of its own.
    region: String,
    node: Node,
    round: Round,
    leader: Leader,
    look: Look,
    demand: u64,
}

impl Peer {
    /// Its number in the document.
    fn number(&self) -> u64 {
        if self.region.is_empty() { self.joined } else { region_number(&self.region) }
    }
}

/// What the engine knows of a member.
#[derive(Clone, Debug)]
struct KnownMember {
    joined: u64,
    report: MemberReport,
    /// When it was last heard of.
    heard: u64,
}

impl KnownMember {
    /// A member that has reported nothing but its region.
    fn new(joined: u64, region: &str, heard: u64) -> Self {
        let report = MemberReport { region: region.to_owned(), ..MemberReport::default() };
        Self { joined, report, heard }
    }
}

#[derive(Clone, Debug)]
struct World {
    division: Division,
    now: u64,
    joined: u64,
    version: u64,
    /// The last number that was drawn.
    drawn: u64,
    document: Option<Shares>,
    /// What the engine knows of members.
    members: Vec<KnownMember>,
    peers: Vec<Peer>,
    /// The number of regions over which peers are spread in turn; 0: each peer has a part of its own.
    regions: usize,
    /// Whether the document may be deleted.
    deletes: bool,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Tick,
    /// A round of a peer makes one step.
    Step(usize),
    /// A round ends without an answer, wherever it was.
    Loses(usize),
    /// A look makes one step.
    Looks(usize),
    /// A look ends without an answer.
    LooksAway(usize),
    /// A peer crashes and starts again.
    Restarts(usize),
    /// The demand of peers changes.
    Turns,
    Deletes,
    /// A peer stops using its part and leaves.
    Leaves(usize),
    /// A peer changes its own row by one step.
    OwnRow(usize),
}

impl World {
    /// Makes a world of peers that each have a part, or that share the parts of the given number of regions.
    fn new(peers: usize, regions: usize) -> Self {
        let division = Division::among(if regions > 0 { regions } else { peers } as u64);
        let mut world = Self {
            division,
            now: 100,
            joined: 0,
            version: 0,
            drawn: 0,
            document: None,
            members: Vec::new(),
            peers: Vec::new(),
            regions,
            deletes: false,
        };
        for at in 0..peers {
            let peer = world.begins(at);
            world.peers.push(peer);
        }
        world.peers[0].demand = DEMAND;
        world
    }

    fn begins(&mut self, at: usize) -> Peer {
        let region = if self.regions > 0 { format!("region {}", at % self.regions) } else { String::new() };
        self.joined += 1;
        self.members.push(KnownMember::new(self.joined, &region, self.now));
        let own_row = if region.is_empty() { OwnRow::Takes } else { OwnRow::Done };
        Peer {
            joined: self.joined,
            own_row,
            left: false,
            region,
            node: Node::default(),
            round: Round::Idle,
            leader: Leader::new(self.division, secs(KEEPS)),
            look: Look::Idle,
            demand: 0,
        }
    }

    fn tick(&self) -> Tick {
        Tick::from_secs(self.now)
    }

    fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Tick, Event::Turns];
        for at in 0..self.peers.len() {
            events.extend([Event::Looks(at), Event::Restarts(at)]);
            if !self.peers[at].left {
                events.extend([Event::Step(at), Event::Leaves(at)]);
            }
            if !matches!(self.peers[at].own_row, OwnRow::Done) {
                events.push(Event::OwnRow(at));
            }
            if self.peers[at].round != Round::Idle {
                events.push(Event::Loses(at));
            }
            if !matches!(self.peers[at].look, Look::Idle) {
                events.push(Event::LooksAway(at));
            }
        }
        if self.deletes && self.document.is_some() {
            events.push(Event::Deletes);
        }
        events
    }

    fn happens(&mut self, event: Event) {
        let (now, tick) = (self.now, self.tick());
        match event {
            Event::Tick => {
                self.now += 1;
                self.members.retain(|member| self.now - member.heard < KEEPS);
            }
            Event::Turns => self.peers.rotate_demand(),
            Event::Deletes => self.document = None,
            Event::Restarts(at) => {
                let peer = self.begins(at);
                self.peers[at] = peer;
            }
            Event::Leaves(at) => {
                let peer = &mut self.peers[at];
                peer.node.leave();
                (peer.left, peer.round) = (true, Round::Idle);
                peer.own_row = if peer.region.is_empty() { OwnRow::GivesAway } else { OwnRow::Done };
                let joined = peer.joined;
                self.members.retain(|member| member.joined != joined);
            }
            Event::OwnRow(at) => self.change_own_row(at),
            Event::Step(at) if self.peers[at].left => {}
            Event::Loses(at) => self.peers[at].round = Round::Idle,
            Event::LooksAway(at) => self.peers[at].look = Look::Idle,
            Event::Step(at) => {
                let peer = &mut self.peers[at];
                peer.round = match std::mem::replace(&mut peer.round, Round::Idle) {
                    Round::Idle => Round::Renews { began: tick, seen: peer.node.seen() },
                    Round::Renews { began, seen } => {
                        match self.members.iter_mut().find(|member| member.joined == peer.joined) {
                            Some(member) => {
                                (member.report.line, member.report.turn) = (seen.line, seen.turn);
                                (member.report.demand, member.heard) = (peer.demand, now);
                                Round::Renewed { began }
                            }
                            None => {
                                // Forgotten: the peer gives up its part, and joins as a new member.
                                peer.node.leave();
                                self.joined += 1;
                                peer.joined = self.joined;
                                self.members.push(KnownMember::new(self.joined, &peer.region, now));
                                Round::Idle
                            }
                        }
                    }
                    Round::Renewed { began } => Round::Reads { began, found: self.document.clone() },
                    Round::Reads { began, found } => {
                        let number = peer.number();
                        peer.node.read(number, began, secs(KEEPS), found.as_ref());
                        Round::Idle
                    }
                };
            }
            Event::Looks(at) => {
                let reported =
                    |member: &KnownMember| Reported { number: member.joined, report: member.report.clone() };
                let members = by_region(self.members.iter().map(reported));
                self.drawn += 1;
                let drawn = self.drawn;
                let peer = &mut self.peers[at];
                peer.look = match std::mem::replace(&mut peer.look, Look::Idle) {
                    Look::Idle => Look::Read { version: self.version, found: self.document.clone() },
                    // Writes whether it leads or not: a node that looks believes that it leads.
                    Look::Read { version, found } => {
                        match peer.leader.next_document(tick, found.as_ref(), &members, drawn) {
                            Some(next) => Look::Writes { version, next },
                            None => Look::Idle,
                        }
                    }
                    Look::Writes { version, next } => {
                        if version == self.version {
                            self.document = Some(next);
                            self.version += 1;
                        }
                        Look::Idle
                    }
                };
            }
        }
        if matches!(event, Event::Deletes) {
            self.version += 1;
        }
    }

    fn change_own_row(&mut self, at: usize) {
        let (joined, version, members) = (self.peers[at].joined, self.version, self.members.len());
        let writes = |next: Option<Shares>, version| match next {
            Some(next) => OwnRow::Writes { version, next },
            None => OwnRow::Done,
        };
        let own_row = std::mem::replace(&mut self.peers[at].own_row, OwnRow::Done);
        self.peers[at].own_row = match own_row {
            OwnRow::Takes => OwnRow::TakesFrom { version, found: self.document.clone() },
            OwnRow::TakesFrom { version, found } => {
                let pool = self.division.pool(members);
                writes(found.and_then(|found| found.with(joined, pool, members)), version)
            }
            OwnRow::GivesAway => {
                writes(self.document.clone().and_then(|found| found.without(joined)), version)
            }
            OwnRow::Writes { version, next } if version == self.version => {
                self.document = Some(next);
                self.version += 1;
                OwnRow::Done
            }
            // A node that leaves tries again; one that has joined leaves it to the leader.
            OwnRow::Writes { .. } if self.peers[at].left => OwnRow::GivesAway,
            OwnRow::Writes { .. } | OwnRow::Done => OwnRow::Done,
        };
    }

    /// Returns how much of the pool is in use, and the size of the pool.
    fn used(&self) -> (u64, u64) {
        let mut uses: BTreeMap<u64, u32> = BTreeMap::new();
        for peer in &self.peers {
            // An engine that nodes share grants at most the largest part that one of them follows.
            let most = uses.entry(peer.number()).or_default();
            *most = peer.node.at(self.tick()).max(*most);
        }
        (uses.values().map(|part| u64::from(*part)).sum(), u64::from(self.division.pool(uses.len())))
    }

    /// Checks the promise: no more than the pool is in use.
    fn judge(&self, context: &dyn Fn() -> String) {
        let (used, pool) = self.used();
        assert!(used <= pool, "{used} of {pool} in use: {}", context());
        if let Some(document) = &self.document {
            assert!(document.nodes.iter().all(|node| node.part <= node.held), "{document:?}: {}", context());
            assert!(u64::from(document.held()) <= pool, "{document:?}: {}", context());
        }
    }

    /// Returns the state of a world that determines what can follow, without numbers that only count up.
    fn key(&self) -> String {
        let ago = |tick: Tick| self.now.saturating_sub(tick.as_nanos() / 1_000_000_000).min(KEEPS + 1);
        let peers: Vec<String> = self
            .peers
            .iter()
            .map(|peer| {
                let left = peer.node.until().since(self.tick()).as_secs();
                let round = match &peer.round {
                    Round::Idle => String::new(),
                    Round::Renews { began, seen } => format!("r{} {seen:?}", ago(*began)),
                    Round::Renewed { began } => format!("s{}", ago(*began)),
                    Round::Reads { began, found } => format!("f{} {found:?}", ago(*began)),
                };
                let look = match &peer.look {
                    Look::Idle => String::new(),
                    Look::Read { version, .. } => format!("l{}", self.version - version),
                    Look::Writes { version, next } => format!("w{} {next:?}", self.version - version),
                };
                let own_row = match &peer.own_row {
                    OwnRow::Takes => "t".to_owned(),
                    OwnRow::TakesFrom { version, .. } => format!("t{}", self.version - version),
                    OwnRow::GivesAway => "g".to_owned(),
                    OwnRow::Writes { version, next } => format!("o{} {next:?}", self.version - version),
                    OwnRow::Done => String::new(),
                };
                let look = format!("{look} {own_row} {}", peer.left);
                let part = (peer.node.at(self.tick()), peer.node.seen(), left);
                format!("{} {part:?} {round} {look} {} {:?}", peer.joined, peer.demand, peer.leader)
            })
            .collect();
        let members: Vec<_> = self
            .members
            .iter()
            .map(|member| {
                let report = &member.report;
                (member.joined, report.line, report.turn, report.demand, self.now - member.heard)
            })
            .collect();
        format!("{:?} {members:?} {peers:?}", self.document)
    }
}

trait RotateDemand {
    fn rotate_demand(&mut self);
}

impl RotateDemand for Vec<Peer> {
    /// Moves all demand to the next peer.
    fn rotate_demand(&mut self) {
        let hot = self.iter().position(|peer| peer.demand > 0).unwrap_or(0);
        let next = (hot + 1) % self.len();
        for (at, peer) in self.iter_mut().enumerate() {
            peer.demand = if at == next { DEMAND } else { 0 };
        }
    }
}

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
                197 => Event::Leaves(at),
                198 => Event::OwnRow(at),
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
            of += u64::from(crate::Part::WHOLE);
        }
    }
    let hundredths = used * 100 / of;
    assert!(hundredths >= 90, "{hundredths} %");
}
