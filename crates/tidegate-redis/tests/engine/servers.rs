//! Real servers, options for stores on them, connections to them and requests to these stores.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tidegate::store::{Charge, Op, Step, StepAnswer, StepClock, Store as _};
use tidegate_core::{Cost, Quota, Tick};
use tidegate_redis::{AfterLoss, RedisOptions, RedisStore};
use tidegate_testkit::{FaultyProxy, RedisServer};
pub(crate) use tidegate_testkit::{free_port, runtime, within};
use tokio::runtime::Runtime;

/// Returns the path of a program of Redis; `None` to skip the test.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    tidegate_testkit::program(name, if name == "redis-sentinel" { name } else { "redis-server" })
}

/// A server, and a connection to it that is not the store's.
pub(crate) struct Server {
    redis: RedisServer,
    pub(crate) port: u16,
    password: Option<String>,
}

impl std::ops::Deref for Server {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.redis
    }
}

impl std::ops::DerefMut for Server {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.redis
    }
}

impl Server {
    /// Starts a server with these options besides its port; `None` if the program is missing.
    pub(crate) fn start(options: &[&str]) -> Option<Self> {
        RedisServer::start(options).map(|redis| Self::of(redis, options))
    }

    /// Starts a server whose clock the test sets; `None` if a program is missing.
    pub(crate) fn start_with_clock() -> Option<Self> {
        RedisServer::start_with_clock(&[]).map(|redis| Self::of(redis, &[]))
    }

    fn of(redis: RedisServer, options: &[&str]) -> Self {
        let password = options.iter().position(|option| *option == "--requirepass");
        let password = password.map(|at| options[at + 1].to_owned());
        Self { port: redis.addr().port(), redis, password }
    }

    pub(crate) fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}/", self.port),
            None => format!("redis://127.0.0.1:{}/", self.port),
        }
    }

    /// Sends a command over a connection of its own.
    pub(crate) fn try_ask(&self, words: &[&str]) -> Option<Value> {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(2)).ok()?;
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        command.query(&mut connection).ok()
    }

    pub(crate) fn ask(&self, words: &[&str]) -> Value {
        self.try_ask(words).unwrap_or_else(|| panic!("no answer to {words:?}"))
    }

    pub(crate) fn text(&self, words: &[&str]) -> String {
        redis::from_redis_value(self.ask(words)).unwrap()
    }

    /// Returns a field of INFO.
    pub(crate) fn info(&self, field: &str) -> String {
        let info = self.text(&["INFO", "everything"]);
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn within(&self, what: &str, is: impl Fn(&Self) -> bool) {
        within(&format!("the server on port {} {what}", self.port), || is(self));
    }
}

/// Returns a namespace that no other store of this process uses.
pub(crate) fn namespace() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Options for a server, in a namespace of their own, where a missing cell counts as a full limit.
pub(crate) fn options(server: &Server) -> RedisOptions {
    RedisOptions::single(&server.url()).unwrap().namespace(&namespace()).after_loss(AfterLoss::Full)
}

/// The same, through a proxy.
pub(crate) fn options_through(proxy: &FaultyProxy) -> RedisOptions {
    let url = format!("redis://{}/", proxy.addr());
    RedisOptions::single(&url).unwrap().namespace(&namespace()).after_loss(AfterLoss::Full)
}

pub(crate) fn connect(runtime: &Runtime, options: RedisOptions) -> RedisStore {
    runtime.block_on(RedisStore::connect(options)).unwrap()
}

/// Takes units by the server's clock.
pub(crate) fn take(store: &RedisStore, key: &[u8], quota: &Arc<Quota>, units: u64) -> StepAnswer {
    ask(store, Op::Take, &[Charge::new(key, quota, Cost::new(units).unwrap())])
}

/// Runs an operation by the server's clock.
pub(crate) fn ask(store: &RedisStore, op: Op<'_>, charges: &[Charge<'_>]) -> StepAnswer {
    let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, op, charges) };
    store.blocking_execute(&step)
}

/// Returns a key's remaining units.
pub(crate) fn left(store: &RedisStore, key: &[u8], quota: &Arc<Quota>) -> u64 {
    let peeked = ask(store, Op::Peek, &[Charge::new(key, quota, Cost::ONE)]).unwrap();
    peeked.lines[0].decision.standing.remaining
}

/// Returns how many of `takes` takes of one unit are allowed, sent in batches.
pub(crate) fn allowed(store: &RedisStore, key: &[u8], quota: &Arc<Quota>, takes: usize) -> usize {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, Op::Take, &charges) };
    let mut allowed = 0;
    for from in (0..takes).step_by(100) {
        let steps = vec![step; (takes - from).min(100)];
        let answers = blocking_each(store, &steps);
        allowed +=
            answers.iter().filter(|answer| answer.as_ref().is_ok_and(|executed| executed.allowed)).count();
    }
    allowed
}

pub(crate) fn blocking_each(store: &RedisStore, steps: &[Step<'_>]) -> Vec<StepAnswer> {
    let later = store.execute_each(steps, &mut Vec::new()).expect("an engine answers later");
    wait(later)
}

/// Awaits a future on this thread, without a runtime.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = Arc::new(Thread(std::thread::current())).into();
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
