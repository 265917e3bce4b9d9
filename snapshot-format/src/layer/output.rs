//! The image that is written.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::ioctl_ficlone;
use rustix::io::Errno as CloneErrno;

use crate::sparsify::punch;

/// Why an image could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the image {path:?} can't be written at offset {offset}: {source}")]
pub struct WriteImageError {
    /// The image; its name is not taken yet if it is a new one.
    pub path: PathBuf,
    /// Where, in bytes.
    pub offset: u64,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// What is about to be done to the files of a merge in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The journal gets its name.
    Journal,
    /// The map loses its.
    Unname,
    /// The image is cut or grown.
    Resize,
    /// Zeros from this offset on.
    Zero(u64),
    /// Pages from this offset on.
    Write(u64),
    /// The image is made durable.
    Sync,
    /// The new map gets its name.
    Map,
    /// The journal goes.
    Done,
}

/// Is told of each step before it is done, and may fail it: how tests end a merge anywhere.
pub(super) type Before<'a> = &'a (dyn Fn(Step) -> io::Result<()> + Sync);

/// An image being written, from several threads.
#[derive(Clone, Copy)]
pub(super) struct Output<'a> {
    pub(super) path: &'a Path,
    pub(super) file: &'a File,
    pub(super) before: Before<'a>,
}

impl Output<'_> {
    fn failed(&self, offset: u64) -> impl Fn(io::Error) -> WriteImageError {
        move |source| WriteImageError { path: self.path.to_owned(), offset, source }
    }

    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), WriteImageError> {
        (self.before)(Step::Write(offset))
            .and_then(|()| self.file.write_all_at(bytes, offset))
            .map_err(self.failed(offset))
    }

    /// Cuts the image to `kept` bytes and grows it to `mem_size`, so that what is behind `kept` is
    /// zeros.
    pub(super) fn resize(&self, kept: u64, mem_size: u64) -> Result<(), WriteImageError> {
        (self.before)(Step::Resize)
            .and_then(|()| self.file.metadata())
            // Not for nothing: a file that is cut to nothing is written back by ext4 when it is closed.
            .and_then(|there| if there.len() > kept { self.file.set_len(kept) } else { Ok(()) })
            .and_then(|()| self.file.set_len(mem_size))
            .map_err(self.failed(kept.min(mem_size)))
    }

    /// Makes zeros of `bytes`: a hole where the filesystem can have one.
    pub(super) fn zero(&self, bytes: Range<u64>) -> Result<(), WriteImageError> {
        (self.before)(Step::Zero(bytes.start))
            .and_then(|()| {
                if punch(self.file, bytes.clone())? { Ok(()) } else { blank(self.file, &bytes) }
            })
            .map_err(self.failed(bytes.start))
    }

    pub(super) fn sync(&self) -> Result<(), WriteImageError> {
        (self.before)(Step::Sync).and_then(|()| self.file.sync_all()).map_err(self.failed(0))
    }
}

/// Writes zeros over `bytes`.
fn blank(file: &File, bytes: &Range<u64>) -> io::Result<()> {
    // As much as is worth a system call.
    let zeros = vec![0; (bytes.end - bytes.start).min(1024 * 1024) as usize];
    let mut at = bytes.start;
    while at < bytes.end {
        let length = (bytes.end - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..length as usize], at)?;
        at += length;
    }
    Ok(())
}

/// How a file comes to share the blocks of another: so that tests can have it where no filesystem
/// does.
pub(super) type Reflink = fn(to: &File, from: &File) -> io::Result<bool>;

/// Makes `to`, an empty file, share the blocks of `from`. False where the filesystem can't, or the
/// two are not on the same.
pub(super) fn reflink(to: &File, from: &File) -> io::Result<bool> {
    match ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        // These are about room and hardware, and copying would meet them, too.
        Err(errno @ (CloneErrno::IO | CloneErrno::NOSPC | CloneErrno::DQUOT)) => Err(errno.into()),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_by_hole_and_by_hand() {
        for blanked in [false, true] {
            let file = tempfile::tempfile().unwrap();
            let mut wanted = vec![7; 3 << 20];
            file.write_all_at(&wanted, 0).unwrap();
            let bytes = 4095..(2 << 20) + 5;
            if blanked {
                blank(&file, &bytes).unwrap();
            } else {
                let path = Path::new("image");
                Output { path, file: &file, before: &|_| Ok(()) }.zero(bytes.clone()).unwrap();
            }
            wanted[bytes.start as usize..bytes.end as usize].fill(0);
            let mut found = vec![1; wanted.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == wanted);
        }
    }
}
