//! Nodes, an engine and a network between them, on one virtual clock: the same on every run.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::store::leased::LeasedBuilder;
use tidegate::store::{
    Answer, Caps, DecidedBy, Home, Later, Leased, Occupancy, OwnedStep, PlainStore, Settled, Settling, Step,
    Store, StoreError,
};
use tidegate::{Clock, Tick};

/// The virtual time, and who waits for which tick.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time(Arc<Hands>);

#[derive(Debug, Default)]
struct Hands {
    now: AtomicU64,
    /// How many have waited so far, and who waits, by tick and arrival.
    waiting: Mutex<(u64, Waiting)>,
}

type Waiting = BTreeMap<(u64, u64), Waker>;

impl Clock for Time {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.0.now.load(Ordering::Relaxed))
    }
}

impl Time {
    async fn until(self, tick: Tick) {
        std::future::poll_fn(|cx| {
            if self.now() >= tick {
                return Poll::Ready(());
            }
            let mut waiting = self.0.waiting.lock();
            waiting.0 += 1;
            let place = (tick.as_nanos(), waiting.0);
            waiting.1.insert(place, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn next(&self) -> Option<u64> {
        self.0.waiting.lock().1.keys().next().map(|(tick, _)| *tick)
    }

    fn set(&self, tick: u64) {
        self.0.now.store(tick, Ordering::Relaxed);
        let mut waiting = self.0.waiting.lock();
        let later = waiting.1.split_off(&(tick, u64::MAX));
        let due = std::mem::replace(&mut waiting.1, later);
        drop(waiting);
        due.into_values().for_each(Waker::wake);
    }
}

/// An engine, as one node sees it: so far away, and down now and then.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) store: Arc<PlainStore>,
    time: Time,
    one_way: Duration,
    pub(crate) link: Arc<Mutex<Link>>,
}

/// How the network is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    #[default]
    Up,
    /// Calls fail at once.
    Down,
    /// Calls arrive, and their answers do not.
    LosesAnswers,
}

impl Store for Engine {
    fn settle_into(&self, step: &Step<'_>, _: &mut Settled) -> Settling {
        let (engine, step) = (self.clone(), OwnedStep::of(step));
        Settling::Later(Box::pin(async move { engine.asked(step).await }))
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::ENGINE;
        caps.own_clock = true;
        caps
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

impl Engine {
    async fn asked(self, step: OwnedStep) -> Answer {
        let gone = || StoreError::Unavailable { reason: "it does not answer".to_owned() };
        if *self.link.lock() == Link::Down {
            return Err(gone());
        }
        let (time, one_way) = (self.time.clone(), self.one_way);
        time.clone().until(time.now().after(one_way)).await;
        let now = time.now();
        let answer = step.with(|step| self.store.blocking_settle(&Step { now, ..*step }));
        time.clone().until(now.after(one_way)).await;
        if *self.link.lock() == Link::LosesAnswers {
            return Err(gone());
        }
        answer.map(|settled| Settled { by: DecidedBy::Engine, ..settled })
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks that were woken.
type Woken = Arc<Mutex<VecDeque<usize>>>;

struct Alarm(usize, Woken);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.1.lock().push_back(self.0);
    }
}

/// All there is.
pub(crate) struct World {
    pub(crate) time: Time,
    pub(crate) nodes: Vec<Leased>,
    pub(crate) engines: Vec<Engine>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    woken: Woken,
    /// What nodes do in the background.
    background: Arc<Mutex<Vec<Task>>>,
}

impl World {
    /// Makes nodes around one engine; each is built by `with`, by its number.
    pub(crate) fn new(
        nodes: usize,
        one_way: Duration,
        with: impl Fn(usize, LeasedBuilder) -> LeasedBuilder,
    ) -> Self {
        let (time, store) = (Time::default(), Arc::new(PlainStore::default()));
        time.set(1_000_000_000_000);
        let background: Arc<Mutex<Vec<Task>>> = Arc::default();
        let (mut all, mut engines) = (Vec::new(), Vec::new());
        for node in 0..nodes {
            let engine =
                Engine { store: Arc::clone(&store), time: time.clone(), one_way, link: Arc::default() };
            engines.push(engine.clone());
            let queue = Arc::clone(&background);
            let builder = Leased::around(engine, time.clone())
                .background(move |later: Later<()>| queue.lock().push(later));
            all.push(with(node, builder).build());
        }
        let (tasks, free, woken) = (Vec::new(), Vec::new(), Woken::default());
        Self { time, nodes: all, engines, tasks, free, woken, background }
    }

    pub(crate) fn now(&self) -> Tick {
        self.time.now()
    }

    pub(crate) fn spawn(&mut self, task: Task) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        self.tasks[at] = Some(task);
        self.woken.lock().push_back(at);
        self.settle();
    }

    /// Runs all tasks as far as they come at this tick.
    pub(crate) fn settle(&mut self) {
        loop {
            let spawned = std::mem::take(&mut *self.background.lock());
            for task in spawned {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.tasks.push(None);
                    self.tasks.len() - 1
                });
                self.tasks[at] = Some(task);
                self.woken.lock().push_back(at);
            }
            let Some(at) = self.woken.lock().pop_front() else { return };
            let Some(mut task) = self.tasks[at].take() else { continue };
            let waker = Waker::from(Arc::new(Alarm(at, Arc::clone(&self.woken))));
            match task.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(()) => self.free.push(at),
                Poll::Pending => self.tasks[at] = Some(task),
            }
        }
    }

    /// Turns the clock to a tick, and stops at every one for which somebody waits.
    pub(crate) fn run_to(&mut self, tick: Tick) {
        let tick = tick.max(self.now());
        self.settle();
        while let Some(next) = self.time.next().filter(|next| *next <= tick.as_nanos()) {
            self.time.set(next);
            self.settle();
        }
        self.time.set(tick.as_nanos());
        self.settle();
    }

    /// Has every node look after its pockets.
    pub(crate) fn tick(&mut self) {
        for node in 0..self.nodes.len() {
            if let Some(later) = self.nodes[node].tick(self.now()) {
                self.spawn(later);
            }
        }
    }

    /// Calls to the engine, of all nodes.
    pub(crate) fn messages(&self) -> u64 {
        self.nodes.iter().map(|node| node.health().messages).sum()
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.nodes.iter().map(|node| node.health().outstanding).sum()
    }
}
