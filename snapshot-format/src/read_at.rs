//! Bytes that can be read anywhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Where an archive or a map is read from: a file, memory, or by ranges over a network. Several
/// threads read at once.
pub trait ReadAt: Sync {
    /// How many bytes there are.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buffer` with the bytes from `offset` on; [`io::ErrorKind::UnexpectedEof`] where they
    /// end too early.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// How many bytes are best read at once, where many lie side by side. A system call costs little
    /// beside the copy from 1 MiB on; a request over a network needs more.
    fn preferred_read(&self) -> usize {
        1024 * 1024
    }
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|meta| meta.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let part =
            usize::try_from(offset).ok().and_then(|from| self.get(from..)?.get(..buffer.len()));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> io::Result<u64> {
        self.as_slice().size()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.as_slice().read_exact_at(buffer, offset)
    }
}

impl<R: ReadAt + ?Sized> ReadAt for &R {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buffer, offset)
    }

    fn preferred_read(&self) -> usize {
        (**self).preferred_read()
    }
}
