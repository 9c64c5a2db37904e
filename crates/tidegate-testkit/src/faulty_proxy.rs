//! A TCP proxy that simulates network faults.
//!
//! Two threads per connection copy bytes, one in each direction, and check the current fault before each piece that
//! they pass on. A fault applies to open and to new connections, until another one is set.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::process::within;

/// The fault of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault: bytes are passed on at once.
    #[default]
    None,
    /// Each piece is delayed by this much, in both directions.
    Delay(Duration),
    /// Nothing is passed on, and nothing is closed; held bytes are passed on when the fault ends.
    Stall,
    /// The server's answers are lost: it gets the bytes, but its answers are discarded.
    LoseAnswers,
    /// Open connections are closed, and new ones as soon as they are made.
    Cut,
    /// Same as [`Fault::Cut`], but with a TCP reset.
    Reset,
}

/// A proxy in front of one server, on a loopback port of its own. Stops when it is dropped.
#[derive(Debug)]
pub struct FaultyProxy {
    shared: Arc<ProxyState>,
    addr: SocketAddr,
}

#[derive(Debug)]
struct ProxyState {
    to: Mutex<SocketAddr>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    over: bool,
    /// Both ends of each open connection.
    open: Vec<(u64, TcpStream, TcpStream)>,
    made: u64,
}

/// The direction in which a thread copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl FaultyProxy {
    /// Starts a proxy in front of a server.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn before(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared =
            Arc::new(ProxyState { to: Mutex::new(server), state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { continue };
                if accepting.state().over {
                    return;
                }
                accepting.connect(client);
            }
        });
        Ok(Self { shared, addr })
    }

    /// Returns the address for clients.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends new connections to another server, as after a failover behind one address. Open ones keep theirs.
    pub fn lead_to(&self, server: SocketAddr) {
        *lock(&self.shared.to) = server;
    }

    /// Sets the fault from now on. When this returns, connections that the fault cuts are cut.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        state.fault = fault;
        if matches!(fault, Fault::Cut | Fault::Reset) {
            for (_, client, server) in state.open.drain(..) {
                end(&client, fault);
                end(&server, fault);
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Returns the number of connections made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.state().made
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.over = true;
        for (_, client, server) in state.open.drain(..) {
            end(&client, Fault::Cut);
            end(&server, Fault::Cut);
        }
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.addr));
    }
}

impl ProxyState {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn connect(self: &Arc<Self>, client: TcpStream) {
        let fault = self.state().fault;
        if matches!(fault, Fault::Cut | Fault::Reset) {
            end(&client, fault);
            return;
        }
        let to = *lock(&self.to);
        let Ok(server) = TcpStream::connect(to) else { return };
        // Requests and answers are small: Nagle's delay would be a fault of its own.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(client_in), Ok(server_out), Ok(client_kept), Ok(server_kept)) = copies else { return };
        let mut state = self.state();
        if matches!(state.fault, Fault::Cut | Fault::Reset) {
            // The fault was set while the connection to the server was being made.
            end(&client, state.fault);
            return;
        }
        state.made += 1;
        let number = state.made;
        state.open.push((number, client_kept, server_kept));
        drop(state);
        let (there, back) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || there.copy(number, Direction::ToServer, client_in, server_out));
        thread::spawn(move || back.copy(number, Direction::ToClient, server, client));
    }

    /// Copies until either end closes or a fault cuts the connection.
    fn copy(&self, number: u64, direction: Direction, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            #[expect(clippy::disallowed_methods, reason = "a proxy delays real bytes by real time")]
            let came = Instant::now();
            let Some(passes) = self.hold_up(direction, came) else { break };
            if passes && to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        if direction == Direction::ToClient {
            self.state().open.retain(|(open, ..)| *open != number);
        }
    }

    /// Waits while the current fault holds a piece up. Returns whether to pass the piece on; `None` once the proxy has
    /// stopped.
    fn hold_up(&self, direction: Direction, came: Instant) -> Option<bool> {
        let mut state = self.state();
        loop {
            if state.over {
                return None;
            }
            match state.fault {
                Fault::None | Fault::Cut | Fault::Reset => return Some(true),
                Fault::LoseAnswers => return Some(direction == Direction::ToServer),
                Fault::Stall => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Fault::Delay(delay) => {
                    let Some(left) = delay.checked_sub(came.elapsed()).filter(|left| !left.is_zero()) else {
                        return Some(true);
                    };
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a connection, with a reset if the fault is [`Fault::Reset`].
fn end(stream: &TcpStream, fault: Fault) {
    if fault == Fault::Reset {
        let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    }
    let _ = stream.shutdown(Shutdown::Both);
}

// Charges against a limit while connections misbehave.

/// The number of threads that charge at once.
const THREADS: usize = 3;

/// How often each fault is set.
const ROUNDS: usize = 3;

/// The results of charges of one unit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// Answered charges: each of them is spent.
    pub answered: u64,
    /// Charges that ended with an error: each of them is spent once or not at all.
    pub unanswered: u64,
}

/// Charges by several threads through a proxy that loses answers, stalls, cuts and resets its connections in turn.
/// Returns the results. `charge` spends one unit of a limit that has enough of them, and returns whether that was
/// confirmed.
///
/// # Panics
/// If nothing is answered any more after a fault has ended, or everything is answered during one.
pub fn charge_under_faults(proxy: &FaultyProxy, charge: impl Fn() -> bool + Sync) -> Charges {
    let (answered, unanswered, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let counted = if charge() { &answered } else { &unanswered };
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let more = |what: &str, counted: &AtomicU64, by: u64| {
            let before = counted.load(Ordering::Relaxed);
            within(what, || counted.load(Ordering::Relaxed) >= before + by);
        };
        // The threads end even if the checks here fail.
        let _end = End(&over);
        for round in 0..ROUNDS {
            for fault in [Fault::LoseAnswers, Fault::Stall, Fault::Cut, Fault::Reset] {
                proxy.set(Fault::None);
                // A varying number, so that faults hit different moments of an exchange.
                more(&format!("answers after {fault:?}"), &answered, 5 + round as u64);
                proxy.set(fault);
                more(&format!("errors in spite of {fault:?}"), &unanswered, 2);
                // Bytes that are still on their way through a connection with gaps are not a valid request.
                proxy.set(Fault::Reset);
            }
        }
        proxy.set(Fault::None);
        more("answers when all is over", &answered, 5);
    });
    Charges { answered: answered.into_inner(), unanswered: unanswered.into_inner() }
}

/// Ends the threads, also by a panic.
struct End<'o>(&'o AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server that echoes each byte.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = client.unwrap();
                thread::spawn(move || {
                    let mut byte = [0];
                    while client.read_exact(&mut byte).is_ok() && client.write_all(&byte).is_ok() {}
                });
            }
        });
        addr
    }

    fn ask(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
        stream.write_all(&[byte])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    fn within(stream: &TcpStream, time: Duration) {
        stream.set_read_timeout(Some(time)).unwrap();
    }

    #[test]
    fn what_is_held_up_comes_when_the_fault_is_over() {
        let proxy = FaultyProxy::before(echo()).unwrap();
        let mut client = TcpStream::connect(proxy.addr()).unwrap();
        assert_eq!(ask(&mut client, 1).unwrap(), 1);
        proxy.set(Fault::Stall);
        within(&client, Duration::from_millis(20));
        let held = ask(&mut client, 2).unwrap_err();
        assert!(matches!(held.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{held}");
        proxy.set(Fault::None);
        within(&client, Duration::from_secs(30));
        let mut answer = [0];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [2]);
    }

    #[test]
    fn a_cut_ends_open_connections_and_new_ones_until_it_is_over() {
        for fault in [Fault::Cut, Fault::Reset] {
            let proxy = FaultyProxy::before(echo()).unwrap();
            let mut client = TcpStream::connect(proxy.addr()).unwrap();
            assert_eq!(ask(&mut client, 1).unwrap(), 1);
            proxy.set(fault);
            ask(&mut client, 2).unwrap_err();
            let mut next = TcpStream::connect(proxy.addr()).unwrap();
            ask(&mut next, 3).unwrap_err();
            proxy.set(Fault::None);
            let mut last = TcpStream::connect(proxy.addr()).unwrap();
            assert_eq!(ask(&mut last, 4).unwrap(), 4);
            assert_eq!(proxy.connections(), 2);
        }
    }

    #[test]
    fn lost_answers_are_lost_for_good() {
        let proxy = FaultyProxy::before(echo()).unwrap();
        let mut client = TcpStream::connect(proxy.addr()).unwrap();
        assert_eq!(ask(&mut client, 1).unwrap(), 1);
        proxy.set(Fault::LoseAnswers);
        within(&client, Duration::from_millis(50));
        ask(&mut client, 2).unwrap_err();
        proxy.set(Fault::None);
        within(&client, Duration::from_secs(30));
        assert_eq!(ask(&mut client, 3).unwrap(), 3);
    }
}
