//! What is printed, and where.

use std::io::{self, IsTerminal, Write};

use anstyle::Style;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::text::plain;

/// The narrowest terminal that tables are made for, in columns.
const COLUMNS: usize = 80;

/// How results are told.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    terminal: bool,
    colour: bool,
}

impl Output {
    /// JSON if asked for; colour only on a terminal, and not where `NO_COLOR` is set
    /// (<https://no-color.org>).
    pub(crate) fn new(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { json, terminal, colour: terminal && wanted }
    }

    /// One JSON document is wanted instead of text.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// A person looks at it.
    pub(crate) fn terminal(&self) -> bool {
        self.terminal
    }

    /// How wide a table may be; none: nobody looks.
    pub(crate) fn columns(&self) -> Option<usize> {
        let size = || rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |s| s.ws_col.into());
        self.terminal.then(|| size().max(COLUMNS))
    }

    /// `text` in `style`, where there are colours.
    pub(crate) fn paint(&self, text: &str, style: Style) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// Text and the end of its line.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        self.bytes(format!("{text}\n").as_bytes())
    }

    /// `value` as JSON, on one line.
    pub(crate) fn document<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(value).map_err(|e| Failure::Output(e.into()))?;
        line.push(b'\n');
        self.bytes(&line)
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Closed),
            Err(error) => Err(Failure::Output(error)),
        }
    }

    /// Says what went wrong, and how the program is to end.
    pub(crate) fn complain(&self, failure: &Failure) -> Exit {
        // Whoever closed the pipe has seen enough.
        if matches!(failure, Failure::Closed) {
            return Exit::Done;
        }
        let advice = failure.advice();
        if self.json {
            let error = Complaint {
                code: &advice.code,
                message: failure.to_string(),
                todo: &advice.todo,
                retry_after_ms: failure.retry_after_ms(),
            };
            let _ = self.document(&serde_json::json!({ "error": error }));
        }
        let mut text = format!("rouse: {}\n", plain(&failure.to_string()));
        if !advice.todo.is_empty() {
            text.push_str(&format!("  {}\n", plain(&advice.todo)));
        }
        // Nobody is left to be told when it can't be written.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        advice.exit
    }
}

#[derive(Serialize)]
struct Complaint<'a> {
    code: &'a str,
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    todo: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}
