//! What the commands of a door and of one connection share.

use std::sync::Arc;

use tidegate::Quota;

use crate::app::App;
use crate::auth::{Access, Grant, Scope, Tokens};
use crate::connections::Tls;
use crate::requests::{Brought, BroughtQuotas};

/// The RESP door of one server.
#[derive(Debug)]
pub(crate) struct RespDoor {
    pub(super) app: Arc<App>,
    pub(super) quotas: BroughtQuotas,
    /// Whether operations have an address of their own, and are not served here.
    pub(super) decides_only: bool,
    /// What encrypts its connections, if anything.
    pub(super) tls: Option<Tls>,
}

impl RespDoor {
    pub(crate) fn new(app: Arc<App>, decides_only: bool, tls: Option<Tls>) -> Self {
        Self { app, quotas: BroughtQuotas::default(), decides_only, tls }
    }
}

/// What a connection has agreed on.
#[derive(Debug)]
pub(super) struct Session {
    /// Whether replies are of the protocol's third version.
    pub(super) resp3: bool,
    /// What the client may do.
    trust: Trust,
    /// What the client calls itself.
    pub(super) name: Vec<u8>,
    /// Whether the connection ends after the replies that are written.
    pub(super) closing: bool,
    /// The commands since `MULTI`, where it was sent.
    pub(super) kept: Option<Kept>,
    /// The limit that the last `CL.THROTTLE` brought, which most clients bring again.
    pub(super) brought: Option<(Brought, Arc<Quota>)>,
}

/// Commands since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// All of them as they were sent, one behind the other.
    pub(super) commands: Vec<u8>,
    /// How many they are.
    pub(super) count: usize,
    /// Whether one was refused, and so none will be run.
    pub(super) spoilt: bool,
}

/// What a client may do.
#[derive(Clone, Debug)]
enum Trust {
    /// Everything: no token is needed.
    Open,
    /// Nothing: a token is needed and was not shown.
    Unknown,
    /// What its token is for, as long as it is among the tokens.
    Holder { grant: Arc<Grant>, among: Arc<Tokens> },
}

/// What came of showing a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// It is one.
    Right,
    /// It is none.
    Wrong,
    /// No token is needed.
    Needless,
}

impl Session {
    pub(super) fn new(access: &Access) -> Self {
        let trust = if access.needs_token() { Trust::Unknown } else { Trust::Open };
        Self { resp3: false, trust, name: Vec::new(), closing: false, kept: None, brought: None }
    }

    /// Takes a token; a wrong one takes nothing away that an earlier one gave.
    pub(super) fn show(&mut self, access: &Access, secret: &[u8]) -> Shown {
        if matches!(self.trust, Trust::Open) {
            return Shown::Needless;
        }
        let among = access.tokens();
        let Some(grant) = among.of(secret) else { return Shown::Wrong };
        self.trust = Trust::Holder { grant: Arc::clone(grant), among: Arc::clone(&among) };
        Shown::Right
    }

    /// Takes back what a token gave that does not hold any more.
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

    /// Returns a limit that the client brings.
    ///
    /// # Errors
    /// What is out of range.
    pub(super) fn quota(&mut self, brought: Brought, quotas: &BroughtQuotas) -> Result<&Arc<Quota>, String> {
        let known = self.brought.take().filter(|(known, _)| *known == brought);
        let known = match known {
            Some(known) => known,
            None => (brought, quotas.of(brought)?),
        };
        Ok(&self.brought.insert(known).1)
    }

    /// Says whether a token was shown, or none is needed.
    pub(super) fn is_trusted(&self) -> bool {
        !matches!(self.trust, Trust::Unknown)
    }

    /// Says whether the client may do what asks for this scope.
    ///
    /// # Errors
    /// The code and the words of the error.
    pub(super) fn may(&self, scope: Scope) -> Result<(), (&'static str, String)> {
        match &self.trust {
            Trust::Open => Ok(()),
            Trust::Unknown => Err(("NOAUTH", "Authentication required: AUTH TOKEN".to_owned())),
            Trust::Holder { grant, .. } if grant.scopes.has(scope) => Ok(()),
            Trust::Holder { grant, .. } => Err((
                "NOPERM",
                format!("the token {} is for {}, and this asks for {scope}", grant.name, grant.scopes),
            )),
        }
    }
}
