//! Room on disk for a guest's memory: for all of it while a VM may write there, and only for what holds
//! data once the app sleeps.
//!
//! The memory file is sparse and mapped shared, and whoever writes to a page for which the file system
//! finds no block is killed (SIGBUS; mmap(2)). So all its blocks are reserved before a vCPU runs:
//! fallocate(2) in its default mode allocates them and writes nothing. Nothing is given back as long as
//! the VM may go on. When it is gone and its image published, what the map says are zeros is punched out.
//!
//! A file system that copies on write (Btrfs; XFS, where an image shares its blocks with a copy to go
//! back to) needs a block for a page that has one, so the reservation covers only what had none.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rouse_snapshot_format::{Map, PAGE, PageState};
use rustix::fs::{FallocateFlags, fallocate, fstatfs};
use rustix::io::Errno;

use super::manifest::Manifest;
use super::{AppDir, ImageRefusal, LIVE, Live, MEMORY, generation_name};
use crate::fault;

/// What is reserved or punched at once, in bytes: milliseconds of work, for which a wake may have to wait.
const PIECE: u64 = 16 << 20;
/// An image is not trimmed for less, in bytes: extents and their tree take blocks too.
const SLACK: u64 = 1 << 20;
/// `f_type` of tmpfs: statfs(2). There a block is RAM.
const TMPFS: i64 = 0x0102_1994;

/// How a trim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trimmed {
    /// So many bytes of zeros have no block any more.
    Done(u64),
    /// There is no image, or it occupies no more than it has to.
    Nothing,
    /// Somebody needs the image.
    Cut,
}

/// Why an image could not be trimmed. It is as good as before.
#[derive(Debug, thiserror::Error)]
pub enum TrimError {
    /// It does not belong together.
    #[error(transparent)]
    Image(#[from] ImageRefusal),
    /// It can't be opened or punched.
    #[error(transparent)]
    File(#[from] io::Error),
}

/// Whose turn it is with the newest image: a trim's, a piece at a time, or whoever moves it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// How many want to move the image, or do.
    pub(super) wanted: AtomicUsize,
    taken: Mutex<()>,
}

/// A turn, for as long as it lives.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    _guard: MutexGuard<'a, ()>,
}

impl Turns {
    /// Waits for the end of the piece that a trim is at; the trim ends with it.
    pub(super) fn take(&self) -> Turn<'_> {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let guard = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        Turn { turns: self, _guard: guard }
    }

    /// No trim gets a turn any more.
    fn close(&self) {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        drop(self.taken.lock());
    }

    /// A turn that nobody else wants.
    fn spare(&self) -> Option<MutexGuard<'_, ()>> {
        if self.wanted.load(Ordering::SeqCst) > 0 {
            return None;
        }
        match self.taken.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Live {
    /// Reserves a block for each page of the memory file. Where the file system can't, nothing happens.
    pub fn reserve(&self) -> io::Result<()> {
        reserve(&self.memory())
    }
}

/// [`Live::reserve`] by path.
pub fn reserve(memory: &Path) -> io::Result<()> {
    fault::hit("reserve")?;
    let file = OpenOptions::new().write(true).open(memory)?;
    if fstatfs(&file)?.f_type == TMPFS {
        return Ok(());
    }
    for piece in pieces(0..file.metadata()?.len()) {
        loop {
            let length = piece.end - piece.start;
            match fallocate(&file, FallocateFlags::empty(), piece.start, length) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

impl AppDir {
    /// Gives back the blocks of the newest image that hold nothing, piece by piece, until somebody needs
    /// it. Blocks; call it again after a [`Trimmed::Cut`] when the app sleeps again.
    pub fn trim(&self) -> Result<Trimmed, TrimError> {
        let Some(turn) = self.turns.spare() else { return Ok(Trimmed::Cut) };
        let Some(generation) = self.current()? else { return Ok(Trimmed::Nothing) };
        let from = self.path.join(generation_name(generation));
        let manifest = Manifest::read(&from)?;
        if manifest.layer.is_some() {
            // Its VMM maps privately: nothing was reserved.
            return Ok(Trimmed::Nothing);
        }
        let (map, memory) = (manifest.names(&from)?, from.join(MEMORY));
        let file = OpenOptions::new().write(true).open(&memory)?;
        let found = file.metadata()?;
        if !wasteful(&found, &map) {
            return Ok(Trimmed::Nothing);
        }
        drop(turn);
        let mut bytes = 0;
        for piece in zeros(&map) {
            let Some(_turn) = self.turns.spare() else { return Ok(Trimmed::Cut) };
            // What was moved while nobody had a turn is somebody else's.
            if fs::metadata(&memory).map_or(true, |now| now.ino() != found.ino()) {
                return Ok(Trimmed::Cut);
            }
            fault::hit("trim")?;
            if !punch(&file, &piece)? {
                break;
            }
            bytes += piece.end - piece.start;
        }
        Ok(Trimmed::Done(bytes))
    }

    /// Gives back what the image in `from` does not need, at once, by whoever has the turn.
    pub(super) fn trim_now(&self, from: &Path) -> io::Result<()> {
        let map = Map::open(from.join(super::MAP)).map_err(io::Error::other)?;
        let file = OpenOptions::new().write(true).open(from.join(MEMORY))?;
        if wasteful(&file.metadata()?, &map) {
            for piece in zeros(&map) {
                if !punch(&file, &piece)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Ends a trim that runs, and has none begin any more.
    pub fn stop_trims(&self) {
        self.turns.close();
    }

    /// Gives back what was reserved for a life that never began, in the place where it stands. Its VM is
    /// gone.
    pub fn trim_unused(&self) -> io::Result<()> {
        let live = self.path.join(LIVE);
        if live.join(super::MAP).try_exists()? { self.trim_now(&live) } else { Ok(()) }
    }
}

fn wasteful(file: &fs::Metadata, map: &Map) -> bool {
    file.blocks() * 512 > map.counts().data * PAGE + SLACK
}

/// What of an image holds nothing, in bytes of it.
fn zeros(map: &Map) -> impl Iterator<Item = Range<u64>> + '_ {
    let runs = map.runs().filter(|run| run.state == PageState::Zero);
    runs.flat_map(|run| pieces(run.pages.start * PAGE..run.pages.end * PAGE))
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    (start..end).step_by(PIECE as usize).map(move |at| at..end.min(at + PIECE))
}

/// False where the file system does not know how to.
fn punch(file: &File, hole: &Range<u64>) -> io::Result<bool> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(file, how, hole.start, hole.end - hole.start) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}
