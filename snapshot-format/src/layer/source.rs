//! The DATA pages of one image of a chain, checked before anybody uses them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::image::Image;
use crate::map::Map;
use crate::packed;
use crate::units::{PAGE, PageStates};

/// An image that pages are taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) file: &'a File,
    pub(super) map: &'a Map,
}

/// Why an image's pages can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ReadImageError {
    /// The file could not be read.
    #[error("the image {path:?} can't be read at offset {offset}: {source}")]
    Io {
        /// The image.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// It is damaged.
    #[error(
        "the image {path:?} is damaged: window {window} (offset {offset}) does not have the \
         checksum in its map"
    )]
    Checksum {
        /// The image.
        path: PathBuf,
        /// Which of its windows.
        window: u64,
        /// Where that starts, in bytes.
        offset: u64,
    },
}

impl<'a> From<&'a Image> for Source<'a> {
    fn from(image: &'a Image) -> Self {
        Self { path: image.path(), file: image.file(), map: image.map() }
    }
}

impl<'a> Source<'a> {
    pub(super) fn states(&self) -> &'a PageStates {
        self.map.states()
    }

    /// Reads the DATA pages among `pages` behind one another into `packed`. `pages` are whole
    /// windows of the image, which are checked as far as the map has their checksums.
    pub(super) fn load(
        &self,
        pages: Range<u64>,
        packed: &mut Vec<u8>,
    ) -> Result<(), ReadImageError> {
        packed::gather(self.file, self.states(), pages.clone(), packed).map_err(
            |(offset, source)| ReadImageError::Io { path: self.path.to_owned(), offset, source },
        )?;
        let window_size = self.map.window_size();
        let first = pages.start / window_size.pages();
        let behind = pages.end.min(self.map.pages()).div_ceil(window_size.pages());
        let mut rest = packed.as_slice();
        for window in first..behind {
            let length = packed::length(self.states(), self.map.pages_of(window));
            let (bytes, others) = rest.split_at(length);
            rest = others;
            let wanted = self.map.checksum(window);
            if wanted.is_some_and(|wanted| packed::checksum(bytes) != wanted) {
                let offset = window * window_size.bytes();
                return Err(ReadImageError::Checksum {
                    path: self.path.to_owned(),
                    window,
                    offset,
                });
            }
        }
        Ok(())
    }

    /// Where in what was loaded from page `loaded` on the bytes of `pages` are, all of which are
    /// DATA.
    pub(super) fn place(&self, loaded: u64, pages: &Range<u64>) -> Range<usize> {
        let before = self.states().data_in(loaded..pages.start) * PAGE;
        let bytes = packed::bytes_of(pages, self.map.mem_size());
        before as usize..(before + bytes.end - bytes.start) as usize
    }
}

/// The least number of pages that are whole windows of all `maps` and whole words of a bitmap.
pub(super) fn unit<'a>(maps: impl Iterator<Item = &'a Map>) -> u64 {
    // Powers of two, so that the largest is a multiple of the others.
    maps.map(|map| map.window_size().pages()).max().unwrap_or(0).max(64)
}
