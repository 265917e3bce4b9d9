//! Archives in a store that make one image together.

use std::collections::HashSet;

use rouse_snapshot_format::{Frame, Map, StackError, Stacked};
use rouse_store::Key;

use crate::remote::Remote;

const NO_FRAME: u32 = u32::MAX;

/// A whole image in one archive, or in layers over one another, each window from the topmost that has it.
///
/// Its frames are numbered in the order in which they are fetched: those of the working set first, and then
/// archive by archive in the order of the file.
#[derive(Debug)]
pub struct Layers {
    remotes: Vec<Remote>,
    map: Map,
    frames: Vec<(u8, u32)>,
    /// By window.
    frame_of: Vec<u32>,
    working_set: usize,
}

/// Why archives make no image together.
#[derive(Debug, thiserror::Error)]
pub enum LayersError {
    /// They do not fit each other.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// There are more than a manifest may name.
    #[error("there are {0} layers, more than the {MAX_LAYERS} that are allowed")]
    TooMany(usize),
}

/// The most layers that an image may have: each costs a wake a request.
pub const MAX_LAYERS: usize = 8;

impl Layers {
    /// The image that these make, the bottommost first.
    pub fn new(remotes: Vec<Remote>) -> Result<Self, LayersError> {
        if remotes.len() > MAX_LAYERS {
            return Err(LayersError::TooMany(remotes.len()));
        }
        let maps: Vec<&Map> = remotes.iter().map(Remote::map).collect();
        let Stacked { map, layer_of } = Map::stacked(&maps)?;
        let touched: HashSet<u32> =
            map.working_set().order(map.window_size()).into_iter().collect();
        let (mut first, mut rest) = (Vec::new(), Vec::new());
        for (layer, remote) in remotes.iter().enumerate().rev() {
            let index = remote.index();
            for number in 0..index.frames() {
                let Some(frame) = index.frame(number) else { continue };
                if layer_of.get(frame.window as usize).copied().map(usize::from) != Some(layer) {
                    continue;
                }
                let top = layer + 1 == remotes.len();
                let early =
                    touched.contains(&frame.window) || (top && number < index.working_set_frames());
                let place = (layer as u8, number as u32);
                if early { first.push((place, frame)) } else { rest.push((place, frame)) }
            }
        }
        let working_set = first.len();
        let mut frame_of = vec![NO_FRAME; layer_of.len()];
        let mut frames = Vec::with_capacity(working_set + rest.len());
        for (place, frame) in first.into_iter().chain(rest) {
            frame_of[frame.window as usize] = frames.len() as u32;
            frames.push(place);
        }
        Ok(Self { remotes, map, frames, frame_of, working_set })
    }

    /// The whole image's map.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The archives, the bottommost first.
    pub fn remotes(&self) -> &[Remote] {
        &self.remotes
    }

    /// What is to be fetched for all of it, in bytes.
    pub fn bytes(&self) -> u64 {
        self.frames().map(|(_, frame)| u64::from(frame.length)).sum()
    }

    /// What is to be fetched for the working set, in bytes.
    pub fn working_set_bytes(&self) -> u64 {
        self.frames().take(self.working_set).map(|(_, frame)| u64::from(frame.length)).sum()
    }

    pub(crate) fn working_set_frames(&self) -> usize {
        self.working_set
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = (&Remote, Frame)> {
        (0..self.frames.len()).filter_map(|number| self.frame(number))
    }

    pub(crate) fn frame(&self, number: usize) -> Option<(&Remote, Frame)> {
        let (layer, number) = *self.frames.get(number)?;
        let remote = self.remotes.get(usize::from(layer))?;
        Some((remote, remote.index().frame(number as usize)?))
    }

    pub(crate) fn frame_of(&self, window: u64) -> Option<usize> {
        let number = *self.frame_of.get(usize::try_from(window).ok()?)?;
        (number != NO_FRAME).then_some(number as usize)
    }

    /// The object that has this frame.
    pub(crate) fn key_of(&self, number: usize) -> &Key {
        // There is one archive at least: none make no stack.
        self.frame(number).map_or(self.remotes[0].key(), |(remote, _)| remote.key())
    }

    /// Whether this frame lies right behind the one before, in the same archive.
    pub(crate) fn follows(&self, number: usize) -> bool {
        let before = number.checked_sub(1).and_then(|before| self.frames.get(before));
        match (before, self.frames.get(number)) {
            (Some((layer, before)), Some((this, number))) => layer == this && before + 1 == *number,
            _ => false,
        }
    }
}
