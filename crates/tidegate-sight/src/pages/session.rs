//! Who is logged in: sessions in memory, each bound to a token that the server accepted.
//!
//! A session is 256 random bits in a cookie. It ends 30 minutes after its last use, 12 hours after the login, with the
//! token, at a logout, and at a restart. There are at most 64; a new one replaces the idlest of its token, otherwise the
//! idlest of all. Wrong tokens are counted by the address that they come from, as trusted proxies report it, so that a
//! stranger locks out nobody but those behind the same address.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;

/// The most sessions.
const MOST: usize = 64;

/// How long a session lasts without use, and at all, in seconds.
const IDLE: u64 = 30 * 60;
const WHOLE: u64 = 12 * 3_600;

/// How many tokens may be tried within so many seconds from one source. A right one does not count.
const TRIES: usize = 5;
const TRIES_WITHIN: u64 = 60;

/// How many tries are remembered. The oldest is forgotten, whoever made it: with many addresses one may guess more often,
/// as at the paths of the server, and still locks out nobody.
const MOST_TRIES: usize = 1_024;

/// The longest token, in bytes. Longer ones are not tried.
pub(super) const LONGEST_TOKEN: usize = 1_024;

/// Returns 256 random bits in hexadecimal; `None` if the system has none.
pub(super) fn random() -> Option<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).ok()?;
    let mut out = String::with_capacity(64);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(out, "{byte:02x}");
    }
    Some(out)
}

/// Compares two secrets in a time that does not depend on where they differ.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Who logged in. `Debug` shows no secret.
#[derive(Clone)]
pub(super) struct Holder {
    /// The value of the cookie.
    pub(super) id: String,
    /// What its forms carry.
    pub(super) form: String,
    pub(super) token: String,
    /// The name of the token, as far as it is known.
    pub(super) name: String,
    /// The scopes of the token at the login; `None`: all.
    pub(super) scopes: Option<Vec<&'static str>>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Session {
    holder: Arc<Holder>,
    opened: u64,
    used: u64,
}

impl Session {
    const fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.used) >= IDLE || now.saturating_sub(self.opened) >= WHOLE
    }
}

/// All sessions. Times are seconds of a clock that does not step back.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: Mutex<Vec<Session>>,
    /// When and from where the last tokens were tried that were not right, or are being tried.
    tries: Mutex<VecDeque<(u64, Option<IpAddr>)>>,
}

impl Sessions {
    /// Opens a session for a token that the server accepted; `None` if the system has no random bits. `before`: the
    /// cookie that the caller had, whose session ends.
    pub(super) fn open(
        &self,
        token: &str,
        name: String,
        scopes: Option<Vec<&'static str>>,
        before: Option<&str>,
        now: u64,
    ) -> Option<Arc<Holder>> {
        let holder =
            Arc::new(Holder { id: random()?, form: random()?, token: token.to_owned(), name, scopes });
        if let Some(before) = before {
            self.end(before);
        }
        let mut open = self.open.lock();
        open.retain(|session| !session.is_over(now));
        if open.len() >= MOST {
            // Of the same token if there is one: logging in again and again ends nobody else's session.
            let order = |session: &Session| (!is_same(&session.holder.token, token), session.used);
            let idlest = open.iter().enumerate().min_by_key(|(_, session)| order(session)).map(|(at, _)| at);
            if let Some(idlest) = idlest {
                open.swap_remove(idlest);
            }
        }
        open.push(Session { holder: Arc::clone(&holder), opened: now, used: now });
        Some(holder)
    }

    /// Finds a session by the value of its cookie, and counts it as used. Compares it with all of them.
    pub(super) fn find(&self, id: &str, now: u64) -> Option<Arc<Holder>> {
        let mut open = self.open.lock();
        open.retain(|session| !session.is_over(now));
        let mut found = None;
        for session in open.iter_mut() {
            if is_same(&session.holder.id, id) {
                session.used = session.used.max(now);
                found = Some(Arc::clone(&session.holder));
            }
        }
        found
    }

    /// Ends a session.
    pub(super) fn end(&self, id: &str) {
        self.open.lock().retain(|session| !is_same(&session.holder.id, id));
    }

    /// Takes a try, before the token is looked at: tries that come at once are counted too. `source`: as [`source_of`];
    /// unknown ones are one.
    ///
    /// # Errors
    /// After how many seconds there is one again.
    pub(super) fn attempt(&self, source: Option<IpAddr>, now: u64) -> Result<(), u64> {
        let mut tries = self.tries.lock();
        tries.retain(|(at, _)| now.saturating_sub(*at) < TRIES_WITHIN);
        let own: Vec<u64> = tries.iter().filter(|(_, of)| *of == source).map(|(at, _)| *at).collect();
        if let Some(oldest) = own.first()
            && own.len() >= TRIES
        {
            return Err((oldest + TRIES_WITHIN).saturating_sub(now).max(1));
        }
        if tries.len() >= MOST_TRIES {
            tries.pop_front();
        }
        tries.push_back((now, source));
        Ok(())
    }

    /// Gives the latest try of a source back: the token was right, or nobody could say.
    pub(super) fn forgive(&self, source: Option<IpAddr>) {
        let mut tries = self.tries.lock();
        if let Some(at) = tries.iter().rposition(|(_, of)| *of == source) {
            tries.remove(at);
        }
    }
}

/// Returns whose tries are counted together: an address, of IPv6 a /64, which has one owner.
pub(super) fn source_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

/// The name of the cookie. `__Secure-` makes browsers refuse it from a connection that is not encrypted.
pub(super) const fn cookie_name(encrypted: bool) -> &'static str {
    if encrypted { "__Secure-tidegate_session" } else { "tidegate_session" }
}

/// The cookie of a session, or, without one, what removes it.
pub(super) fn cookie(id: Option<&str>, encrypted: bool) -> String {
    let name = cookie_name(encrypted);
    let (value, age) = id.map_or(("", 0), |id| (id, WHOLE));
    let secure = if encrypted { "; Secure" } else { "" };
    format!("{name}={value}; Path=/ui/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(sessions: &Sessions, now: u64) -> Arc<Holder> {
        sessions.open("0123456789abcdef", "ops".to_owned(), None, None, now).unwrap()
    }

    #[test]
    fn a_session_ends_unused_and_in_the_end() {
        let sessions = Sessions::default();
        let holder = opened(&sessions, 0);
        assert_eq!(holder.id.len(), 64);
        assert_ne!(holder.id, holder.form);
        assert!(sessions.find(&holder.id, IDLE - 1).is_some());
        assert!(sessions.find(&holder.id, 2 * IDLE - 2).is_some(), "each use counts");
        assert!(sessions.find(&holder.id, 3 * IDLE - 2).is_none());
        assert!(sessions.find(&holder.id, 0).is_none(), "over is over");

        let holder = opened(&sessions, 0);
        for now in (0..WHOLE).step_by(1_000) {
            assert!(sessions.find(&holder.id, now).is_some(), "{now}");
        }
        assert!(sessions.find(&holder.id, WHOLE).is_none());
        assert!(sessions.find("", 0).is_none() && sessions.find(&holder.id[..63], 0).is_none());
        assert!(!format!("{holder:?}{sessions:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn a_login_ends_the_session_before_and_the_idlest_makes_room() {
        let sessions = Sessions::default();
        let first = opened(&sessions, 0);
        let second = sessions.open("t", String::new(), None, Some(&first.id), 1).unwrap();
        assert!(sessions.find(&first.id, 1).is_none() && sessions.find(&second.id, 1).is_some());
        let others: Vec<_> = (0..MOST as u64 - 1).map(|at| opened(&sessions, 2 + at)).collect();
        assert!(sessions.find(&second.id, 100).is_some(), "64 fit");
        opened(&sessions, 101);
        assert!(sessions.find(&second.id, 101).is_some());
        assert!(sessions.find(&others[0].id, 101).is_none(), "the idlest");
        assert_eq!(sessions.open.lock().len(), MOST);
        for at in 0..100 {
            sessions.open("t", String::new(), None, None, 102 + at).unwrap();
        }
        assert!(sessions.find(&second.id, 202).is_none() && sessions.find(&others[1].id, 202).is_some());
        let of_others = sessions.open.lock().iter().filter(|session| session.holder.token != "t").count();
        assert_eq!(of_others, MOST - 1, "who logs in often ends his own sessions");
        sessions.end(&second.id);
        assert!(sessions.find(&second.id, 101).is_none());
    }

    #[test]
    fn wrong_tokens_are_few_and_right_ones_do_not_count() {
        let sessions = Sessions::default();
        for _ in 0..100 {
            sessions.attempt(None, 10).unwrap();
            sessions.forgive(None);
        }
        for now in 10..15 {
            sessions.attempt(None, now).unwrap();
        }
        assert_eq!(sessions.attempt(None, 20), Err(50));
        assert_eq!(sessions.attempt(None, 70), Ok(()), "the first is a minute old");
        assert_eq!(sessions.attempt(None, 70), Err(1));
    }

    #[test]
    fn who_guesses_locks_out_himself_alone() {
        let sessions = Sessions::default();
        let source = |ip: &str| Some(source_of(ip.parse().unwrap()));
        for at in 0..5 {
            sessions.attempt(source(&format!("2001:db8::{at}")), 10).unwrap();
        }
        assert_eq!(sessions.attempt(source("2001:db8::ffff"), 10), Err(60), "the same /64");
        assert_eq!(sessions.attempt(source("2001:db8:0:1::1"), 10), Ok(()));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        // Nobody takes back another's guesses, and many strangers leave room for one more.
        sessions.forgive(source("192.0.2.1"));
        assert!(sessions.attempt(source("2001:db8::1"), 10).is_err());
        for stranger in 0..10_000_u32 {
            sessions.attempt(Some(std::net::Ipv4Addr::from_bits(stranger).into()), 11).unwrap();
        }
        assert_eq!(sessions.attempt(source("192.0.2.1"), 11), Ok(()));
        assert_eq!(sessions.tries.lock().len(), MOST_TRIES);
    }

    #[test]
    fn cookies_are_for_these_pages_alone() {
        let plain = "tidegate_session=ab; Path=/ui/; Max-Age=43200; HttpOnly; SameSite=Strict";
        assert_eq!(cookie(Some("ab"), false), plain);
        assert_eq!(cookie(Some("ab"), true), format!("__Secure-{plain}; Secure"));
        assert!(cookie(None, false).starts_with("tidegate_session=; Path=/ui/; Max-Age=0;"));
    }
}
