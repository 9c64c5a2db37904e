//! Nodes, an engine and a network between them, on one virtual clock: every run is the same.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate::clock::Clock;
use tidegate::store::leased::LeasedBuilder;
use tidegate::store::{
    Caps, Charge, DecidedBy, Durable, Executed, Execution, Home, Later, Leased, Occupancy, Op, OwnedStep,
    PlainStore, Step, StepAnswer, Store, StoreError,
};

/// The virtual time, and the sleeps that wait for a tick.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time(Arc<Hands>);

#[derive(Debug, Default)]
struct Hands {
    now: AtomicU64,
    /// How many sleeps there have been, and the wakers that wait, by tick and arrival.
    waiting: Mutex<(u64, Waiting)>,
}

type Waiting = BTreeMap<(u64, u64), Waker>;

impl Clock for Time {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.0.now.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, tick: Tick) -> Later<()> {
        Box::pin(Sleeping { time: self.clone(), tick, place: None })
    }
}

/// A sleep that removes its waker when it is dropped. Nearly all sleeps are dropped before they end.
struct Sleeping {
    time: Time,
    tick: Tick,
    place: Option<(u64, u64)>,
}

impl Future for Sleeping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.time.now() >= self.tick {
            return Poll::Ready(());
        }
        let this = &mut *self;
        let mut waiting = this.time.0.waiting.lock();
        if this.place.is_none() {
            waiting.0 += 1;
        }
        let place = *this.place.get_or_insert((this.tick.as_nanos(), waiting.0));
        waiting.1.insert(place, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.time.0.waiting.lock().1.remove(&place);
        }
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

/// An engine as one node sees it: with a delay each way, and a link that may fail.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) store: Arc<PlainStore>,
    time: Time,
    one_way: Duration,
    pub(crate) link: Arc<Mutex<Link>>,
    /// The durability asked for by the last draw.
    pub(crate) drawn_as: Arc<Mutex<Option<Durable>>>,
    /// How many calls are in flight, and the most that ever were.
    under_way: Arc<AtomicU64>,
    pub(crate) most_at_once: Arc<AtomicU64>,
}

/// The state of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    #[default]
    Up,
    /// Calls fail at once.
    Down,
    /// Calls arrive, but their answers are lost.
    LosesAnswers,
    /// Calls are lost and never answered.
    LosesAll,
}

impl Store for Engine {
    fn execute_into(&self, step: &Step<'_>, _: &mut Executed) -> Execution {
        if let (Op::Draw, [charge]) = (step.op, step.charges) {
            *self.drawn_as.lock() = Some(charge.rules.durable);
        }
        let (engine, steps) = (self.clone(), vec![OwnedStep::of(step)]);
        Execution::Later(Box::pin(async move { engine.asked(steps).await.remove(0) }))
    }

    fn execute_each(&self, steps: &[Step<'_>], _: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        let (engine, steps) = (self.clone(), steps.iter().map(OwnedStep::of).collect());
        Some(Box::pin(engine.asked(steps)))
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
    async fn asked(self, steps: Vec<OwnedStep>) -> Vec<StepAnswer> {
        let now = 1 + self.under_way.fetch_add(1, Ordering::Relaxed);
        self.most_at_once.fetch_max(now, Ordering::Relaxed);
        let answers = self.answer(&steps).await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        answers
    }

    async fn answer(&self, steps: &[OwnedStep]) -> Vec<StepAnswer> {
        let gone = |_: &OwnedStep| Err(StoreError::Unavailable { reason: "it does not answer".to_owned() });
        let link = *self.link.lock();
        match link {
            Link::Down => return steps.iter().map(gone).collect(),
            Link::LosesAll => return std::future::pending().await,
            Link::Up | Link::LosesAnswers => {}
        }
        let (time, one_way) = (self.time.clone(), self.one_way);
        time.clone().until(time.now().after(one_way)).await;
        let now = time.now();
        let execute = |step: &OwnedStep| -> StepAnswer {
            let answer = step.with(|step| self.store.blocking_execute(&Step { now, ..*step }));
            answer.map(|executed| Executed { by: DecidedBy::Engine, ..executed })
        };
        let answers = steps.iter().map(execute).collect();
        time.clone().until(now.after(one_way)).await;
        if *self.link.lock() == Link::LosesAnswers {
            return steps.iter().map(gone).collect();
        }
        answers
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks that were woken.
type Woken = Arc<Mutex<VecDeque<usize>>>;

struct Alarm(usize, Woken);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.1.lock().push_back(self.0);
    }
}

/// The nodes, the engine, and the tasks that run between them.
pub(crate) struct World {
    pub(crate) time: Time,
    pub(crate) nodes: Vec<Leased>,
    pub(crate) engines: Vec<Engine>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    woken: Woken,
    /// The background tasks that nodes have started.
    background: Arc<Mutex<Vec<Task>>>,
}

impl World {
    /// Makes nodes around one engine. `with` configures each node by its number.
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
            let engine = Engine {
                store: Arc::clone(&store),
                time: time.clone(),
                one_way,
                link: Arc::default(),
                drawn_as: Arc::default(),
                under_way: Arc::default(),
                most_at_once: Arc::default(),
            };
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
        self.run_ready();
    }

    /// Runs the world until a future ends.
    pub(crate) fn finish<T: Send + 'static>(&mut self, later: Later<T>) -> T {
        let answer: Arc<Mutex<Option<T>>> = Arc::default();
        let told = Arc::clone(&answer);
        self.spawn(Box::pin(async move { *told.lock() = Some(later.await) }));
        for _ in 0..200 {
            if answer.lock().is_some() {
                break;
            }
            let next = self.now().after(Duration::from_millis(1));
            self.run_to(next);
        }
        answer.lock().take().expect("the engine answers within a fifth of a second")
    }

    /// Executes a step on a node without waiting for the answer.
    pub(crate) fn ask_and_go(&mut self, node: usize, op: Op<'_>, charges: &[Charge<'_>]) {
        let step = Step::new(self.now(), op, charges);
        if let Execution::Later(later) = self.nodes[node].execute_into(&step, &mut Executed::default()) {
            self.spawn(Box::pin(async move { drop(later.await) }));
        }
    }

    /// Runs all tasks as far as they get at this tick.
    pub(crate) fn run_ready(&mut self) {
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

    /// Moves the clock to a tick, stopping at every tick that a sleep waits for.
    pub(crate) fn run_to(&mut self, tick: Tick) {
        let tick = tick.max(self.now());
        self.run_ready();
        while let Some(next) = self.time.next().filter(|next| *next <= tick.as_nanos()) {
            self.time.set(next);
            self.run_ready();
        }
        self.time.set(tick.as_nanos());
        self.run_ready();
    }

    /// Runs the tick of every node, which maintains its batches.
    pub(crate) fn tick(&mut self) {
        for node in 0..self.nodes.len() {
            if let Some(later) = self.nodes[node].tick(self.now()) {
                self.spawn(later);
            }
        }
    }

    /// Returns how many calls all nodes have sent to the engine.
    pub(crate) fn messages(&self) -> u64 {
        self.nodes.iter().map(|node| node.health().messages).sum()
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.nodes.iter().map(|node| node.health().outstanding).sum()
    }
}
