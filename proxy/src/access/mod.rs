//! The access log: one line of JSON a request.
//!
//! | part | what |
//! | --- | --- |
//! | `line` | a record → its line; pure |
//! | `writer` | lines → a file, by a thread of its own |

mod line;
mod writer;

use std::io;
use std::time::Duration;

use prometheus::IntCounter;

use crate::trace::Ids;

pub use line::Record;
pub use writer::Target;
use writer::Writer;

/// What is written, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessOptions {
    /// Where to.
    pub target: Target,
    /// The share of unremarkable requests that is written, 0 to 1. Errors of ours, answers from
    /// 500 on, and all who were held are always written.
    pub sample: f64,
    /// Paths with their queries, which may hold secrets of the apps'.
    pub query: bool,
}

/// An open access log.
#[derive(Debug)]
pub(crate) struct AccessLog {
    writer: Writer,
    sample: f64,
    pub(crate) query: bool,
}

impl AccessLog {
    pub(crate) fn open(options: AccessOptions, dropped: IntCounter) -> io::Result<Self> {
        let AccessOptions { target, sample, query } = options;
        Ok(Self { writer: Writer::start(target, dropped)?, sample, query })
    }

    /// Writes the record, if it is remarkable or falls into the sample.
    pub(crate) fn write(&self, record: &Record<'_>) {
        if record.is_remarkable() || self.sample >= 1.0 || Ids::ours().share(self.sample) {
            self.writer.write(record.line());
        }
    }

    pub(crate) fn reopen(&self) {
        self.writer.reopen();
    }

    pub(crate) fn flush(&self, patience: Duration) {
        self.writer.flush(patience);
    }
}
