//! Layers whose windows are whole: each is either all of the layer's or all of its parent's. Such a layer is
//! told from two maps alone, and a stack of them is read one window from one layer.

use super::Map;
use crate::id::ImageId;
use crate::packed::EMPTY_CHECKSUM;
use crate::units::{PageState, PageStates};

/// Why maps make no stack of layers with whole windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// There is none.
    #[error("there is no layer")]
    Empty,
    /// A layer is of another image than the one below it.
    #[error("layer {layer} differs from the one below it in its {what}")]
    Differs {
        /// Which, from 0 at the bottom.
        layer: usize,
        /// In what.
        what: &'static str,
    },
    /// A window is only in part the layer's.
    #[error("layer {layer} has only a part of window {window}")]
    Torn {
        /// Which, from 0 at the bottom.
        layer: usize,
        /// The window.
        window: u64,
    },
}

/// What a stack of layers makes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stacked {
    /// The whole image's map, with the id and the working set of the topmost layer.
    pub map: Map,
    /// For each window the layer that has it, from 0 at the bottom.
    pub layer_of: Vec<u8>,
}

impl Map {
    /// The map of the layer that makes an image like `base` into this one, both whole: windows that are alike
    /// are the parent's. None where they can't be compared: sizes or windows differ, or one has no
    /// checksums.
    pub fn layer_over(&self, base: &Self) -> Option<Self> {
        let comparable = self.mem_size() == base.mem_size()
            && self.window == base.window
            && self.parent.is_none()
            && base.parent.is_none()
            && self.has_checksums()
            && base.has_checksums();
        if !comparable {
            return None;
        }
        let mut states = self.states.clone();
        let mut checksums = Vec::with_capacity(usize::try_from(self.windows()).ok()?);
        for window in 0..self.windows() {
            let checksum = self.checksum(window)?;
            let pages = self.pages_of(window);
            let alike = base.checksum(window) == Some(checksum)
                && self.states.runs_in(pages.clone()).eq(base.states.runs_in(pages.clone()));
            checksums.push(if alike { EMPTY_CHECKSUM } else { checksum });
            for page in pages.filter(|_| alike) {
                states.set(page, PageState::Parent).ok()?;
            }
        }
        let layer = Self::new(self.image_id, Some(base.image_id), self.window, states).ok()?;
        Some(layer.with_checksums(checksums).with_working_set(self.working_set.clone()))
    }

    /// An id that images have in common whose maps tell of the same bytes: BLAKE3 of states and checksums. None
    /// without checksums. As good as XXH3 (64 bits): by accident no two are alike, by intent they may be.
    pub fn content_id(&self) -> Option<ImageId> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.mem_size().to_le_bytes());
        hasher.update(&[self.window.shift()]);
        for window in 0..self.windows() {
            hasher.update(&self.checksum(window)?.to_le_bytes());
        }
        for run in self.runs() {
            let state = match run.state {
                PageState::Data => 1,
                PageState::Zero => 2,
                PageState::Parent => 3,
            };
            hasher.update(&[state]);
            hasher.update(&run.pages.end.to_le_bytes());
        }
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        // Zero, which is no id, comes up once in 2^128 images.
        ImageId::from_bytes(id)
    }

    /// What these layers make together, the bottommost first, which is a whole image.
    pub fn stacked(layers: &[&Self]) -> Result<Stacked, StackError> {
        let (Some(bottom), Some(top)) = (layers.first(), layers.last()) else {
            return Err(StackError::Empty);
        };
        if bottom.parent.is_some() {
            return Err(StackError::Differs { layer: 0, what: "parent" });
        }
        for (layer, pair) in layers.windows(2).enumerate() {
            let differs = |what| StackError::Differs { layer: layer + 1, what };
            if pair[1].parent != Some(pair[0].image_id) {
                return Err(differs("parent"));
            }
            if pair[1].mem_size() != pair[0].mem_size() {
                return Err(differs("size"));
            }
            if pair[1].window != pair[0].window {
                return Err(differs("window size"));
            }
        }
        let windows = bottom.windows();
        let mut states = PageStates::all(bottom.mem_size(), PageState::Zero);
        let mut checksums = Vec::new();
        let mut layer_of = Vec::new();
        for window in 0..windows {
            let (layer, map) = owner(layers, window)?;
            for run in map.states.runs_in(map.pages_of(window)) {
                for page in run.pages.filter(|_| run.state == PageState::Data) {
                    // It is a page of each of them.
                    let _ = states.set(page, PageState::Data);
                }
            }
            layer_of.push(u8::try_from(layer).unwrap_or(u8::MAX));
            checksums.extend(map.checksum(window));
        }
        let map = Self::new(top.image_id, None, top.window, states)
            .map_err(|_| StackError::Torn { layer: 0, window: 0 })?;
        let map =
            if checksums.len() as u64 == windows { map.with_checksums(checksums) } else { map };
        Ok(Stacked { map: map.with_working_set(top.working_set.clone()), layer_of })
    }
}

/// The topmost layer that has this window.
fn owner<'a>(layers: &[&'a Map], window: u64) -> Result<(usize, &'a Map), StackError> {
    for (layer, map) in layers.iter().enumerate().rev() {
        let pages = map.pages_of(window);
        let all = pages.end - pages.start;
        let parents: u64 = map
            .states
            .runs_in(pages)
            .filter(|run| run.state == PageState::Parent)
            .map(|run| run.pages.end - run.pages.start)
            .sum();
        match parents {
            0 => return Ok((layer, map)),
            parents if parents == all && layer > 0 => {}
            _ => return Err(StackError::Torn { layer, window }),
        }
    }
    Err(StackError::Torn { layer: 0, window })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::{PAGE, WindowSize};

    /// Each window by one number: 0 is zeros, others are what is in it.
    fn map_of(windows: &[u8], parent: Option<ImageId>) -> Map {
        let window = WindowSize::MIN;
        let each = window.bytes() / PAGE;
        let mem_size = windows.len() as u64 * window.bytes();
        let mut states = PageStates::all(mem_size, PageState::Zero);
        let mut checksums = Vec::new();
        for (at, content) in windows.iter().enumerate() {
            // Also the pages that hold something differ with the content.
            for page in 0..u64::from(*content).min(each) {
                states.set(at as u64 * each + page, PageState::Data).unwrap();
            }
            checksums.push(match content {
                0 => EMPTY_CHECKSUM,
                content => u64::from(*content),
            });
        }
        Map::new(ImageId::random(), parent, window, states).unwrap().with_checksums(checksums)
    }

    proptest! {
        #[test]
        fn a_stack_of_layers_is_the_newest_image(
            images in proptest::collection::vec(proptest::collection::vec(0_u8..4, 7), 1..6),
        ) {
            let images: Vec<Map> = images.iter().map(|image| map_of(image, None)).collect();
            let mut layers = vec![images[0].clone()];
            for pair in images.windows(2) {
                let layer = pair[1].layer_over(&pair[0]).unwrap();
                for window in 0..layer.windows() {
                    let alike = pair[1].checksum(window) == pair[0].checksum(window);
                    prop_assert_eq!(layer.window_data_pages(window) == 0,
                        alike || pair[1].window_data_pages(window) == 0);
                }
                layers.push(layer);
            }
            let stack: Vec<&Map> = layers.iter().collect();
            let stacked = Map::stacked(&stack).unwrap();
            prop_assert_eq!(&stacked.map, images.last().unwrap());
            for (window, layer) in stacked.layer_of.iter().enumerate() {
                let (window, owner) = (window as u64, &layers[usize::from(*layer)]);
                prop_assert_eq!(owner.checksum(window), stacked.map.checksum(window));
            }
        }
    }

    #[test]
    fn the_same_content_has_one_id_whatever_else_the_map_says() {
        let (one, same) = (map_of(&[1, 2, 0], None), map_of(&[1, 2, 0], None));
        assert_ne!(one.image_id(), same.image_id());
        assert_eq!(one.content_id(), same.content_id());
        let mut set = crate::working_set::WorkingSet::new();
        set.record([1], same.window_size());
        assert_eq!(one.content_id(), same.with_working_set(set).content_id());
        for other in [&[1, 2, 1][..], &[2, 1, 0], &[1, 2, 0, 0], &[1, 2]] {
            assert_ne!(one.content_id(), map_of(other, None).content_id());
        }
    }

    #[test]
    fn what_makes_no_stack_is_refused() {
        assert_eq!(Map::stacked(&[]), Err(StackError::Empty));
        let base = map_of(&[1, 2], None);
        let layer = map_of(&[1, 3], None).layer_over(&base).unwrap();
        let wrong = |layers: &[&Map]| Map::stacked(layers).unwrap_err();
        assert_eq!(wrong(&[&layer]), StackError::Differs { layer: 0, what: "parent" });
        let other = map_of(&[1, 2], None);
        assert_eq!(wrong(&[&other, &layer]), StackError::Differs { layer: 1, what: "parent" });
        let mut states = layer.states().clone();
        states.set(0, PageState::Data).unwrap();
        let torn = Map::new(ImageId::random(), Some(base.image_id()), layer.window_size(), states);
        let torn = torn.unwrap();
        assert_eq!(wrong(&[&base, &torn]), StackError::Torn { layer: 1, window: 0 });
        assert!(map_of(&[1], None).layer_over(&base).is_none());
        assert!(base.layer_over(&layer).is_none());
    }
}
