//! The attributes of a request that are worth describing, because a policy or a count uses them.

use tidegate::policy::Named;

/// The attributes of a record that are described. Each one left out saves about 20 ns per line.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(super) method: bool,
    pub(super) path: bool,
    pub(super) host: bool,
    pub(super) client: bool,
    pub(super) user: bool,
    pub(super) agent: bool,
    pub(super) referer: bool,
    pub(super) status: bool,
    pub(super) bytes: bool,
    /// The extras that are described; `None` for all.
    extras: Option<Vec<Named>>,
}

impl Wanted {
    /// Wants all attributes.
    pub(crate) const ALL: Self = Self {
        method: true,
        path: true,
        host: true,
        client: true,
        user: true,
        agent: true,
        referer: true,
        status: true,
        bytes: true,
        extras: None,
    };

    /// Wants the attributes that any of these policy sets names, and the path if paths are counted.
    pub(crate) fn by(sets: Vec<Named>, counts_paths: bool) -> Self {
        let named = |name: &str| sets.iter().any(|set| set.contains(name));
        Self {
            method: named("request.method"),
            path: counts_paths || named("request.path"),
            host: named("request.host"),
            client: named("client.ip"),
            user: named("user.id"),
            agent: named("request.header.user-agent"),
            referer: named("request.header.referer"),
            status: named("response.status"),
            bytes: named("response.bytes"),
            extras: Some(sets),
        }
    }

    pub(super) fn has_extra(&self, name: &str) -> bool {
        self.extras.as_ref().is_none_or(|sets| sets.iter().any(|set| set.contains(name)))
    }
}
