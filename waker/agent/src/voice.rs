//! What the agent says on the control port.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rouse_protocol::control::FromAgent;

/// Says whole lines to one host, whichever thread has something to say.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    port: Arc<Mutex<File>>,
    /// The host has gone. What is left to tell it is nothing that the next one has asked.
    gone: Arc<AtomicBool>,
}

impl Voice {
    pub(crate) fn new(port: File) -> Self {
        Self { port: Arc::new(Mutex::new(port)), gone: Arc::default() }
    }

    /// Falls silent for whoever has a copy of it, and speaks to the next host on the same port.
    pub(crate) fn for_another_host(&self) -> Self {
        self.gone.store(true, Ordering::Release);
        Self { port: self.port.clone(), gone: Arc::default() }
    }

    /// Says `message`, or nothing when its host has gone.
    pub(crate) fn say(&self, message: &FromAgent) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        port.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn a_host_that_has_gone_is_told_nothing() {
        let mut file = tempfile::tempfile().unwrap();
        let first = Voice::new(file.try_clone().unwrap());
        let flushed = |id| FromAgent::Flushed { id, error: None };
        first.say(&flushed(1)).unwrap();
        let late = first.clone();
        let second = first.for_another_host();
        late.say(&flushed(2)).unwrap();
        second.say(&flushed(3)).unwrap();
        file.rewind().unwrap();
        let mut said = String::new();
        file.read_to_string(&mut said).unwrap();
        let lines = [1, 3].map(|id| format!("{{\"tell\":\"flushed\",\"id\":{id}}}\n"));
        assert_eq!(said, lines.concat());
    }
}
