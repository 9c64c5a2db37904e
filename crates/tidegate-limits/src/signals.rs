//! Signals of the machine for laws and switches: the processor time and memory in use, as a share of what this process
//! may use.
//!
//! A process in a container may use less than the machine has: half of its processors may be all that the container
//! gets. So use is measured against the least allowance that applies: the quota or limit of this process's control
//! group (version 1 or 2) or of any visible group around it, or else the machine's processors and memory. Memory that
//! the kernel can reclaim at once, such as cached files, does not count.
//!
//! [`Watch`] is a thread that reads four times a second for the whole process, and ends when no handle is left. Linux
//! only: elsewhere it returns [`Unavailable`].

mod meter;
mod parse;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use meter::Meter;
pub use meter::{Reading, Unavailable};
use parking_lot::Mutex;
use tidegate_core::concurrency::Signal;

use crate::clock::{Clock, SystemClock};

/// For fuzz targets: reads `text` as if it were each of the kernel's files.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn read_as_every_file(text: &str) {
    let text = text.to_owned();
    let everything = move |_: &str| Some(text.clone());
    if let Ok(mut meter) = Meter::of(everything) {
        for second in [0, 1, 1, 2, u64::MAX] {
            let _ = meter.sample(tidegate_core::Tick::from_secs(second));
        }
    }
}

/// The time between readings: several within the second over which processor time is averaged, at a cost of at most a
/// thousandth of a processor.
const EVERY: Duration = Duration::from_millis(250);

type Listener = Box<dyn Fn(Signal) -> bool + Send>;

/// Takes a reading of the machine four times a second, in a thread that all watches of the process share. The thread
/// starts with the first watch and ends when the last one is dropped.
///
/// # Examples
/// ```
/// use tidegate::concurrency::signals::Watch;
///
/// if let Ok(watch) = Watch::start() {
///     let reading = watch.reading();
///     assert!(reading.cpu.is_none_or(|used| used <= 1000));
/// }
/// ```
#[derive(Clone)]
pub struct Watch(Arc<SharedWatch>);

struct SharedWatch {
    reading: Mutex<Reading>,
    listeners: Mutex<Vec<Listener>>,
    thread: OnceLock<Thread>,
}

static RUNNING: Mutex<Weak<SharedWatch>> = Mutex::new(Weak::new());

impl Watch {
    /// Returns the watch of this process, and starts it if there is none. The first reading is taken at once;
    /// processor time is known from the second reading on.
    ///
    /// # Errors
    /// [`Unavailable`] if the system provides no readings, or no thread can be started.
    pub fn start() -> Result<Self, Unavailable> {
        let mut current = RUNNING.lock();
        if let Some(running) = current.upgrade() {
            return Ok(Self(running));
        }
        let mut meter = Meter::new()?;
        let clock = SystemClock::new();
        let reading = Mutex::new(meter.sample(clock.now()));
        let running =
            Arc::new(SharedWatch { reading, listeners: Mutex::new(Vec::new()), thread: OnceLock::new() });
        let weak = Arc::downgrade(&running);
        let named = thread::Builder::new().name("tidegate-signals".to_owned());
        let worker = named.spawn(move || keep_reading(&weak, &mut meter, &clock)).map_err(|_| Unavailable)?;
        let _ = running.thread.set(worker.thread().clone());
        *current = Arc::downgrade(&running);
        Ok(Self(running))
    }

    /// Returns the last reading. It is at most a quarter of a second old unless the thread is scheduled late.
    #[must_use]
    pub fn reading(&self) -> Reading {
        *self.0.reading.lock()
    }

    /// Calls `listener` with every signal from the next reading on, in the watch's thread, until it returns `false`
    /// or panics. It should return quickly, because all listeners share that thread.
    pub fn subscribe(&self, listener: impl Fn(Signal) -> bool + Send + 'static) {
        self.0.listeners.lock().push(Box::new(listener));
    }
}

impl SharedWatch {
    fn publish(&self, reading: Reading) {
        *self.reading.lock() = reading;
        // Taken out of the lock, so that a listener may add another.
        let mut listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.retain(|listener| {
            #[allow(clippy::redundant_closure, reason = "the closure suggested does not compile")]
            let told = || reading.signals().all(|signal| listener(signal));
            catch_unwind(AssertUnwindSafe(told)).unwrap_or(false)
        });
        let mut kept = self.listeners.lock();
        listeners.append(&mut kept);
        *kept = listeners;
    }
}

impl Drop for SharedWatch {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

fn keep_reading(running: &Weak<SharedWatch>, meter: &mut Meter, clock: &SystemClock) {
    loop {
        thread::park_timeout(EVERY);
        let Some(running) = running.upgrade() else { return };
        let reading = meter.sample(clock.now());
        running.publish(reading);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.reading()).finish()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn one_thread_tells_all_and_ends_with_the_last_watch() {
        let watch = Watch::start().unwrap();
        assert!(Arc::ptr_eq(&watch.0, &Watch::start().unwrap().0), "shared");
        let (sender, receiver) = sync_channel(100);
        watch.subscribe(|_| panic!("a listener that panics"));
        watch.subscribe(move |signal| sender.try_send(signal).is_ok());
        let heard: Vec<Signal> =
            (0..4).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert!(heard.iter().any(|signal| matches!(signal, Signal::CpuAveraged(_))), "{heard:?}");
        assert!(watch.reading().memory.is_some());
        drop(watch);
        // The watch drops its listeners, and the listener drops its channel.
        while receiver.recv_timeout(Duration::from_secs(60)).is_ok() {}
        assert!(RUNNING.lock().upgrade().is_none());
    }
}
