//! A memory file for a VM that is filled while the VM already has it mapped.
//!
//! QEMU maps its guest's memory from a file, shared and writable. [`LazyFile`] is that file, on a FUSE mount of its
//! own: what is read or written goes to the same place in a sparse backing file, once the windows it touches are
//! there. [`Windows`] says when; [`Fill`](rouse_transfer::Fill) is one. A guest resumes at once and waits only for
//! what it touches.
//!
//! # What the kernel does with it
//! - **Pages are cached by the FUSE file**, and a shared mapping's dirty pages come back as writes, at the latest with
//!   `msync`, `fsync` or the unmount. So who reads the backing file sees what was written only after one of these.
//!   FUSE's writeback cache is off: shared mappings do not need it, and it would have a `write` that is no whole page
//!   fetch the rest of the page.
//! - **A mapping keeps its cache** when the file is opened again: nothing changes the bytes but who has it open.
//! - **Read-ahead never waits for more than it must.** A fault reads the pages around it, which may lie in two windows.
//!   Unless both are there such a request is turned down; the kernel then asks for the one page that was touched,
//!   and only that page's window is waited for.
//! - **Bytes are cached twice** while they are also in the backing file's cache:
//!   [`LazyFile::drop_backing_cache`]. FUSE's passthrough would avoid it, but it is decided when a file is opened,
//!   and skips this crate altogether: it serves only a file that is whole, for which a plain one does.
//!
//! # When something ends
//! - **A window that can't be had** fails the read by EIO, and a fault in a mapping by SIGBUS; never zeros.
//! - **A process that waits for a window can't be killed** before the window is there, is given up, or
//!   [`LazyFile::unmount`] ends the connection.
//! - **When the process that serves it ends**, whoever has it mapped gets SIGBUS for each page that is not cached, and
//!   can't save what it wrote. So it is to outlive a restart of anything else: [`serve`] is all that a process of its
//!   own needs, and everything is handed over at its start. What a killed one leaves behind, [`clean`] takes away.
#![forbid(unsafe_code)]

mod backed;
mod error;
mod file;
mod fs;
mod known;
mod mount;
mod pool;

pub use error::{CleanError, MountError, ServeError, Unavailable, UnmountError};
pub use file::{LazyFile, Owner, serve};
pub use known::Windows;
pub use mount::{available, clean};
