//! A store whose counters survive restarts and crashes: it decides in memory and persists to one file.
//!
//! [`DiskStore`] decides in the table of [`MemoryStore`](tidegate::store::MemoryStore), at its speed. A thread writes
//! the changes to a file, once per [interval](DiskOptions::interval); checks do not touch the file. After a crash, only
//! what was granted in the last interval may be granted again. A [strict](tidegate::store::Durable) policy loses
//! nothing: its answers wait for the disk, many of them sharing one write.
//!
//! # What is in the file
//! [`redb`] manages it, crash-safe: each write is there completely or not at all. It holds pieces of bytes from
//! [`Recorder`](tidegate::store::Recorder): a journal of the slots that have changed, and, interleaved with it, the
//! table itself part by part. Once the whole table has been written, older pieces are deleted. So the pieces stay below
//! four times the size of the table's live keys (about 36 bytes per key under a limit that fits a word), and the file
//! below twice that; about twice the size of the changes is written.
//!
//! It also holds the [`Seed`](tidegate::store::Seed) under which keys are hashed. The seed is a secret, so only the
//! file's owner may read it. Keys are stored as fingerprints, not as callers sent them. With [full
//! keys](DiskOptions::full_keys), keys of up to 15 bytes are stored as they are.
//!
//! # When the disk is full, or gone
//! Checks continue in memory. Nothing is lost: once there is room again, all changes are written.
//! [`DiskOptions::on_change`] is called once when this begins and once when it ends, and [`DiskStore::health`] reports
//! it at any time. In between, strict steps fail with
//! [`StoreError::Unavailable`](tidegate::store::StoreError::Unavailable).
//!
//! # Places and breakers
//! They are kept like all other states. A place held by a process that has died becomes free when its time to live
//! ends, as if its holder never came back.
//!
//! # Examples
//! ```
//! use tidegate::policy::Limit;
//! use tidegate::{Descriptor, Gate, Policy, PolicySet, Quota};
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

mod error;
mod file;
mod flush;
mod health;
mod opening;
mod options;
mod orders;
mod store;

pub use error::{CloseError, OpenError};
pub use health::{Change, Health};
pub use opening::Opened;
pub use options::DiskOptions;
pub use store::DiskStore;
