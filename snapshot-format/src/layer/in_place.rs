//! Layers applied to the image itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::assembly::Assembly;
use super::journal::{Journal, JournalError, journal_path};
use super::merge::MergeError;
use super::output::{Before, Output, Step};
use super::source::Source;
use super::{check_layers, check_whole};
use crate::draft::{WriteFileError, sync_directory};
use crate::id::ImageId;
use crate::image::{Access, Image, OpenImageError, open_file};
use crate::map::{Map, OpenMapError, WriteMapError};
use crate::units::{PageState, PageStates};
use crate::work::Work;

/// What [`merge_in_place`] did.
#[derive(Clone, Debug)]
pub struct MergedInPlace {
    /// The image's map, which is written.
    pub map: Map,
    /// Whether an earlier call had begun, or done it all.
    pub resumed: bool,
}

/// Why layers were not merged into their base, or not wholly: then the image has a journal and no
/// map, and the same call goes on once what is wrong has been put right.
#[derive(Debug, thiserror::Error)]
pub enum MergeInPlaceError {
    /// The base or its map can't be used.
    #[error(transparent)]
    Open(#[from] OpenImageError),
    /// The images are no chain, or one can't be read or written.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// There is a journal, and it can't be read. Nothing was changed.
    #[error("the merge that {path:?} is about can't be gone on with: {source}")]
    Journal {
        /// The journal.
        path: PathBuf,
        /// What is wrong with it.
        source: JournalError,
    },
    /// A merge of other layers was begun and not ended. Nothing was changed.
    #[error(
        "the image {base} was being merged into {target} ({} layers); end that first, with its \
         layers",
        .layers.len()
    )]
    OtherMerge {
        /// The image as it was.
        base: ImageId,
        /// What it is to be: its topmost layer.
        target: ImageId,
        /// The layers of that merge, from the bottom up.
        layers: Vec<ImageId>,
    },
    /// There is a journal beside an image that it does not speak of. Nothing was changed.
    #[error(
        "{path:?} is about a merge from {base} into {target}, and the image is {found}; remove it \
         if the image was replaced"
    )]
    ForeignJournal {
        /// The journal.
        path: PathBuf,
        /// The image that its merge began with.
        base: ImageId,
        /// What it was to be.
        target: ImageId,
        /// What the map says.
        found: ImageId,
    },
    /// The image has not the size that it can have amid the merge. Nothing was changed.
    #[error(
        "the image {path:?} has {there} bytes, and the journal beside its map speaks of one of \
         {base_size}"
    )]
    Size {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        there: u64,
        /// What it was before the merge.
        base_size: u64,
    },
    /// The journal or the map can't be written.
    #[error(transparent)]
    Write(#[from] WriteMapError),
    /// The old map or the journal can't be removed.
    #[error("{path:?} can't be removed: {source}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Applies `layers`, from the bottom up, to the image at `path` with the map at `map`; both become
/// what [`merge_copy`](super::merge_copy()) would have written. The image is locked (`flock`,
/// exclusive) meanwhile.
///
/// Everything is read and checked before anything is changed. Then a journal is written
/// ([`journal_path`]), the map is removed, the image changed, the new map written and the journal
/// removed, each durable before the next: whenever this ends, by an error, a kill or with the
/// power, the image is what its map says, or it has none. The same call with the same layers then
/// goes on; so the layers have to stay as they are until it has succeeded. When it has, calling it
/// again does nothing.
///
/// Progress is in bytes of the image, once for the check and once for the change.
pub fn merge_in_place(
    path: &Path,
    map: &Path,
    layers: &[&Image],
    work: &Work<'_>,
) -> Result<MergedInPlace, MergeInPlaceError> {
    run(path, map, layers, work, &|_| Ok(()))
}

/// What there is to do.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The image is untouched.
    Begin,
    /// It may be changed in part.
    GoOn(Box<Journal>),
    /// It is done.
    Nothing,
}

/// Whether `map` is that of a whole image of `size` bytes that is called `id`: the topmost layer is
/// called the same, and its map may be here by mistake.
fn is_of(map: &Map, id: ImageId, size: u64) -> bool {
    map.image_id() == id && map.parent().is_none() && map.mem_size() == size
}

/// Decides by the map and by the journal, as far as there are these; `path` is the journal's, and
/// the image has `size` bytes.
fn next(
    path: &Path,
    map: Option<&Map>,
    size: u64,
    journal: Option<Journal>,
    asked: &[ImageId],
) -> Result<Next, MergeInPlaceError> {
    let Some(journal) = journal else {
        let done = map.zip(asked.last()).is_some_and(|(map, id)| is_of(map, *id, size));
        return Ok(if done { Next::Nothing } else { Next::Begin });
    };
    let (base, target) = (journal.base, journal.map.image_id());
    match map.map(Map::image_id) {
        Some(found) if found != base => {
            Err(MergeInPlaceError::ForeignJournal { path: path.to_owned(), base, target, found })
        }
        // With the old map there the image should be untouched. To go on is right in any case: who
        // knows who put that map back.
        _ if journal.layers == asked => Ok(Next::GoOn(Box::new(journal))),
        _ => Err(MergeInPlaceError::OtherMerge { base, target, layers: journal.layers }),
    }
}

fn run(
    path: &Path,
    map_path: &Path,
    layers: &[&Image],
    work: &Work<'_>,
    before: Before<'_>,
) -> Result<MergedInPlace, MergeInPlaceError> {
    let file = open_file(path, Access::Write)?;
    let journal_path = journal_path(map_path);
    let merge = Merge {
        output: Output { path, file: &file, before },
        map_path,
        journal_path: &journal_path,
        layers,
        work,
    };
    let map = match Map::open(map_path) {
        Ok(map) => Some(map),
        Err(OpenMapError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(merge.unusable(source).into()),
    };
    let size = merge.size()?;
    let mut journal = Journal::open(&journal_path)
        .map_err(|source| MergeInPlaceError::Journal { path: journal_path.clone(), source })?;
    let ended = |journal: &Journal| {
        map.as_ref().is_some_and(|map| is_of(map, journal.map.image_id(), size))
    };
    if journal.as_ref().is_some_and(ended) {
        // That merge has ended, but for this.
        merge.remove_journal()?;
        journal = None;
    }
    let there = |map: Option<Map>| {
        map.ok_or_else(|| merge.unusable(io::Error::from(io::ErrorKind::NotFound).into()))
    };
    let asked: Vec<_> = layers.iter().map(|layer| layer.map().image_id()).collect();
    let (map, resumed) = match next(&journal_path, map.as_ref(), size, journal, &asked)? {
        Next::Nothing => (there(map)?, true),
        Next::GoOn(journal) => (merge.go_on(*journal)?, true),
        Next::Begin => (merge.begin(&there(map)?)?, false),
    };
    Ok(MergedInPlace { map, resumed })
}

struct Merge<'a> {
    output: Output<'a>,
    map_path: &'a Path,
    journal_path: &'a Path,
    layers: &'a [&'a Image],
    work: &'a Work<'a>,
}

impl Merge<'_> {
    fn unusable(&self, source: OpenMapError) -> OpenImageError {
        OpenImageError::Map { path: self.map_path.to_owned(), source }
    }

    fn size(&self) -> Result<u64, OpenImageError> {
        let path = || self.output.path.to_owned();
        let meta = self.output.file.metadata();
        Ok(meta.map_err(|source| OpenImageError::Open { path: path(), source })?.len())
    }

    /// The images of the chain, of which the base has the map `map`.
    fn sources<'s>(&'s self, map: &'s Map) -> Vec<Source<'s>> {
        let base = Source { path: self.output.path, file: self.output.file, map };
        let layers = self.layers.iter().map(|layer| Source::from(*layer));
        std::iter::once(base).chain(layers).collect()
    }

    fn begin(&self, map: &Map) -> Result<Map, MergeInPlaceError> {
        let (there, mem_size) = (self.size()?, map.mem_size());
        if there != mem_size {
            let path = self.output.path.to_owned();
            return Err(OpenImageError::Size { path, there, mem_size }.into());
        }
        check_whole(map).map_err(MergeError::from)?;
        let top = check_layers(map.image_id(), self.layers).map_err(MergeError::from)?;
        // Refused if it has what we would lose.
        map.check_writable()?;

        let sources = self.sources(map);
        let assembly = Assembly::new(&sources)?;
        let (checksums, _) = assembly.run(self.work, true, 1, None)?;
        let journal = Journal {
            base: map.image_id(),
            base_size: mem_size,
            layers: self.layers.iter().map(|layer| layer.map().image_id()).collect(),
            map: assembly.map(top.map().image_id(), None, checksums)?,
        };
        self.step(Step::Journal, self.journal_path)?;
        journal.write(self.journal_path)?;
        self.apply(&assembly, &journal.map)?;
        Ok(journal.map)
    }

    fn go_on(&self, journal: Journal) -> Result<Map, MergeInPlaceError> {
        check_layers(journal.base, self.layers).map_err(MergeError::from)?;
        // What was DATA of the base is in the map that is gone; to take all for it costs some holes
        // that are dug twice.
        let states = PageStates::all(journal.base_size, PageState::Data);
        let base = Map::new(journal.base, None, journal.map.window_size(), states)
            .map_err(MergeError::from)?;
        let sources = self.sources(&base);
        let assembly = Assembly::resumed(&sources, journal.map.states().clone())?;
        let chain = assembly.chain();
        if chain.mem_size() != journal.map.mem_size() {
            return Err(MergeInPlaceError::Journal {
                path: self.journal_path.to_owned(),
                source: JournalError::Contradiction("the layers make an image of another size"),
            });
        }
        let there = self.size()?;
        if ![journal.base_size, chain.seen(0), chain.mem_size()].contains(&there) {
            let (path, base_size) = (self.output.path.to_owned(), journal.base_size);
            return Err(MergeInPlaceError::Size { path, there, base_size });
        }
        self.apply(&assembly, &journal.map)?;
        Ok(journal.map)
    }

    /// All of it once the journal is there. To do it again, from wherever it ended, changes nothing
    /// that was done: no byte that is read is one that is written.
    fn apply(&self, assembly: &Assembly<'_>, map: &Map) -> Result<(), MergeInPlaceError> {
        self.step(Step::Unname, self.map_path)?;
        self.remove(self.map_path)?;

        let (output, chain) = (&self.output, assembly.chain());
        output.resize(chain.seen(0), chain.mem_size()).map_err(MergeError::from)?;
        assembly.zero(output)?;
        assembly.run(self.work, false, 1, Some(output))?;
        output.sync().map_err(MergeError::from)?;

        self.step(Step::Map, self.map_path)?;
        map.write(self.map_path)?;
        self.remove_journal()
    }

    fn remove_journal(&self) -> Result<(), MergeInPlaceError> {
        self.step(Step::Done, self.journal_path)?;
        self.remove(self.journal_path)
    }

    /// Removes a file, if it is there, so that it is gone after a power loss, too.
    fn remove(&self, path: &Path) -> Result<(), MergeInPlaceError> {
        match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(MergeInPlaceError::Remove { path: path.to_owned(), source })
            }
            _ => Ok(sync_directory(path).map_err(WriteMapError::from)?),
        }
    }

    fn step(&self, step: Step, path: &Path) -> Result<(), MergeInPlaceError> {
        let failed = |source| WriteFileError::Io { path: path.to_owned(), source };
        (self.output.before)(step).map_err(|source| WriteMapError::from(failed(source)).into())
    }
}

#[cfg(test)]
mod tests;
