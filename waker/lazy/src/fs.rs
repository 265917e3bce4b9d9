//! What is answered to the kernel.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags, fstatvfs};

use crate::backed::{Backed, failed};
use crate::file::Owner;
use crate::pool::Pool;

const FILE: INodeNo = INodeNo(2);
/// How long the kernel need not ask again for what never changes.
const LONG: Duration = Duration::from_secs(3600);
/// The most bytes of one write, and so of what a write that waits holds.
const MOST_WRITTEN: u32 = 128 << 10;
/// How many requests may be under way that no thread waits for: read-ahead and write-back. More than wait at once
/// for windows, as what is behind them would wait too.
const BACKGROUND: u16 = 512;

/// Whether a request may be for the one folio that is touched: these are aligned to their size, a power of two.
fn may_be_a_folio(bytes: &Range<u64>) -> bool {
    let length = bytes.end - bytes.start;
    length.is_power_of_two() && bytes.start.is_multiple_of(length)
}

/// One directory with one file.
pub(crate) struct Served {
    pub(crate) backed: Arc<Backed>,
    pub(crate) name: OsString,
    pub(crate) owner: Owner,
    pub(crate) pool: Pool,
    pub(crate) since: SystemTime,
}

impl Served {
    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (size, blocks, kind, perm, nlink) = match ino {
            FILE => {
                let blocks = self.backed.file.metadata().map_or(0, |metadata| metadata.blocks());
                (self.backed.size, blocks, FileType::RegularFile, 0o600, 1)
            }
            INodeNo::ROOT => (0, 0, FileType::Directory, 0o500, 2),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: self.owner.uid,
            gid: self.owner.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn attr(&self, ino: INodeNo, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attr) => reply.attr(&LONG, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }
}

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Half a window, so that most of what is read ahead lies in the window that is touched.
        let ahead = (self.backed.known.window_bytes() / 2).min(128 << 10) as u32;
        // What the kernel does not offer, it says, and that is taken.
        if let Err(most) = config.set_max_readahead(ahead) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_write(MOST_WRITTEN);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.pool.close();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(attr) if parent == INodeNo::ROOT && name == self.name => {
                reply.entry(&LONG, &attr, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attr(ino, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resized = size.is_some_and(|size| ino != FILE || size != self.backed.size);
        if resized || mode.is_some() || uid.is_some() || gid.is_some() {
            reply.error(Errno::EPERM);
        } else {
            self.attr(ino, reply);
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if ino == FILE {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        } else {
            reply.error(Errno::EPERM);
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(bytes) = self.backed.bytes(offset, size.into()) else { return reply.data(&[]) };
        if self.backed.known.covers(&bytes) {
            return self.backed.answer(&bytes, reply);
        }
        let direct = flags.0 & OFlags::DIRECT.bits() as i32 != 0;
        if !direct && self.backed.known.crosses(&bytes) && !may_be_a_folio(&bytes) {
            // Read-ahead. The kernel asks again for the page that somebody waits for.
            return reply.error(Errno::EAGAIN);
        }
        let backed = Arc::clone(&self.backed);
        self.pool.run(move || match backed.known.wait(&bytes) {
            Ok(()) => backed.answer(&bytes, reply),
            Err(_) => reply.error(Errno::EIO),
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = self.backed.bytes(offset, data.len() as u64);
        let Some(bytes) = bytes.filter(|bytes| bytes.end - bytes.start == data.len() as u64) else {
            return reply.error(Errno::EFBIG);
        };
        if self.backed.known.covers(&bytes) {
            return self.backed.put(offset, data, reply);
        }
        let (backed, data) = (Arc::clone(&self.backed), data.to_vec());
        self.pool.run(move || match backed.known.wait(&bytes) {
            Ok(()) => backed.put(offset, &data, reply),
            Err(_) => reply.error(Errno::EIO),
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        let backed = Arc::clone(&self.backed);
        self.pool.run(move || {
            let synced = if data { backed.file.sync_data() } else { backed.file.sync_all() };
            match synced {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(failed("synced", &error)),
            }
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if mode != punch.bits() as i32 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let Some(bytes) = self.backed.bytes(offset, length) else { return reply.ok() };
        let backed = Arc::clone(&self.backed);
        // A window that is not there would be filled with its old bytes later.
        self.pool.run(move || match backed.punch(&bytes) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }

    /// Left to the kernel, for which all is data: holes of the backing file are windows to come, or pages
    /// that are written and not yet back from the kernel.
    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let all = [
            (INodeNo::ROOT, FileType::Directory, OsStr::new(".")),
            (INodeNo::ROOT, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, &self.name),
        ];
        for (next, (ino, kind, name)) in (1_u64..).zip(all).skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match fstatvfs(&self.backed.file) {
            Ok(of) => reply.statfs(
                of.f_blocks,
                of.f_bfree,
                of.f_bavail,
                1,
                0,
                of.f_bsize as u32,
                255,
                of.f_frsize as u32,
            ),
            Err(error) => reply.error(Errno::from_i32(error.raw_os_error())),
        }
    }

    /// There are none; the kernel does not ask again.
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
