//! The RESP door, and the state of one connection.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::Quota;

use super::protocol::{MAX_BYTES, Replies};
use super::redis;
use crate::app::App;
use crate::auth::{Access, Grant, Scope, Tokens};
use crate::connections::Tls;
use crate::requests::{InlineLimit, InlineQuotas};

/// The RESP door of one server.
#[derive(Debug)]
pub(crate) struct RespDoor {
    pub(super) app: Arc<App>,
    pub(super) quotas: InlineQuotas,
    /// Whether operations have their own address, so that they are not served here.
    pub(super) decides_only: bool,
    /// The TLS settings of its connections; `None` if they are not encrypted.
    pub(super) tls: Option<Tls>,
}

impl RespDoor {
    pub(crate) fn new(app: Arc<App>, decides_only: bool, tls: Option<Tls>) -> Self {
        Self { app, quotas: InlineQuotas::default(), decides_only, tls }
    }
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    /// Whether replies use RESP3.
    pub(super) resp3: bool,
    trust: Trust,
    /// The name that the client gave itself.
    pub(super) name: Vec<u8>,
    /// Whether a wrong token's answer has to wait.
    pub(super) guessed: bool,
    /// Whether it closes after the replies that are written.
    pub(super) closing: bool,
    /// The commands since `MULTI`.
    pub(super) queued: Option<QueuedCommands>,
    /// The limit of the last `CL.THROTTLE`; most clients send the same again.
    last_limit: Option<LastInlineLimit>,
}

/// The burst, the count and the period of a limit, as the words of a command.
pub(super) type Written<'a> = [&'a [u8]; 3];

#[derive(Debug)]
struct LastInlineLimit {
    /// The words as they were sent: the same words are not parsed again.
    written: [SmallVec<[u8; Self::LONGEST]>; 3],
    quota: Arc<Quota>,
}

impl LastInlineLimit {
    /// The longest word that is kept, in bytes: any 64-bit number fits; one with leading zeros is parsed each time.
    const LONGEST: usize = 20;

    fn new(written: Written<'_>, quota: Arc<Quota>) -> Self {
        // A word too long is stored as empty, which equals no number.
        let kept = |word: &[u8]| SmallVec::from_slice(if word.len() <= Self::LONGEST { word } else { b"" });
        Self { written: written.map(kept), quota }
    }

    fn matches(&self, written: Written<'_>) -> bool {
        self.written.iter().zip(written).all(|(last, word)| !last.is_empty() && **last == *word)
    }
}

/// Commands since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct QueuedCommands {
    /// The commands as they were sent, concatenated.
    pub(super) commands: Vec<u8>,
    pub(super) count: usize,
    /// Whether one was refused, so that none will be run.
    pub(super) spoilt: bool,
}

#[derive(Clone, Debug)]
enum Trust {
    /// Everything: no token is needed.
    Open,
    /// Nothing: no token was shown.
    Unknown,
    /// The scopes of the token, while it is among the tokens in force.
    Holder { grant: Arc<Grant>, among: Arc<Tokens> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Right,
    Wrong,
    /// No token is needed.
    Needless,
}

impl Session {
    pub(super) fn new(access: &Access) -> Self {
        let trust = if access.needs_token() { Trust::Unknown } else { Trust::Open };
        Self {
            resp3: false,
            trust,
            name: Vec::new(),
            guessed: false,
            closing: false,
            queued: None,
            last_limit: None,
        }
    }

    /// Takes a token. A wrong one does not revoke what an earlier one allowed, and its answer has to wait.
    pub(super) fn show(&mut self, access: &Access, secret: &[u8]) -> Shown {
        if matches!(self.trust, Trust::Open) {
            return Shown::Needless;
        }
        let among = access.tokens();
        let Some(grant) = among.of(secret) else {
            self.guessed = true;
            return Shown::Wrong;
        };
        self.trust = Trust::Holder { grant: Arc::clone(grant), among: Arc::clone(&among) };
        Shown::Right
    }

    /// The name of the token that was shown.
    pub(super) fn token(&self) -> Option<&str> {
        match &self.trust {
            Trust::Holder { grant, .. } => Some(&grant.name),
            Trust::Open | Trust::Unknown => None,
        }
    }

    /// Revokes a token that is no longer valid.
    pub(super) fn look_again(&mut self, access: &Access) {
        if let Trust::Holder { grant, among } = &self.trust {
            let tokens = access.tokens();
            if !Arc::ptr_eq(among, &tokens) {
                self.trust = match tokens.of(grant.token.secret().as_bytes()) {
                    Some(grant) => Trust::Holder { grant: Arc::clone(grant), among: Arc::clone(&tokens) },
                    None => Trust::Unknown,
                };
            }
        }
    }

    /// Returns the client's limit. `read` parses its words, unless they are the same as last time.
    ///
    /// # Errors
    /// A word that cannot be parsed, or is out of range.
    pub(super) fn quota(
        &mut self,
        written: Written<'_>,
        quotas: &InlineQuotas,
        read: impl FnOnce() -> Result<InlineLimit, String>,
    ) -> Result<&Arc<Quota>, String> {
        let known = self.last_limit.take().filter(|last| last.matches(written));
        let known = match known {
            Some(known) => known,
            None => LastInlineLimit::new(written, quotas.of(read()?)?),
        };
        Ok(&self.last_limit.insert(known).quota)
    }

    /// Returns whether a valid token was shown, or none is needed.
    pub(super) fn is_trusted(&self) -> bool {
        !matches!(self.trust, Trust::Unknown)
    }

    /// Checks that the client has this scope.
    ///
    /// # Errors
    /// The code and the message of the error.
    pub(super) fn may(&self, scope: Scope) -> Result<(), (&'static str, String)> {
        match &self.trust {
            Trust::Open => Ok(()),
            Trust::Unknown => Err(("NOAUTH", "Authentication required: AUTH TOKEN".to_owned())),
            Trust::Holder { grant, .. } if grant.scopes.has(scope) => Ok(()),
            Trust::Holder { grant, .. } => Err((
                "NOPERM",
                format!("the token {} has the scope {}, and this needs {scope}", grant.name, grant.scopes),
            )),
        }
    }
}

// `MULTI`, `EXEC` and `DISCARD`: many clients put them around a pipeline by default.
//
// The reply to `EXEC` is one list. Other connections' commands may be decided in between, and each charge stands
// whatever comes next. At `EXEC`, the commands go back in front of the unread input, so replies are sent, and the
// place given up, between two of them as between any others.

/// The most commands of a transaction.
const MOST: usize = 512;

const ENDS: [&str; 3] = ["MULTI", "EXEC", "DISCARD"];

/// The commands that can be kept.
const KNOWN: [&str; 13] = [
    "CL.THROTTLE",
    "TG.CHECK",
    "TG.SETTLE",
    "TG.RESET",
    "PING",
    "ECHO",
    "SELECT",
    "CLIENT",
    "COMMAND",
    "CONFIG",
    "INFO",
    "AUTH",
    "HELLO",
];

/// What to do with a command that [concerns] a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    Answered,
    /// As outside a transaction.
    Run,
    /// The head of a list was written; these commands make its elements.
    RunAll(Vec<u8>),
}

/// Returns whether a command is part of a transaction; most skip [`take`]. Without a token none is: all are refused
/// alike.
pub(super) fn concerns(session: &Session, name: &[u8]) -> bool {
    let ends = || ENDS.into_iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
    (session.queued.is_some() || ends()) && session.is_trusted()
}

/// Handles a part of a transaction, whose bytes are `sent`.
pub(super) fn take(
    session: &mut Session,
    words: &[&[u8]],
    sent: &[u8],
    replies: &mut Replies,
) -> Disposition {
    let name = words[0];
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if words.len() > 1 && ENDS.into_iter().any(is) {
        redis::wrong_number(name, replies);
    } else if is("MULTI") && session.queued.is_some() {
        replies.error("ERR", "MULTI calls can not be nested");
    } else if is("MULTI") {
        session.queued = Some(QueuedCommands::default());
        replies.simple("OK");
    } else if is("DISCARD") {
        match session.queued.take() {
            Some(_) => replies.simple("OK"),
            None => replies.error("ERR", "DISCARD without MULTI"),
        }
    } else if is("EXEC") {
        match session.queued.take() {
            None => replies.error("ERR", "EXEC without MULTI"),
            Some(QueuedCommands { spoilt: true, .. }) => {
                replies.error("EXECABORT", "Transaction discarded because of previous errors.");
            }
            Some(queued) => {
                replies.list(queued.count);
                return Disposition::RunAll(queued.commands);
            }
        }
    } else if let Some(queued) = session.queued.as_mut().filter(|_| !is("QUIT")) {
        if !KNOWN.into_iter().any(is) {
            queued.spoilt = true;
            // That answers what is wrong with it.
            return Disposition::Run;
        }
        if queued.count >= MOST || queued.commands.len() + sent.len() > MAX_BYTES {
            queued.spoilt = true;
            let most =
                format!("between MULTI and EXEC there are at most {MOST} commands with {MAX_BYTES} bytes");
            replies.error("ERR", &most);
        } else {
            queued.count += 1;
            queued.commands.extend_from_slice(sent);
            replies.simple("QUEUED");
        }
    } else {
        return Disposition::Run;
    }
    Disposition::Answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_last_one_where_its_words_are_the_same_and_short() {
        let quota = Arc::new(Quota::per_second(1).gcra().unwrap());
        let last = LastInlineLimit::new([b"1", b"20", b"3"], Arc::clone(&quota));
        assert!(last.matches([b"1", b"20", b"3"]));
        for others in [[&b"1"[..], b"20", b"4"], [b"01", b"20", b"3"], [b"12", b"0", b"3"], [b"", b"", b""]] {
            assert!(!last.matches(others), "{others:?}");
        }
        let zeros = "0".repeat(LastInlineLimit::LONGEST) + "1";
        let long = [zeros.as_bytes(), b"20", b"3"];
        let last = LastInlineLimit::new(long, quota);
        assert!(!last.matches(long) && !last.matches([b"", b"20", b"3"]));
        assert!(last.written.iter().all(|word| !word.spilled()), "a client cannot have it keep much");
    }
}
