//! Opens the store that a file names.
//!
//! Heavy clients need their features: `redis`, `etcd` and `zookeeper`. A file that names another engine is refused, with
//! the name of the feature.

#[cfg_attr(
    not(any(feature = "redis", feature = "etcd", feature = "zookeeper")),
    allow(dead_code, reason = "there is no engine to dial")
)]
mod dial;
mod disk;
mod opened;
#[cfg(feature = "redis")]
mod redis;
mod round_trips;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::cluster::Coordinator;
use tidegate::config::{
    Address, Config, EngineKind, EngineSettings, RegionSettings, Severity, StoreKind, StoreSettings,
};
use tidegate::store::Successor;

use self::dial::{Dial, Failed};
pub(crate) use self::opened::PersistentCounters;
pub(crate) use self::opened::{EngineLoad, Region, Roster, Sharing};
pub use self::opened::{OpenStore, OpenStoreError};
pub(crate) use self::round_trips::Fleet;
pub use self::round_trips::{DecidedIn, PolicyCost, round_trips};

/// Opens the store that a file names. `keys`, if given, replaces the file's number. The default folder of a disk
/// store is named after `http`, the server's address. If another process uses the folder, waits for up to
/// `patience`: it may be this server's predecessor, which still answers its last requests. The counters of a former
/// store (`store.from`) are taken over.
///
/// Waits a few seconds for an engine. One that does not answer is dialled in the background until it does;
/// meanwhile the `on_store_error` of each policy decides: a node can start while its engine is away. A store on
/// disk is read on its own thread.
///
/// # Errors
/// [`OpenStoreError`] if the settings do not fit this build or this machine, a store on disk cannot be read or is in
/// use, or an engine answers and refuses. An engine that does not answer is not an error.
///
/// # Cancel safety
/// Dropping the future closes what was opened, and ends the dialling. A store on disk that is just being opened is
/// closed as soon as it is open; a folder or file that was made stays.
pub async fn open_store(
    settings: &StoreSettings,
    keys: Option<usize>,
    http: &Address,
    clock: Arc<dyn Clock>,
    patience: Duration,
) -> Result<OpenStore, OpenStoreError> {
    let opened = open_own(settings, keys, http, Arc::clone(&clock), patience).await?;
    let Some(path) = &settings.from else { return Ok(opened) };
    let of_former = |error: OpenStoreError| error.of_former(path);
    let former = former(path)?;
    check_own(&former).map_err(of_former)?;
    let former = open_former(&former, http, clock, patience).await.map_err(of_former)?;
    let mut warnings = opened.warnings;
    warnings
        .extend(former.warnings.iter().map(|warning| format!("store.from: {}: {warning}", path.display())));
    let store = Arc::new(Successor::new(opened.store, former.store));
    Ok(OpenStore { store, warnings, ..opened })
}

/// Reads the settings of a former store.
fn former(path: &Path) -> Result<StoreSettings, OpenStoreError> {
    let wrong = |reason: String| OpenStoreError::Former { path: path.to_owned(), reason, in_the_file: true };
    let store = match Config::read(path) {
        Ok((config, _)) => config.store,
        Err(mistakes) => {
            let errors = mistakes.iter().filter(|mistake| mistake.severity == Severity::Error);
            let errors: Vec<String> = errors.map(ToString::to_string).collect();
            return Err(wrong(errors.join("; ")));
        }
    };
    match (&store.kind, &store.from) {
        (StoreKind::Memory, _) => {
            Err(wrong("its counters were in the memory of a process; leave store.from out".to_owned()))
        }
        (_, Some(_)) => {
            Err(wrong("it has store.from itself; leave that out there, or wait with the change".to_owned()))
        }
        _ => Ok(store),
    }
}

/// Opens a former store. One that does not answer now is an error: all its limits would be granted from full.
async fn open_former(
    settings: &StoreSettings,
    http: &Address,
    clock: Arc<dyn Clock>,
    patience: Duration,
) -> Result<OpenStore, OpenStoreError> {
    let (StoreKind::Engine(engine), kind) = (&settings.kind, settings.word()) else {
        return open_own(settings, None, http, clock, patience).await;
    };
    match (dial_of(kind, engine)?.attempt)().await {
        Ok(dialled) => Ok(OpenStore { warnings: dialled.warnings, ..OpenStore::new(dialled.store, kind) }),
        Err(Failed::Away(reason)) => Err(OpenStoreError::Engine { kind, reason }),
        Err(Failed::ForGood(error)) => Err(error),
    }
}

/// Opens the store that settings name, without the counters of a former one.
async fn open_own(
    settings: &StoreSettings,
    keys: Option<usize>,
    http: &Address,
    clock: Arc<dyn Clock>,
    patience: Duration,
) -> Result<OpenStore, OpenStoreError> {
    match &settings.kind {
        StoreKind::Memory => Ok(OpenStore::in_memory(settings, keys)?),
        StoreKind::Disk(disk) => disk::open(settings, disk, keys, http, clock, patience).await,
        StoreKind::Engine(engine) => open_engine(settings, engine, keys).await,
        _ => Err(OpenStoreError::NotBuilt { kind: settings.word() }),
    }
}

/// Checks that this program has the client of the store, and of a former one, whose file it reads. Opens nothing.
///
/// # Errors
/// [`OpenStoreError::NotBuilt`] if it has not; [`OpenStoreError::Former`] about a former store.
pub fn check_store(settings: &StoreSettings) -> Result<(), OpenStoreError> {
    check_own(settings)?;
    let Some(path) = &settings.from else { return Ok(()) };
    check_own(&former(path)?).map_err(|error| error.of_former(path))
}

fn check_own(settings: &StoreSettings) -> Result<(), OpenStoreError> {
    let StoreKind::Engine(engine) = &settings.kind else { return Ok(()) };
    check_engine(&engine.engine)?;
    let through = engine.region.as_ref().map(|region| &region.through.engine);
    through.map_or(Ok(()), |through| {
        check_engine(through).map_err(|error| OpenStoreError::Region(Box::new(error)))
    })
}

fn check_engine(engine: &EngineKind) -> Result<(), OpenStoreError> {
    match engine {
        EngineKind::Redis { .. } if cfg!(feature = "redis") => Ok(()),
        EngineKind::Etcd if cfg!(feature = "etcd") => Ok(()),
        EngineKind::ZooKeeper if cfg!(feature = "zookeeper") => Ok(()),
        _ => Err(OpenStoreError::NotBuilt { kind: engine.word() }),
    }
}

/// Connects to the engine that nodes share, without joining them.
///
/// # Errors
/// [`OpenStoreError`], also if the engine does not answer; [`OpenStoreError::NoCoordinator`] for a store that cannot
/// coordinate nodes.
///
/// # Cancel safety
/// Dropping the future closes the connection. No node has joined.
pub async fn open_coordinator(settings: &StoreSettings) -> Result<Arc<dyn Coordinator>, OpenStoreError> {
    let kind = settings.word();
    let StoreKind::Engine(engine) = &settings.kind else {
        return Err(OpenStoreError::NoCoordinator { kind });
    };
    let dial = dial_of(kind, engine)?;
    if !dial.coordinates {
        return Err(OpenStoreError::NoCoordinator { kind });
    }
    match (dial.attempt)().await {
        Ok(dialled) => dialled.coordinator.ok_or(OpenStoreError::NoCoordinator { kind }),
        Err(Failed::Away(reason)) => Err(OpenStoreError::Engine { kind, reason }),
        Err(Failed::ForGood(error)) => Err(error),
    }
}

async fn open_engine(
    settings: &StoreSettings,
    engine: &EngineSettings,
    keys: Option<usize>,
) -> Result<OpenStore, OpenStoreError> {
    let kind = settings.word();
    let (dialled, away) = dial::first(kind, dial_of(kind, engine)?).await?;
    let mut warnings = dialled.warnings;
    let region = match &engine.region {
        Some(region) => {
            let (region, said) =
                open_region(region).await.map_err(|error| OpenStoreError::Region(Box::new(error)))?;
            warnings.extend(said);
            Some(region)
        }
        None => None,
    };
    let sharing = Sharing {
        nodes: engine.nodes,
        deadline: engine.deadline,
        keys: keys.unwrap_or(settings.keys),
        full_keys: settings.full_keys,
        coordinator: dialled.coordinator,
        roster: dialled.roster,
        cluster_policies: engine.cluster_policies,
        region,
    };
    let opened = OpenStore::new(dialled.store, kind);
    Ok(OpenStore { sharing: Some(sharing), away, warnings, ..opened })
}

/// Connects to the engine that divides limits among regions, or dials it in the background. Returns a warning too.
async fn open_region(settings: &RegionSettings) -> Result<(Region, Option<String>), OpenStoreError> {
    let kind = settings.through.engine.word();
    let (dialled, away) = dial::first(kind, dial_of(kind, &settings.through)?).await?;
    let coordinator = dialled.coordinator.ok_or(OpenStoreError::NoCoordinator { kind })?;
    let warning = away.then(|| {
        format!(
            "store.region.kind: {kind}: it does not answer and is tried every second; until it does, region {} uses only the part that is always its own",
            settings.name
        )
    });
    Ok((Region { name: settings.name.clone(), most: settings.most, coordinator }, warning))
}

fn dial_of(kind: &'static str, engine: &EngineSettings) -> Result<Dial, OpenStoreError> {
    match &engine.engine {
        #[cfg(feature = "redis")]
        EngineKind::Redis { topology, after_loss } => redis::dial(engine, topology, *after_loss),
        #[cfg(feature = "etcd")]
        EngineKind::Etcd => etcd::dial(engine),
        #[cfg(feature = "zookeeper")]
        EngineKind::ZooKeeper => zookeeper::dial(engine),
        #[allow(unreachable_patterns, reason = "reached where a client is not built in")]
        _ => Err(OpenStoreError::NotBuilt { kind }),
    }
}

#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
mod password {
    //! Reads the files that an engine's settings name.

    use std::path::Path;

    use tidegate::config::{EngineSettings, read_file, read_text};

    use super::opened::OpenStoreError;

    /// The most bytes of a file with a password or certificates. A larger file is probably a different one.
    const MOST: u64 = 1 << 20;

    const KEY: &str = "store.password_file";

    /// Reads the password: the first line of its file.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(super) fn password(engine: &EngineSettings) -> Result<Option<String>, OpenStoreError> {
        logins(engine, false).map(|(password, _)| password)
    }

    /// The password of the engine, and user and password of the sentinels before it.
    type Logins = (Option<String>, Option<(String, String)>);

    /// Reads the passwords: that of the engine in the first line of their file, and in the second one the login of
    /// sentinels, if there are any.
    pub(super) fn logins(engine: &EngineSettings, sentinels: bool) -> Result<Logins, OpenStoreError> {
        let Some(path) = &engine.password_file else { return Ok((None, None)) };
        let text = read_text(path, MOST).map_err(failed(KEY, path))?;
        let mut lines = text.lines();
        let password = lines.next().filter(|line| !line.is_empty());
        let password = password
            .ok_or_else(|| content(KEY, path, "has an empty first line; write the password there"))?;
        let login = match lines.next().filter(|line| sentinels && !line.is_empty()) {
            Some(line) => Some(line.split_once(':').filter(|(_, password)| !password.is_empty()).ok_or_else(
                || content(KEY, path, "has a second line that is no login of the sentinels; write user:password, or :password"),
            )?),
            None => None,
        };
        let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        Ok((Some(password.to_owned()), login))
    }

    #[cfg(any(feature = "redis", feature = "etcd"))]
    pub(super) fn certificates(engine: &EngineSettings) -> Result<Option<Vec<u8>>, OpenStoreError> {
        engine.ca_file.as_ref().map(|path| certificate("store.ca_file", path)).transpose()
    }

    /// A certificate and its private key, in PEM.
    #[cfg(any(feature = "redis", feature = "etcd"))]
    type Identity = (Vec<u8>, Vec<u8>);

    #[cfg(any(feature = "redis", feature = "etcd"))]
    pub(super) fn identity(engine: &EngineSettings) -> Result<Option<Identity>, OpenStoreError> {
        let Some((cert, key)) = &engine.identity_files else { return Ok(None) };
        Ok(Some((certificate("store.cert_file", cert)?, private_key("store.key_file", key)?)))
    }

    /// Reads a file with certificates. It must contain some: with none, a client trusts nobody, and only reports that
    /// the engine's issuer is unknown.
    #[cfg(any(feature = "redis", feature = "etcd"))]
    fn certificate(key: &'static str, path: &Path) -> Result<Vec<u8>, OpenStoreError> {
        let text = read_file(path, MOST).map_err(failed(key, path))?;
        if has(&text, "-----BEGIN CERTIFICATE-----") {
            return Ok(text);
        }
        let why = "holds no certificate in PEM; one begins with the line -----BEGIN CERTIFICATE-----";
        Err(content(key, path, why))
    }

    #[cfg(any(feature = "redis", feature = "etcd"))]
    fn private_key(key: &'static str, path: &Path) -> Result<Vec<u8>, OpenStoreError> {
        let text = read_file(path, MOST).map_err(failed(key, path))?;
        let why = if has(&text, "ENCRYPTED") {
            "holds an encrypted key, and a server has nobody to type its passphrase; write it without one: openssl pkey -in FILE -out NEW"
        } else if has(&text, "PRIVATE KEY-----") {
            return Ok(text);
        } else {
            "holds no private key in PEM; one begins with the line -----BEGIN PRIVATE KEY-----"
        };
        Err(content(key, path, why))
    }

    #[cfg(any(feature = "redis", feature = "etcd"))]
    fn has(text: &[u8], words: &str) -> bool {
        text.windows(words.len()).any(|part| part == words.as_bytes())
    }

    fn content(key: &'static str, path: &Path, why: &'static str) -> OpenStoreError {
        OpenStoreError::Content { key, path: path.to_owned(), why }
    }

    fn failed(key: &'static str, path: &Path) -> impl FnOnce(tidegate::config::ReadError) -> OpenStoreError {
        let path = path.to_owned();
        move |why| OpenStoreError::File { key, path, why }
    }
}

/// Returns what to do about a certificate that was not accepted, in the terms of the file; `reason` is what the TLS
/// library says of it.
#[cfg(any(feature = "redis", feature = "etcd"))]
fn remedy(reason: &str) -> &'static str {
    if reason.contains("CaUsedAsEndEntity") {
        "the engine uses the certificate of an authority as its own (CA:TRUE): give it one that the authority has signed, \
         or make a self-signed one with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE`, and name that \
         in ca_file"
    } else if reason.contains("UnknownIssuer") || reason.contains("BadSignature") {
        "no authority in ca_file, or without it of the system, has signed the engine's certificate: name the file with \
         that authority, or with the certificate itself if it is self-signed, as ca_file: /etc/tidegate/ca.pem"
    } else if reason.contains("not valid for name") || reason.contains("NotValidForName") {
        "store.url names another host than the engine's certificate: write a name that it has"
    } else {
        "look at ca_file, cert_file and key_file"
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    //! Opens the store on etcd.

    use std::sync::Arc;

    use tidegate::config::EngineSettings;
    use tidegate::store::Caps;
    use tidegate_etcd::{ConnectError, Etcd, EtcdOptions, Tls};

    use super::dial::{Attempt, Dial, Dialled, Failed, MEMBERS_KEPT};
    use super::opened::OpenStoreError;
    use super::{password, remedy};

    const KIND: &str = "etcd";

    pub(super) fn dial(engine: &EngineSettings) -> Result<Dial, OpenStoreError> {
        let engine = engine.clone();
        let read = Arc::new(move || options(&engine));
        // A mistake in a file ends the start.
        read()?;
        let attempt = move || -> Attempt {
            let (read, again) = (Arc::clone(&read), Arc::clone(&read));
            Box::pin(async move {
                let options = read().map_err(|error| Failed::Away(error.to_string()))?;
                let options = options.renewed_by(move || again().map_err(|error| error.to_string()));
                Etcd::connect(options).await.map(|etcd| dialled(&etcd)).map_err(|error| failed(&error))
            })
        };
        Ok(Dial { caps: Caps::ENGINE, coordinates: true, attempt: Box::new(attempt) })
    }

    /// Reads the files that the settings name.
    fn options(engine: &EngineSettings) -> Result<EtcdOptions, OpenStoreError> {
        let mut options = EtcdOptions::new(engine.urls.iter().cloned()).prefix(&engine.prefix);
        if let Some(user) = &engine.user {
            options = options.user(user, password::password(engine)?.unwrap_or_default());
        }
        let (authorities, identity) = (password::certificates(engine)?, password::identity(engine)?);
        if authorities.is_some() || identity.is_some() {
            let authorities = authorities.unwrap_or_default();
            options = options.tls(Tls { authorities, identity, ..Tls::default() });
        }
        Ok(options)
    }

    fn dialled(etcd: &Etcd) -> Dialled {
        let coordinator = Some(etcd.coordinator(MEMBERS_KEPT));
        Dialled { store: Arc::new(etcd.store()), coordinator, roster: None, warnings: Vec::new() }
    }

    fn failed(error: &ConnectError) -> Failed {
        let reason = error.to_string();
        match error {
            // Members without a leader accept no writes, and report various errors.
            ConnectError::Unreachable { .. }
            | ConnectError::ReadOnly { .. }
            | ConnectError::Renewal { .. }
            | ConnectError::Other { .. } => Failed::Away(reason),
            ConnectError::Address { .. } => Failed::ForGood(OpenStoreError::Setting { kind: KIND, reason }),
            ConnectError::Certificate { address, reason } => {
                let reason = format!("no TLS with {address}: {reason}; {}", remedy(reason));
                Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason })
            }
            _ => Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason }),
        }
    }
}

#[cfg(feature = "zookeeper")]
mod zookeeper {
    //! Opens the store on ZooKeeper.

    use std::sync::Arc;

    use tidegate::config::EngineSettings;
    use tidegate::store::Caps;
    use tidegate_zookeeper::{ConnectError, ZooKeeper, ZooKeeperOptions};

    use super::dial::{Attempt, Dial, Dialled, Failed, MEMBERS_KEPT};
    use super::opened::OpenStoreError;
    use super::password;

    const KIND: &str = "zookeeper";

    pub(super) fn dial(engine: &EngineSettings) -> Result<Dial, OpenStoreError> {
        let engine = engine.clone();
        let read = Arc::new(move || options(&engine));
        // A mistake in a file ends the start.
        read()?;
        let attempt = move || -> Attempt {
            let (read, again) = (Arc::clone(&read), Arc::clone(&read));
            Box::pin(async move {
                let options = read().map_err(|error| Failed::Away(error.to_string()))?;
                let options = options.renewed_by(move || again().map_err(|error| error.to_string()));
                let zookeeper = ZooKeeper::connect(options).await;
                zookeeper.map(|zookeeper| dialled(&zookeeper)).map_err(|error| failed(&error))
            })
        };
        Ok(Dial { caps: Caps::ENGINE, coordinates: true, attempt: Box::new(attempt) })
    }

    /// Reads the file that the settings name.
    fn options(engine: &EngineSettings) -> Result<ZooKeeperOptions, OpenStoreError> {
        let addresses = engine.urls.iter().map(|url| url.trim_start_matches("zookeeper://").to_owned());
        let mut options = ZooKeeperOptions::new(addresses).path(format!("/{}", engine.prefix));
        if let Some(user) = &engine.user {
            options = options.user(user, password::password(engine)?.unwrap_or_default());
        }
        Ok(options)
    }

    fn dialled(zookeeper: &ZooKeeper) -> Dialled {
        let coordinator = Some(zookeeper.coordinator(MEMBERS_KEPT));
        Dialled { store: Arc::new(zookeeper.store()), coordinator, roster: None, warnings: Vec::new() }
    }

    fn failed(error: &ConnectError) -> Failed {
        let reason = error.to_string();
        match error {
            // A server that is cut off from its ensemble accepts no writes, and reports various errors.
            ConnectError::Unreachable { .. }
            | ConnectError::ReadOnly { .. }
            | ConnectError::Renewal { .. }
            | ConnectError::Other { .. } => Failed::Away(reason),
            ConnectError::Address { .. } | ConnectError::Path { .. } => {
                Failed::ForGood(OpenStoreError::Setting { kind: KIND, reason })
            }
            _ => Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason }),
        }
    }
}

#[cfg(all(test, any(feature = "redis", feature = "etcd")))]
mod tests {
    use super::remedy;

    /// The words are those of the TLS library; a self-signed certificate by `openssl req -x509` is an authority's.
    #[test]
    fn a_certificate_that_is_not_accepted_has_a_remedy() {
        for (reason, part) in [
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "CA:FALSE"),
            ("invalid peer certificate: UnknownIssuer", "ca_file: /etc/tidegate/ca.pem"),
            (
                "invalid peer certificate: certificate not valid for name \"a\"",
                "store.url names another host",
            ),
            ("received fatal alert: CertificateRequired", "cert_file and key_file"),
        ] {
            assert!(remedy(reason).contains(part), "{reason}: {}", remedy(reason));
        }
    }
}
