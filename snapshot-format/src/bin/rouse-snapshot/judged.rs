//! What the library's errors mean to whoever runs the program.

mod archive;
mod layer;

use std::io;

use rouse_snapshot_format::{
    Cancelled, OpenImageError, OpenMapError, SparsifyError, TooManyWindows, WriteFileError,
    WriteMapError,
};

use crate::failure::{Exit, Judged};

impl Judged for Cancelled {
    fn exit(&self) -> Exit {
        Exit::Cancelled
    }
}

impl Judged for OpenMapError {
    fn exit(&self) -> Exit {
        if matches!(self, Self::Io(_)) { Exit::Failed } else { Exit::BadInput }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Io(_) | Self::NotAMap => None,
            Self::UnknownMajor { .. } | Self::UnknownFeatures { .. } | Self::PageSize(_) => {
                Some("read it with the program that wrote it")
            }
            _ => Some(
                "fetch it again, or make a new one of a whole image with `sparsify --force`, which \
                 gives the image a new id",
            ),
        }
    }
}

impl Judged for OpenImageError {
    fn exit(&self) -> Exit {
        match self {
            Self::Open { .. } => Exit::Failed,
            Self::InUse(_) => Exit::InUse,
            Self::Map { source, .. } => source.exit(),
            Self::NotAFile(_) | Self::Size { .. } => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open { .. } | Self::NotAFile(_) => None,
            Self::InUse(_) => Some("a VM has it or it is being changed, so try again later"),
            Self::Map { source: OpenMapError::Io(e), .. } => (e.kind() == io::ErrorKind::NotFound)
                .then_some("`sparsify` makes one of a whole image"),
            Self::Map { source, .. } => source.hint(),
            Self::Size { .. } => Some("one of the two is not of this image: fetch both again"),
        }
    }
}

impl Judged for TooManyWindows {
    fn exit(&self) -> Exit {
        Exit::BadInput
    }
}

impl Judged for WriteFileError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoName(_) => Exit::Usage,
            Self::Exists(_) => Exit::CantCreate,
            Self::Io { source, .. } => creating(source),
            Self::NotDurable { .. } => Exit::Failed,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Io { source, .. } => space(source),
            Self::Exists(_) => Some("--force replaces it"),
            Self::NoName(_) | Self::NotDurable { .. } => None,
        }
    }
}

impl Judged for WriteMapError {
    fn exit(&self) -> Exit {
        match self {
            Self::TooLarge { .. } | Self::TooManyWindows(_) | Self::ReadOnly { .. } => {
                Exit::BadInput
            }
            Self::File(error) => error.exit(),
            Self::Io(source) => creating(source),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::File(error) => error.hint(),
            Self::Io(source) => space(source),
            _ => None,
        }
    }
}

impl Judged for SparsifyError {
    fn exit(&self) -> Exit {
        match self {
            Self::Open(error) => error.exit(),
            Self::TooLarge { .. } | Self::TooManyWindows(_) => Exit::BadInput,
            Self::Read { .. } | Self::Punch { .. } | Self::Sync { .. } | Self::Write { .. } => {
                Exit::Failed
            }
            Self::OntoItself(_) => Exit::Usage,
            Self::File(error) => error.exit(),
            Self::Cancelled(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open(error) => error.hint(),
            Self::File(error) => error.hint(),
            Self::Write { source, .. } => space(source),
            Self::Cancelled(error) => error.hint(),
            _ => None,
        }
    }
}

/// What it means that a file could not be made: the place is no good, or the system has no room.
pub(crate) fn creating(error: &io::Error) -> Exit {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound
        | Kind::PermissionDenied
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::ReadOnlyFilesystem
        | Kind::AlreadyExists
        | Kind::InvalidFilename => Exit::CantCreate,
        _ => Exit::Failed,
    }
}

/// What to do when there is no room.
pub(crate) fn space(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => {
            Some("make room there, or write to another filesystem")
        }
        Kind::FileTooLarge => Some("this filesystem takes no file of that size: write to another"),
        _ => None,
    }
}
