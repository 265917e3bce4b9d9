//! Whose an app is, and which of its generations are in the store: `apps/<app>/ref.json`.

use rouse_protocol::app::{AppId, Generation};
use rouse_store::Key;
use serde::{Deserialize, Serialize};

/// The version of [`Reference`] that is written, and the only one that is read.
pub(super) const FORMAT: u32 = 1;

/// An app as the store knows it. Written only on the condition that it is still what was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// The version of this form.
    pub format: u32,
    /// The app.
    pub app: AppId,
    /// The node that had it last, or has it.
    pub owner: String,
    /// Counts owners' turns: whoever knows a smaller number has lost the app.
    pub fence: u64,
    /// Whether the owner has something that the store does not have.
    pub turn: Turn,
    /// Its generations in the store, the newest first.
    pub generations: Vec<Stored>,
}

/// How far an owner's turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Turn {
    /// The app runs on its owner, or sleeps there and is not in the store yet.
    Held,
    /// The newest generation is in the store, whole: any node may take it.
    Free,
}

/// A generation in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Which.
    pub generation: Generation,
    /// What its parts have in common.
    pub image_id: String,
    /// BLAKE3 of its manifest, hexadecimal.
    pub manifest_blake3: String,
    /// When it fell asleep, in milliseconds of Unix time.
    pub slept_unix_ms: u64,
}

/// Why a reference in the store is not used.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// It is no reference of this version.
    #[error("it is none of format {FORMAT}: {0}")]
    Form(String),
    /// It is another app's.
    #[error("it is the one of {0}")]
    App(AppId),
}

impl Reference {
    /// One that `app` does not have yet.
    pub(super) fn first(app: &AppId, node: &str, fence: u64) -> Self {
        Self {
            format: FORMAT,
            app: app.clone(),
            owner: node.to_owned(),
            fence,
            turn: Turn::Held,
            generations: Vec::new(),
        }
    }

    /// Reads one of `app`.
    pub(super) fn parse(app: &AppId, bytes: &[u8]) -> Result<Self, ReferenceError> {
        let reference: Self =
            serde_json::from_slice(bytes).map_err(|e| ReferenceError::Form(e.to_string()))?;
        if reference.format != FORMAT {
            return Err(ReferenceError::Form(format!("its format is {}", reference.format)));
        }
        if reference.app != *app {
            return Err(ReferenceError::App(reference.app));
        }
        Ok(reference)
    }

    /// Its next turn, by `node`.
    pub(super) fn taken(&self, node: &str) -> Self {
        Self { owner: node.to_owned(), fence: self.fence + 1, turn: Turn::Held, ..self.clone() }
    }

    /// With a generation that is whole in the store, before all but the `keep` newest.
    pub(super) fn published(&self, stored: Stored, keep: usize) -> Self {
        let mut generations = vec![stored];
        let older = self.generations.iter().filter(|g| g.generation < generations[0].generation);
        let older: Vec<Stored> = older.take(keep).cloned().collect();
        generations.extend(older);
        Self { turn: Turn::Free, generations, ..self.clone() }
    }

    /// The newest generation in the store.
    pub fn newest(&self) -> Option<&Stored> {
        self.generations.first()
    }
}

impl Stored {
    /// Where its manifest and its own parts are, below the app's key.
    pub(super) fn place(&self) -> String {
        format!("generations/{}-{}", self.generation, self.image_id)
    }
}

/// The app's part of the store.
pub(super) fn app_key(app: &AppId) -> Key {
    // An app's id has no character that a key has not.
    Key::new(format!("apps/{app}")).expect("an app's id is part of a key")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(generation: u64) -> Stored {
        Stored {
            generation: Generation(generation),
            image_id: "00".repeat(16),
            manifest_blake3: "00".repeat(32),
            slept_unix_ms: 1,
        }
    }

    #[test]
    fn what_is_no_reference_of_the_app_is_refused() {
        let app: AppId = "hello".parse().unwrap();
        let reference = Reference::first(&app, "a", 1);
        let text = serde_json::to_vec(&reference).unwrap();
        assert_eq!(Reference::parse(&app, &text).unwrap(), reference);
        let other = Reference::parse(&"other".parse().unwrap(), &text);
        assert!(matches!(other, Err(ReferenceError::App(_))), "{other:?}");
        let next = Reference { format: 2, ..reference };
        let next = Reference::parse(&app, &serde_json::to_vec(&next).unwrap());
        assert!(matches!(next, Err(ReferenceError::Form(_))), "{next:?}");
        for wrong in [&b""[..], b"{}", b"[", b"\xff", &text[..text.len() - 1]] {
            assert!(Reference::parse(&app, wrong).is_err());
        }
    }

    #[test]
    fn so_many_older_generations_are_kept() {
        let app: AppId = "hello".parse().unwrap();
        let mut reference = Reference::first(&app, "a", 1);
        for generation in 1..6 {
            reference = reference.published(stored(generation), 2).taken("a");
        }
        let kept: Vec<u64> = reference.generations.iter().map(|g| g.generation.0).collect();
        assert_eq!(kept, [5, 4, 3]);
        assert_eq!(reference.fence, 6);
    }
}
