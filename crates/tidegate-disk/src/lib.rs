//! A store whose counters survive restarts and crashes: decided in memory, kept in one file.
//!
//! [`DiskStore`] decides in the table of [`MemoryStore`](tidegate::store::MemoryStore), at its speed. A thread writes what has changed to a
//! file, once in an [interval](DiskOptions::interval): the file is no part of a check. After a crash, what was granted in the last
//! interval may be granted again, and nothing more. A policy that is [strict](tidegate::store::Durable) loses nothing: its answers wait
//! for the disk, many together.
//!
//! # What is in the file
//! [`redb`] keeps it, crash-safe: of each write all or nothing is there. It holds pieces of bytes, as
//! [`Recorder`](tidegate::store::Recorder) hands them out: a journal of the slots that have changed, and, in between, the table itself part
//! by part. When the whole table was written so, what is older goes. So the pieces stay below four times the size of the table's live
//! keys, about 36 bytes for a key under a limit that fits a word, and the file below twice that; about twice what has changed is written.
//!
//! It also holds the [`Seed`](tidegate::store::Seed) under which keys are hashed, a secret: it is made readable by its owner alone. Keys are in
//! it as fingerprints, never as callers sent them; unless [keys are kept in full](DiskOptions::full_keys): then those of up to 15 bytes are.
//!
//! # When the disk is full, or gone
//! Checks go on in memory. Nothing is forgotten meanwhile: once there is room again, all that has changed is written. It is told once when
//! that begins and once when it ends ([`DiskOptions::on_change`]), and [`DiskStore::health`] tells it at any time. Strict steps fail with
//! [`StoreError::Unavailable`](tidegate::store::StoreError::Unavailable) meanwhile.
//!
//! # Places and breakers
//! They are kept like all other states. A place held by a process that has died is free when its time to live is over, as one whose holder
//! never came back.
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
//! assert!(gate.check(&Descriptor::new())?.allowed);
//! store.close()?;
//!
//! let (store, gate) = open()?;
//! assert!(!gate.check(&Descriptor::new())?.allowed, "spent is spent");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod file;
mod flush;
mod health;
mod identity;
mod opening;
mod options;
mod orders;
mod store;
mod system_file;
mod writer;

pub use error::{CloseError, OpenError};
pub use health::{Change, Health};
pub use opening::Opened;
pub use options::DiskOptions;
pub use store::DiskStore;
