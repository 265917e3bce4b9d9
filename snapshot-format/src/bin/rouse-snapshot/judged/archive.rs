//! Errors about archives.

use rouse_snapshot_format::{
    CheckHeaderError, DecodeFrameError, OpenArchiveError, PackError, UnpackError,
    VerifyArchiveError, VerifyImageError, ZeroError, ZstdError,
};

use super::space;
use crate::failure::{Exit, Judged};

/// What to do about an archive that is not as it was written.
const FETCH_AGAIN: Option<&str> = Some("fetch the archive again, or pack the image again");

impl Judged for OpenArchiveError {
    fn exit(&self) -> Exit {
        if self.is_damage() || self.is_unknown() { Exit::BadInput } else { Exit::Failed }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            _ if self.is_unknown() => Some("read it with the program that wrote it"),
            _ if self.is_damage() => FETCH_AGAIN,
            _ => None,
        }
    }
}

impl Judged for ZstdError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

impl Judged for DecodeFrameError {
    fn exit(&self) -> Exit {
        Exit::BadInput
    }

    fn hint(&self) -> Option<&'static str> {
        FETCH_AGAIN
    }
}

impl Judged for CheckHeaderError {
    fn exit(&self) -> Exit {
        match self {
            Self::Read(_) => Exit::Failed,
            Self::Frame | Self::Header(_) | Self::Differ => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        if let Self::Read(_) = self { None } else { FETCH_AGAIN }
    }
}

impl Judged for VerifyArchiveError {
    fn exit(&self) -> Exit {
        match self {
            Self::Header(error) => error.exit(),
            Self::Read { .. } => Exit::Failed,
            Self::Frame(error) => error.exit(),
            Self::Zstd(error) => error.exit(),
            Self::Cancelled(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Header(error) => error.hint(),
            Self::Frame(error) => error.hint(),
            Self::Read { .. } | Self::Zstd(_) | Self::Cancelled(_) => None,
        }
    }
}

impl Judged for UnpackError {
    fn exit(&self) -> Exit {
        match self {
            Self::Frame(error) => error.exit(),
            Self::Zstd(error) => error.exit(),
            Self::Cancelled(error) => error.exit(),
            Self::Read { .. } | Self::NotEmpty(_) | Self::Write { .. } => Exit::Failed,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Frame(error) => error.hint(),
            Self::Write { source, .. } => space(source),
            Self::Read { .. } | Self::NotEmpty(_) | Self::Zstd(_) | Self::Cancelled(_) => None,
        }
    }
}

impl Judged for ZeroError {
    fn exit(&self) -> Exit {
        match self {
            Self::Read { .. } => Exit::Failed,
            Self::NotZero { .. } => Exit::BadInput,
            Self::Cancelled(error) => error.exit(),
        }
    }
}

impl Judged for VerifyImageError {
    fn exit(&self) -> Exit {
        match self {
            Self::Read { .. } => Exit::Failed,
            Self::Checksum { .. } => Exit::BadInput,
            Self::Zeros(error) => error.exit(),
            Self::Cancelled(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Checksum { .. } => Some("unpack it again, or wake the app from its disk"),
            Self::Zeros(error) => error.hint(),
            Self::Read { .. } | Self::Cancelled(_) => None,
        }
    }
}

impl Judged for PackError {
    fn exit(&self) -> Exit {
        match self {
            Self::Read { .. } | Self::Write { .. } => Exit::Failed,
            Self::Changed { .. }
            | Self::TooLarge { .. }
            | Self::TooManyWindows(_)
            | Self::ReadOnly { .. } => Exit::BadInput,
            Self::Zeros(error) => error.exit(),
            Self::Zstd(error) => error.exit(),
            Self::Cancelled(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Write { source, .. } => space(source),
            _ => None,
        }
    }
}
