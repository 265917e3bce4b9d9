//! Errors about layers.

use rouse_snapshot_format::{
    ChainError, DiffError, JournalError, MergeError, MergeInPlaceError, ReadImageError,
    VmmDiffError, WithoutParent, WriteImageError,
};

use super::space;
use crate::failure::{Exit, Judged};

impl Judged for ChainError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoLayers => Exit::Usage,
            Self::TooDeep { .. }
            | Self::NotWhole { .. }
            | Self::NotALayer(_)
            | Self::WrongParent { .. } => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::WrongParent { .. } => Some("name the images from the bottom up, none left out"),
            _ => None,
        }
    }
}

impl Judged for ReadImageError {
    fn exit(&self) -> Exit {
        match self {
            Self::Io { .. } => Exit::Failed,
            Self::Checksum { .. } => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Io { .. } => None,
            Self::Checksum { .. } => Some("unpack it again"),
        }
    }
}

impl Judged for WriteImageError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn hint(&self) -> Option<&'static str> {
        space(&self.source)
    }
}

impl Judged for WithoutParent {
    fn exit(&self) -> Exit {
        Exit::BadInput
    }
}

impl Judged for DiffError {
    fn exit(&self) -> Exit {
        match self {
            Self::Chain(error) => error.exit(),
            Self::SameImage(_) => Exit::BadInput,
            Self::Read(error) => error.exit(),
            Self::Write(error) => error.exit(),
            Self::File(error) => error.exit(),
            Self::Map(error) => error.exit(),
            Self::OverInput(_) => Exit::Usage,
            Self::Cancelled(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Chain(error) => error.hint(),
            Self::Read(error) => error.hint(),
            Self::Write(error) => error.hint(),
            Self::File(error) => error.hint(),
            Self::Map(error) => error.hint(),
            _ => None,
        }
    }
}

impl Judged for MergeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Chain(error) => error.exit(),
            Self::Read(error) => error.exit(),
            Self::Write(error) => error.exit(),
            Self::File(error) => error.exit(),
            Self::Map(error) => error.exit(),
            Self::OverInput(_) => Exit::Usage,
            Self::Torn { .. } => Exit::BadInput,
            Self::WithoutParent(error) => error.exit(),
            Self::Cancelled(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Chain(error) => error.hint(),
            Self::Read(error) => error.hint(),
            Self::Write(error) => error.hint(),
            Self::File(error) => error.hint(),
            Self::Map(error) => error.hint(),
            _ => None,
        }
    }
}

impl Judged for MergeInPlaceError {
    fn exit(&self) -> Exit {
        match self {
            Self::Open(error) => error.exit(),
            Self::Merge(error) => error.exit(),
            Self::Journal { source: JournalError::Io(_), .. } => Exit::Failed,
            Self::Journal { source: JournalError::Map(error), .. } => error.exit(),
            Self::Journal { .. }
            | Self::OtherMerge { .. }
            | Self::ForeignJournal { .. }
            | Self::Size { .. } => Exit::BadInput,
            Self::Write(error) => error.exit(),
            Self::Remove { .. } => Exit::Failed,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open(error) => error.hint(),
            Self::Merge(error) => error.hint(),
            Self::Write(error) => error.hint(),
            _ => None,
        }
    }
}

impl Judged for VmmDiffError {
    fn exit(&self) -> Exit {
        match self {
            Self::Open(error) => error.exit(),
            Self::TooLarge { .. }
            | Self::TooManyWindows(_)
            | Self::SameImage(_)
            | Self::NoHoles(_)
            | Self::Unaligned { .. } => Exit::BadInput,
            Self::Read { .. } | Self::Probe { .. } => Exit::Failed,
            Self::Cancelled(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        if let Self::Open(error) = self { error.hint() } else { None }
    }
}
