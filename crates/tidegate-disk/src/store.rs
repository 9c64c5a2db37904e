//! The store itself: decides in memory, and is kept on disk.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tidegate::store::{
    Caps, Charge, Durable, Executed, Execution, Export, Home, Later, Occupancy, Op, OwnedStep, Step,
    StepAnswer, Store, StoreError, TrackedStore,
};

use crate::file::Identity;
use crate::flush::{self, Flush, FlushPace, WriterState, present};
use crate::health::{Health, HealthWatch};
use crate::opening::{self, DiskOptions, OpenError, Opened};
use crate::orders::Orders;

/// A store that decides in memory and is kept on disk; see the [crate](crate).
///
/// Takes 27 bytes per key of the capacity, 51 with full keys, and one thread. Clones are the same store. Dropping the
/// last clone closes it and ignores errors: call [`DiskStore::close`] to see them.
#[derive(Clone)]
pub struct DiskStore {
    inner: Arc<DiskState>,
}

struct DiskState {
    table: TrackedStore,
    shared: Arc<WriterState>,
    identity: Identity,
    opened: Opened,
    path: PathBuf,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DiskStore {
    /// Opens or creates the file of a folder and reads it: under a second of CPU time for a million keys. Blocks the
    /// calling thread.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and suggests a remedy. Nothing in the file is lost.
    pub fn open(options: DiskOptions) -> Result<Self, OpenError> {
        let ready = opening::open(&options, present)?;
        let path = ready.file.path.clone();
        let identity = ready.file.identity.clone();
        let shared = Arc::new(WriterState {
            orders: Orders::new(),
            watch: HealthWatch::new(options.on_change, present()),
            strict: 0.into(),
        });
        let pace = FlushPace {
            interval: options.interval,
            retry: options.retry,
            bytes_per_second: options.bytes_per_second,
        };
        let flush = Flush::new(options.folder, ready.file, ready.recorder);
        let writes = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tidegate-disk".to_owned())
            .spawn(move || flush::run_writer(flush, &writes, pace))
            .map_err(|source| OpenError::Thread { source })?;
        let thread = Mutex::new(Some(thread));
        let inner = DiskState { table: ready.table, shared, identity, opened: ready.opened, path, thread };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns what was found when the store was opened.
    #[must_use]
    pub fn opened(&self) -> Opened {
        self.inner.opened
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns whether changes get onto the disk, and statistics of the writes.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner.shared.watch.health(present())
    }

    /// Exports the table, as [`MemoryStore::export`](tidegate::store::MemoryStore::export) does.
    #[must_use]
    pub fn export(&self) -> Export<'_> {
        self.inner.table.export()
    }

    /// Writes a copy of the store into another folder that has none, while checks go on: a store may be opened on it
    /// once this one has ended. Each key is as it was at some moment of the call; two keys charged in one step may be
    /// from before and after it. Does not wait for the store's own writes. Takes the memory of a second table meanwhile,
    /// and blocks the calling thread.
    ///
    /// The copy is as secret as the file.
    ///
    /// # Errors
    /// [`OpenError`] about the copy; [`OpenError::InUse`] if the folder has a store already.
    pub fn copy_to(&self, folder: impl AsRef<Path>) -> Result<(), OpenError> {
        opening::copy(&self.inner.table, &self.inner.identity, folder.as_ref())
    }

    /// Writes all changes made before this call, and blocks the calling thread until they are on disk.
    ///
    /// # Errors
    /// [`CloseError`] if they could not be written. They are written as soon as that is possible again.
    pub fn flush(&self) -> Result<(), CloseError> {
        let orders = &self.inner.shared.orders;
        let number = orders.take();
        orders.wait(number).map_err(|reason| self.inner.unwritten(reason))
    }

    /// Writes all changes and closes the file, so that another process may open it. Blocks the calling thread. The
    /// store continues in memory, but later changes are not kept; strict steps fail.
    ///
    /// # Errors
    /// [`CloseError`] if the latest changes could not be written. Later calls return the same result.
    pub fn close(&self) -> Result<(), CloseError> {
        self.inner.close()
    }
}

/// Why a store was closed without all changes being on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store's file `{}` was closed without its latest changes: {reason}",
    path.display()
)]
pub struct CloseError {
    /// The file.
    pub path: PathBuf,
    /// Why the changes could not be written.
    pub reason: String,
}

impl DiskState {
    fn close(&self) -> Result<(), CloseError> {
        let closed = self.shared.orders.close();
        if let Some(thread) = self.thread.lock().take() {
            // On the writer thread, if `on_change` drops the last clone: it cannot join itself.
            if self.shared.orders.cannot_wait().is_none() {
                let _ = thread.join();
            }
        }
        closed.map_err(|reason| self.unwritten(reason))
    }

    fn unwritten(&self, reason: String) -> CloseError {
        CloseError { path: self.path.clone(), reason }
    }
}

impl Drop for DiskState {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl Store for DiskStore {
    #[inline]
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        if is_strict(step) { self.execute_strictly(step) } else { self.inner.table.execute_into(step, out) }
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        if !steps.iter().any(is_strict) {
            return self.inner.table.execute_each(steps, out);
        }
        out.clear();
        let (inner, steps) = (Arc::clone(&self.inner), steps.iter().map(OwnedStep::of).collect::<Vec<_>>());
        Some(Box::pin(async move { inner.execute_all(&steps).await }))
    }

    fn fetch(&self, keys: &[&[u8]]) {
        self.inner.table.fetch(keys);
    }

    fn occupancy(&self) -> Occupancy {
        self.inner.table.occupancy()
    }

    fn caps(&self) -> Caps {
        let mut caps = self.inner.table.caps();
        (caps.may_wait, caps.later_if_strict) = (true, true);
        caps
    }

    fn home(&self) -> Home {
        Home::Process { store: self.inner.identity.store }
    }
}

/// Returns whether a step waits for the disk: it may change something, and has a strict charge.
#[inline]
fn is_strict(step: &Step<'_>) -> bool {
    let strict = |charge: &Charge<'_>| charge.rules.durable == Durable::Strict;
    match step.op {
        Op::Take | Op::Draw => step.charges.iter().any(|charge| charge.binding && strict(charge)),
        Op::Finish(_) => step.charges.iter().any(strict),
        Op::Peek | Op::Reset | Op::Breaker(_) => false,
    }
}

struct UnderWay<'s>(&'s WriterState);

impl<'s> UnderWay<'s> {
    fn of(shared: &'s WriterState) -> Self {
        // Relaxed: the mark of the slot that is changed afterwards publishes it.
        shared.strict.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.strict.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DiskStore {
    #[cold]
    #[inline(never)]
    fn execute_strictly(&self, step: &Step<'_>) -> Execution {
        let (inner, step) = (Arc::clone(&self.inner), OwnedStep::of(step));
        Execution::Later(Box::pin(async move {
            let mut answers = inner.execute_all(std::slice::from_ref(&step)).await;
            answers.pop().unwrap_or_else(|| unreachable!("each step has an answer"))
        }))
    }
}

impl DiskState {
    /// Executes steps, and waits until their changes are on disk, with one write for all. Steps that are not strict are
    /// answered at the same time as the others.
    async fn execute_all(&self, steps: &[OwnedStep]) -> Vec<StepAnswer> {
        let (shared, mut answers) = (&*self.shared, Vec::with_capacity(steps.len()));
        let _under_way = UnderWay::of(shared);
        let gone = shared.watch.error().or_else(|| shared.orders.cannot_wait().map(str::to_owned));
        let mut awaited = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let strict = step.with(is_strict);
            let answer = match &gone {
                // The charge cannot be made durable at present.
                Some(reason) if strict => Err(unavailable(reason)),
                _ => step.with(|step| self.table.blocking_execute(step)),
            };
            // Losing a refusal would not let more through.
            if strict && answer.as_ref().is_ok_and(|executed| executed.allowed) {
                awaited.push(at);
            }
            answers.push(answer);
        }
        if awaited.is_empty() {
            return answers;
        }
        let mut ends = shared.orders.ends();
        let number = shared.orders.take();
        let result = loop {
            if let Some(result) = shared.orders.result_of(number) {
                break result;
            }
            // The sender lives as long as this store.
            let _ = ends.changed().await;
        };
        if let Err(reason) = result {
            awaited.into_iter().for_each(|at| answers[at] = Err(unavailable(&reason)));
        }
        answers
    }
}

fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable { reason: format!("the disk: {reason}") }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore").field("path", &self.inner.path).finish_non_exhaustive()
    }
}
