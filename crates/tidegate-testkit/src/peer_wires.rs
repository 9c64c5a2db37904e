//! The wires between the members of an etcd, one for each pair, so that one member can be cut off from the others.
//!
//! All members know each other by one address each, so the listener before each member asks the system whose connection
//! it is: which process has the other end.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::faulty_proxy::{Fault, FaultyProxy};

/// The most bytes that are read of what the system tells.
const TOLD: u64 = 4 << 20;

/// The wires between members, all with the same delay unless a member has a fault. They end when this is dropped.
#[derive(Debug)]
pub struct PeerWires {
    shared: Arc<Shared>,
    listeners: Vec<SocketAddr>,
}

#[derive(Debug)]
struct Shared {
    delay: Duration,
    /// The name of each member, and where it listens for the others.
    members: Vec<(String, SocketAddr)>,
    state: Mutex<State>,
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The wire to each member from each other one.
    wires: HashMap<(usize, usize), FaultyProxy>,
    /// The faults of members.
    faults: HashMap<usize, Fault>,
}

impl State {
    /// Returns the fault of the wire to a member from another one.
    fn fault(&self, delay: Duration, to: usize, from: usize) -> Fault {
        let fault = self.faults.get(&to).or_else(|| self.faults.get(&from));
        fault.copied().unwrap_or(Fault::Delay(delay))
    }
}

impl PeerWires {
    /// Starts a listener before each member, whose own addresses for the others these are.
    pub(crate) fn before(members: Vec<(String, SocketAddr)>, delay: Duration) -> io::Result<Self> {
        let shared = Shared { delay, members, state: Mutex::default(), over: AtomicBool::new(false) };
        let shared = Arc::new(shared);
        let listen = |to: usize| -> io::Result<SocketAddr> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let (addr, shared) = (listener.local_addr()?, Arc::clone(&shared));
            thread::spawn(move || {
                for peer in listener.incoming().flatten() {
                    if shared.over.load(Ordering::Relaxed) {
                        return;
                    }
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.connect(to, peer));
                }
            });
            Ok(addr)
        };
        let listeners = (0..shared.members.len()).map(listen).collect::<io::Result<_>>()?;
        Ok(Self { shared, listeners })
    }

    /// Returns where the others reach each member.
    pub(crate) fn addrs(&self) -> &[SocketAddr] {
        &self.listeners
    }

    /// Sets the fault of all wires of a member, in both directions; [`Fault::None`] ends it.
    pub fn set(&self, member: usize, fault: Fault) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        match fault {
            Fault::None => drop(state.faults.remove(&member)),
            fault => drop(state.faults.insert(member, fault)),
        }
        for ((to, from), wire) in &state.wires {
            wire.set(state.fault(self.shared.delay, *to, *from));
        }
    }
}

impl Drop for PeerWires {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wakes the threads that accept.
        self.listeners.iter().for_each(|listener| drop(TcpStream::connect(listener)));
    }
}

impl Shared {
    /// Joins a connection with the wire from the member that has made it.
    fn connect(&self, to: usize, peer: TcpStream) {
        let Some(from) = peer.peer_addr().ok().and_then(|addr| self.owner(addr)) else { return };
        let wire = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let fault = state.fault(self.delay, to, from);
            let wire = state.wires.entry((to, from)).or_insert_with(|| {
                let wire = FaultyProxy::before(self.members[to].1).expect("a port is free");
                wire.set(fault);
                wire
            });
            wire.addr()
        };
        let Ok(wire) = TcpStream::connect(wire) else { return };
        let _ = (peer.set_nodelay(true), wire.set_nodelay(true));
        let (Ok(mut from_peer), Ok(mut to_wire)) = (peer.try_clone(), wire.try_clone()) else { return };
        thread::spawn(move || {
            let _ = io::copy(&mut from_peer, &mut to_wire);
            let _ = to_wire.shutdown(Shutdown::Write);
        });
        let (mut from_wire, mut to_peer) = (wire, peer);
        let _ = io::copy(&mut from_wire, &mut to_peer);
        let _ = to_peer.shutdown(Shutdown::Both);
    }

    /// Returns the member whose connection begins at this address; `None` if it has ended, or belongs to somebody else.
    fn owner(&self, addr: SocketAddr) -> Option<usize> {
        let socket = format!("socket:[{}]", inode(addr)?);
        let has_socket = |process: &Path| {
            let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file == Path::new(&socket))
        };
        let all = fs::read_dir("/proc").ok()?.flatten().map(|process| process.path());
        all.filter_map(|process| Some((told(&process.join("cmdline"))?, process))).find_map(
            |(words, process)| {
                let is_named =
                    |name: &str| words.split(|byte| *byte == 0).any(|word| word == name.as_bytes());
                let member = self.members.iter().position(|(name, _)| is_named(name))?;
                has_socket(&process).then_some(member)
            },
        )
    }
}

/// Reads what the system tells in a file of `/proc`.
fn told(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(TOLD).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the number of the socket whose own address this is.
fn inode(addr: SocketAddr) -> Option<String> {
    // An address as the system writes it: of loopback, its bytes in the order of this machine.
    let own = format!("0100007F:{:04X}", addr.port());
    let sockets = told(Path::new("/proc/net/tcp"))?;
    let sockets = String::from_utf8_lossy(&sockets);
    let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line.get(1) == Some(&&*own))?;
    line.get(9).map(|inode| (*inode).to_owned())
}
