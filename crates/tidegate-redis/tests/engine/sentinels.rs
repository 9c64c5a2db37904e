//! A master, a replica and a sentinel: the master dies, the replica takes over.

use std::process::Command;
use std::sync::Arc;

use tidegate_core::Quota;
use tidegate_redis::{AfterLoss, ConnectError, RedisOptions, RedisStore};
use tidegate_testkit::{Process, folder};

use crate::servers::{Server, allowed, free_port, program, runtime, take, within};

struct Sentinel {
    _process: Process,
    port: u16,
}

impl Sentinel {
    fn start(master: &Server) -> Option<Self> {
        Self::start_with(master, "")
    }

    /// Starts a sentinel with more lines in its file.
    fn start_with(master: &Server, lines: &str) -> Option<Self> {
        let program = program("redis-sentinel")?;
        let (folder, port) = (folder(), free_port());
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor tide 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds tide 500\nsentinel failover-timeout tide 3000\n{lines}",
            folder.path().display(),
            master.port
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command.arg(&file);
        Some(Self { _process: Process::start(command, folder), port })
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

#[test]
fn a_failover_is_followed_and_grants_nothing_twice() {
    let Some(mut master) = Server::start(&[]) else { return };
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", master.port)]).unwrap();
    let Some(sentinel) = Sentinel::start(&master) else { return };
    replica.within("follows its master", |replica| replica.info("master_link_status") == "up");
    let seen = || {
        let client = redis::Client::open(sentinel.url()).unwrap();
        let info = client.get_connection().ok().map(|mut connection| {
            redis::cmd("INFO").arg("sentinel").query::<String>(&mut connection).unwrap_or_default()
        });
        info.is_some_and(|info| info.contains("slaves=1"))
    };
    within("the sentinel knows the replica", seen);
    let runtime = runtime();
    let connect = |after_loss| {
        let options =
            RedisOptions::sentinel(&["redis://127.0.0.1:1/", &sentinel.url()], "tide", "redis://any/");
        let options = options.unwrap().namespace(&crate::servers::namespace()).after_loss(after_loss);
        runtime.block_on(RedisStore::connect(options)).unwrap()
    };
    let quota = Arc::new(Quota::per_day(100).gcra().unwrap());
    let (half, full) = (connect(AfterLoss::Half), connect(AfterLoss::Full));
    assert_eq!((allowed(&half, b"a", &quota, 30), allowed(&full, b"a", &quota, 30)), (30, 30));
    let behind = || replica.info("master_repl_offset") == master.info("master_repl_offset");
    within("the replica has it all", behind);
    master.kill();
    assert!(take(&half, b"a", &quota, 1).is_err());
    within("the replica decides", || {
        take(&half, b"a", &quota, 101).is_ok() && take(&full, b"a", &quota, 101).is_ok()
    });
    // Nothing was lost, but no node can know that: 70 units are left if that is trusted (`Full`), and the assumed half
    // otherwise.
    assert_eq!((allowed(&half, b"a", &quota, 100), allowed(&full, b"a", &quota, 100)), (50, 70));
}

/// Sentinels with a password, or with users of their own, used to be out of reach of a server.
#[test]
fn sentinels_may_want_a_login_of_their_own() {
    let Some(master) = Server::start(&["--requirepass", "s3cret"]) else { return };
    let of_master = "sentinel auth-pass tide s3cret\n";
    for (lines, login) in [
        ("requirepass sent1nel\n", ":sent1nel@"),
        ("user tide on >sent1nel +@all\nuser default off\n", "tide:sent1nel@"),
    ] {
        let Some(sentinel) = Sentinel::start_with(&master, &format!("{of_master}{lines}")) else { return };
        within("the sentinel answers", || std::net::TcpStream::connect(("127.0.0.1", sentinel.port)).is_ok());
        let connect = |login: &str| {
            let url = format!("redis://{login}127.0.0.1:{}/", sentinel.port);
            let options = RedisOptions::sentinel(&[&url], "tide", "redis://:s3cret@any/").unwrap();
            let again = options.clone();
            runtime().block_on(RedisStore::connect(options.renewed_by(move || Ok(again.clone()))))
        };
        for wrong in ["", ":wrong@"] {
            let error = connect(wrong).map(|_| ()).unwrap_err();
            assert!(matches!(error, ConnectError::Credentials { .. }), "{wrong}: {error}");
        }
        connect(login).unwrap();
    }
}

#[test]
fn a_master_that_no_sentinel_knows() {
    let Some(master) = Server::start(&[]) else { return };
    let Some(sentinel) = Sentinel::start(&master) else { return };
    within("the sentinel answers", || std::net::TcpStream::connect(("127.0.0.1", sentinel.port)).is_ok());
    let options = RedisOptions::sentinel(&[&sentinel.url()], "ebb", "redis://any/").unwrap();
    let error = runtime().block_on(RedisStore::connect(options)).map(|_| ()).unwrap_err();
    assert!(matches!(&error, ConnectError::NoMaster { name, .. } if name == "ebb"), "{error}");
}

/// The error used to be the server's own words about an unknown command, and the server was treated as unreachable.
#[test]
fn a_server_that_is_no_sentinel_is_told_as_that() {
    let Some(server) = Server::start(&[]) else { return };
    let options = RedisOptions::sentinel(&[&server.url()], "tide", "redis://any/").unwrap();
    let error = runtime().block_on(RedisStore::connect(options)).unwrap_err();
    assert!(matches!(&error, ConnectError::NoSentinel { .. }), "{error}");
}
