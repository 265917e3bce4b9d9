//! Where what stands in a map file; `FORMAT.md` in code. All numbers are little-endian.

/// The first eight bytes.
pub(super) const MAGIC: [u8; 8] = *b"ROUSEMAP";
/// A reader refuses any other.
pub(super) const MAJOR: u16 = 1;
/// What the writer knows; a reader takes any.
pub(super) const MINOR: u16 = 0;

/// Feature bits without which a file can't be read rightly, and that we know: none so far.
pub(super) const KNOWN_INCOMPAT: u64 = 0;
/// Feature bits without which a file can't be rewritten rightly, and that we know: none so far.
pub(super) const KNOWN_RO_COMPAT: u64 = 0;

/// The header's fields, without sections and checksum.
pub(super) const FIXED: usize = 112;
/// One line of the section table.
pub(super) const ENTRY: usize = 32;
/// The header's checksum at its end.
pub(super) const CRC: usize = 4;
/// The most sections a file may have. We write at most four; the table stays under a page.
pub(super) const MAX_SECTIONS: u16 = 64;
/// The longest header, in bytes: the longest section table and as much again for fields of later
/// minor versions.
pub(super) const MAX_HEADER: u32 = 4096;
/// Sections start at multiples of this, so that they can be mapped and read as words.
pub(super) const ALIGN: usize = 64;

/// Where in the header a field starts.
pub(super) mod at {
    pub(in crate::map) const MAJOR: usize = 8;
    pub(in crate::map) const MINOR: usize = 10;
    pub(in crate::map) const HEADER_LEN: usize = 12;
    pub(in crate::map) const INCOMPAT: usize = 16;
    pub(in crate::map) const RO_COMPAT: usize = 24;
    pub(in crate::map) const COMPAT: usize = 32;
    pub(in crate::map) const PAGE_SHIFT: usize = 40;
    pub(in crate::map) const WINDOW_SHIFT: usize = 41;
    pub(in crate::map) const SECTIONS: usize = 42;
    pub(in crate::map) const MEM_SIZE: usize = 48;
    pub(in crate::map) const IMAGE_ID: usize = 56;
    pub(in crate::map) const PARENT_ID: usize = 72;
    pub(in crate::map) const DATA_PAGES: usize = 88;
    pub(in crate::map) const ZERO_PAGES: usize = 96;
    pub(in crate::map) const PARENT_PAGES: usize = 104;
}

/// Where in a line of the section table a field starts.
pub(super) mod entry {
    pub(in crate::map) const KIND: usize = 0;
    pub(in crate::map) const CRC: usize = 4;
    pub(in crate::map) const OFFSET: usize = 8;
    pub(in crate::map) const LENGTH: usize = 16;
}

/// The sections that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Section {
    /// A bitmap: the pages that are DATA.
    Data = 1,
    /// A bitmap: the pages that are ZERO.
    Zero = 2,
    /// A word per window: the checksum of its DATA pages.
    Checksums = 3,
    /// The working set.
    WorkingSet = 4,
}

impl Section {
    pub(super) const ALL: [Self; 4] = [Self::Data, Self::Zero, Self::Checksums, Self::WorkingSet];

    pub(super) fn from_kind(kind: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|section| *section as u32 == kind)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Data => "DATA",
            Self::Zero => "ZERO",
            Self::Checksums => "CHECKSUMS",
            Self::WorkingSet => "WORKING SET",
        }
    }
}
