//! A store whose counters survive restarts and crashes: it decides in memory and persists to one file.
//!
//! [`DiskStore`] decides in the table of [`MemoryStore`](tidegate::store::MemoryStore), at its speed. A thread writes
//! the changes to a file, once per [interval](DiskOptions::interval). After a crash, only what was granted in the last
//! interval may be granted again. A [strict](tidegate::store::Durable) policy loses nothing: its answers wait for the
//! disk, many sharing one write.
//!
//! # What is in the file
//! [`redb`] manages it, crash-safe: each write is there completely or not at all. It holds a journal of the slots that
//! have changed ([`Recorder`](tidegate::store::Recorder)) and, interleaved, the table itself part by part. Once the
//! whole table has been written, older pieces are deleted. So the pieces stay below four times the size of the table's
//! live keys (about 36 bytes each under most limits), and the file below twice that; about twice the size of the
//! changes is written.
//!
//! It also holds the [`Seed`](tidegate::store::Seed) under which keys are hashed, a secret: only the file's owner may
//! read it. Keys are stored as fingerprints, or with [full keys](DiskOptions::full_keys) up to 15 bytes as they are.
//!
//! # When the disk is full, or gone
//! Checks continue in memory, and once there is room again, all changes are written. [`DiskOptions::on_change`] is
//! called at the beginning and the end, and [`DiskStore::health`] reports it. In between, strict steps fail with
//! [`StoreError::Unavailable`](tidegate::store::StoreError::Unavailable).
//!
//! # Places and breakers
//! They are kept like all other states. A place held by a process that has died becomes free when its time to live
//! ends.
//!
//! # Examples
//! ```
//! use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
//! use tidegate::{Gate, Quota};
//! use tidegate_disk::{DiskOptions, DiskStore};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let open = || -> Result<(DiskStore, Gate), Box<dyn std::error::Error>> {
//!     let store = DiskStore::open(DiskOptions::new(folder))?;
//!     let daily = Policy::new("daily", Limit::new(Quota::per_day(1).gcra()?, "1/day"));
//!     Ok((store.clone(), Gate::new(PolicySet::new(vec![daily])?, store)))
//! };
//! let (store, gate) = open()?;
//! assert!(gate.check(&Descriptor::new()).now()?.allowed);
//! store.close()?;
//!
//! let (store, gate) = open()?;
//! assert!(!gate.check(&Descriptor::new()).now()?.allowed, "spent is spent");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod flush;
mod health;
mod opening;
mod orders;
mod store;

pub use health::{Change, Health};
pub use opening::{DiskOptions, OpenError, Opened};
pub use store::{CloseError, DiskStore};
