//! A node's cache of sparse images and layers, decompressed, on local disk: by content, under a budget of
//! *allocated* bytes. Synchronous, without a network, and without a word on what the files mean.
//!
//! # On disk
//! ```text
//! <cache>/  0700    .lock         held by the process that has the cache open
//!           <id>/   an entry: 64 hexadecimal digits
//!                   entry.json    format, id, files with their sizes
//!                   lock          shared flock: in use (Pinned::lease). Its mtime: the last use
//!                   memory.img …  up to 16 plain files, 0600, sparse
//!           .draft-N/             an entry that is being written; its lock is held
//!           .taken-N/             an entry that was taken for single use, on its way out
//!           .trash-N/             what is being unlinked
//! ```
//! Anything else there is somebody else's: left alone, logged, not counted. Symbolic links are never
//! followed. It has to be one local file system with `renameat2` and `flock`: ext4, XFS, Btrfs, tmpfs.
//!
//! # Steps, and what a crash after each leaves
//! | step | a crash leaves | [`Cache::open`] |
//! | --- | --- | --- |
//! | [`Cache::reserve`]: `.draft-N` made, locked, written | a draft | removes it, unless a process that was given its lease lives |
//! | [`Draft::publish`]: files synced, record written and synced, directory synced | a draft | removes it |
//! | `.draft-N` renamed to `<id>` | a draft or an entry, whole | removes or serves it |
//! | the cache's directory synced: `publish` returns | an entry | serves it |
//! | eviction: `<id>` renamed to `.trash-N` | an entry or trash, whole | serves or removes it |
//! | record unlinked, then the rest | trash; or, where the rename is lost, an entry that differs from its record | removes it |
//! | [`Cache::take`]: `<id>` renamed to `.taken-N`, directory synced: `take` returns | what nobody will use | removes it |
//! | [`Taken::move_to`]: renamed to the caller's place, both directories synced | `.taken-N`, or the caller's | removes it, or knows nothing of it |
//!
//! An entry whose files are not those of its record is removed and logged, never served. That is names,
//! kinds, sizes and, between uses, inodes and times of writing: contents are their user's to verify.
//!
//! # Room
//! What counts is `st_blocks` of files *and* directories, each inode once, however many names it has here.
//! Blocks that files share by reflink can't be told apart and count in each: the cache then occupies less
//! than it reckons, never more. What outside files share with an evicted entry is theirs from then on.
//! Reservations count like bytes that are there, so that entries and drafts together never exceed the high
//! mark, as long as no draft outgrows what it reserved.
//!
//! # Who keeps an entry
//! A [`Pinned`] in this process, or a lease: a descriptor with a shared flock that the user of a file (a
//! VMM that maps it) holds and that outlives this process. Both are honoured by eviction, [`Cache::take`]
//! and [`Cache::open`]. Nothing is ever truncated or punched: who has a file open or mapped keeps what it sees.
#![forbid(unsafe_code)]

mod cache;
mod disk;
mod draft;
mod fault;
mod id;
mod ledger;
mod open;
mod pinned;
pub mod policy;
mod record;
mod room;
mod share;
mod state;
mod stats;
mod taken;

#[cfg(test)]
mod tests;

pub use cache::{Cache, EntryInfo};
pub use draft::{Draft, PublishError};
pub use id::{ContentId, ContentIdError};
pub use open::OpenError;
pub use pinned::Pinned;
pub use policy::{Budget, BudgetError};
pub use record::EntryFile;
pub use room::{Evicted, Limit, NoRoom, ReserveError};
pub use share::{ShareError, Shared, Use};
pub use stats::{AGE_BOUNDS_SECONDS, Ages, Stats};
pub use taken::{TakeError, Taken};
