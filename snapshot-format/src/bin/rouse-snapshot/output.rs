//! Files that a command makes.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rouse_snapshot_format::Map;
use tempfile::NamedTempFile;

use crate::failure::{About, Exit, Failure};
use crate::judged::{creating, space};

/// A name under which a file may be made: it is free, or may be replaced.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    path: PathBuf,
    force: bool,
}

impl Output {
    /// Looks before any work is done. `inputs` are never overwritten, whatever name they go by.
    pub(crate) fn claim(
        path: impl Into<PathBuf>,
        force: bool,
        inputs: &[&Path],
    ) -> Result<Self, Failure> {
        let path = path.into();
        let refused = |exit, why: &str| Err(Failure::new(exit, why)).about(&path);
        if path.file_name().is_none() {
            return refused(Exit::Usage, "this names no file");
        }
        let directory = directory(&path);
        if !directory.is_dir() {
            return refused(
                Exit::CantCreate,
                &format!("there is no directory {}; make it first", directory.display()),
            );
        }
        // What a link names is not what a rename would replace.
        let is_link = match fs::symlink_metadata(&path) {
            Ok(meta) => meta.is_symlink(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self { path, force }),
            Err(e) => return Err(e).about(&path),
        };
        let there = identity(&path);
        if there.is_some() && inputs.iter().any(|input| identity(input) == there) {
            return refused(Exit::Usage, "this is what is read; name another output");
        }
        if !is_link && !path.is_file() {
            return refused(Exit::CantCreate, "this is no regular file and is not replaced");
        }
        if !force {
            return refused(Exit::CantCreate, "this is there already; --force replaces it");
        }
        Ok(Self { path, force })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An image and its map, or whatever two files are made, must not be one, however they are
    /// spelled.
    pub(crate) fn differs_from(&self, other: &Path) -> Result<(), Failure> {
        let same = self.path == other
            || place(other).is_some_and(|place_of| Some(place_of) == place(&self.path))
            || identity(other).is_some_and(|it| Some(it) == identity(&self.path));
        if !same {
            return Ok(());
        }
        let why = "this would be the image and the map at once; name another map with --map";
        Err(Failure::new(Exit::Usage, why)).about(&self.path)
    }

    /// Takes away what has the name, durably: so that an old map is never found beside a new image.
    pub(crate) fn retire(&self) -> Result<(), Failure> {
        if !self.force {
            return Ok(());
        }
        match fs::remove_file(&self.path) {
            Ok(()) => sync_directory(&self.path).about(&self.path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e).about(&self.path),
        }
    }

    /// The file under a temporary name beside its own. Mode 0600, as everything that holds
    /// somebody's memory.
    pub(crate) fn draft(self) -> Result<Draft, Failure> {
        self.draft_of(0o600)
    }

    /// [`Self::draft`] of something that holds nobody's memory: whoever the umask lets may read it.
    pub(crate) fn draft_for_all(self) -> Result<Draft, Failure> {
        self.draft_of(0o666)
    }

    fn draft_of(self, mode: u32) -> Result<Draft, Failure> {
        let mut prefix = std::ffi::OsString::from(".");
        prefix.extend([self.path.file_name().unwrap_or_default(), ".".as_ref()]);
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory(&self.path))
            .map_err(|e| cant_create(&e))
            .about(&self.path)?;
        Ok(Draft { file, output: self })
    }
}

/// A file that gets its name when it is whole, and is gone when dropped before.
pub(crate) struct Draft {
    file: NamedTempFile,
    output: Output,
}

impl Draft {
    pub(crate) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Gives it its name; with `sync`, durably. A file that came there since the name was claimed
    /// is replaced only if that was asked for.
    pub(crate) fn publish(self, sync: bool) -> Result<(), Failure> {
        let Self { file, output: Output { path, force } } = self;
        if sync {
            file.as_file().sync_all().about(&path)?;
        }
        let named = if force { file.persist(&path) } else { file.persist_noclobber(&path) };
        named.map_err(|e| cant_create(&e.error)).about(&path)?;
        if sync { sync_directory(&path).about(&path) } else { Ok(()) }
    }
}

/// Gives an image and its map their names. The map is written before anything changes, since the
/// disk may be full, and an old one goes first, so that at no time there is an image with the map of
/// another.
pub(crate) fn publish_image(
    image: Draft,
    map: &Map,
    map_out: Output,
    sync: bool,
) -> Result<(), Failure> {
    let path = image.output.path.clone();
    let draft = map_draft(map, map_out.clone())?;
    map_out.retire()?;
    image.publish(sync)?;
    let named = draft.publish(sync);
    if !map_out.force && named.as_ref().is_err_and(|failure| failure.exit() == Exit::CantCreate) {
        // Somebody's map came meanwhile, and this image is not its.
        let _ = fs::remove_file(path);
    }
    named
}

/// Gives a map the name that was claimed for it.
pub(crate) fn publish_map(map: &Map, out: Output, sync: bool) -> Result<(), Failure> {
    map_draft(map, out)?.publish(sync)
}

fn map_draft(map: &Map, out: Output) -> Result<Draft, Failure> {
    let draft = out.draft()?;
    map.write_to(draft.file()).about(&draft.output.path)?;
    Ok(draft)
}

/// Writes a map anew, in the place of the one that it is made of.
pub(crate) fn write_map(map: &Map, path: &Path, sync: bool) -> Result<(), Failure> {
    let written = if sync { map.write(path) } else { map.write_unsynced(path) };
    written.about(path)
}

fn cant_create(error: &io::Error) -> Failure {
    let hint = space(error).map(|hint| format!("; {hint}")).unwrap_or_default();
    Failure::new(creating(error), format!("can't be made: {error}{hint}"))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    }
}

/// Where a name is, however it is spelled: links in its directory are followed, the name itself is
/// what a rename would replace.
fn place(path: &Path) -> Option<PathBuf> {
    Some(directory(path).canonicalize().ok()?.join(path.file_name()?))
}

/// What a name stands for, if anything.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_there_stays_unless_forced_and_an_input_always() {
        let dir = tempfile::tempdir().unwrap();
        let (input, there, link) =
            (dir.path().join("in"), dir.path().join("there"), dir.path().join("link"));
        fs::write(&input, "in").unwrap();
        fs::write(&there, "old").unwrap();
        fs::hard_link(&input, &link).unwrap();
        let exit = |path: &Path, force| {
            Output::claim(path, force, &[&input]).map_err(|e| e.exit()).map(|o| o.path)
        };
        assert_eq!(exit(&there, false), Err(Exit::CantCreate));
        assert_eq!(exit(&there, true), Ok(there.clone()));
        for name in [&input, &link] {
            assert_eq!(exit(name, true), Err(Exit::Usage));
        }
        assert_eq!(exit(dir.path(), true), Err(Exit::CantCreate));
        assert_eq!(exit(&dir.path().join("no/x"), true), Err(Exit::CantCreate));
        assert_eq!(exit(Path::new("/dev/null"), true), Err(Exit::CantCreate));
        assert_eq!(exit(Path::new(".."), true), Err(Exit::Usage));
    }

    #[test]
    fn a_draft_has_its_name_only_when_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let names = || fs::read_dir(dir.path()).unwrap().count();

        let draft = Output::claim(&path, false, &[]).unwrap().draft().unwrap();
        assert!(!path.exists() && names() == 1);
        drop(draft);
        assert_eq!(names(), 0);

        let draft = Output::claim(&path, false, &[]).unwrap().draft().unwrap();
        draft.file().write_all(b"new").unwrap();
        draft.publish(true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(), 1);
    }

    #[test]
    fn an_image_is_never_left_beside_a_map_that_came_meanwhile() {
        use rouse_snapshot_format::{ImageId, PAGE, PageState, PageStates, WindowSize};
        let dir = tempfile::tempdir().unwrap();
        let (path, map_path) = (dir.path().join("out.img"), dir.path().join("out.map"));
        let states = PageStates::all(PAGE, PageState::Zero);
        let map = Map::new(ImageId::random(), None, WindowSize::DEFAULT, states).unwrap();
        let claim = |force| [&path, &map_path].map(|p| Output::claim(p, force, &[]).unwrap());

        let [image, map_out] = claim(false);
        let draft = image.draft().unwrap();
        fs::write(&map_path, "theirs").unwrap();
        let refused = publish_image(draft, &map, map_out.clone(), true).unwrap_err();
        assert_eq!(refused.exit(), Exit::CantCreate);
        assert_eq!(publish_map(&map, map_out, false).unwrap_err().exit(), Exit::CantCreate);
        assert!(!path.exists() && fs::read(&map_path).unwrap() == b"theirs");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        let [image, map_out] = claim(true);
        publish_image(image.draft().unwrap(), &map, map_out, true).unwrap();
        assert!(path.exists());
        assert_eq!(Map::open(map_path).unwrap(), map);
    }

    #[test]
    fn what_came_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let draft = Output::claim(&path, false, &[]).unwrap().draft().unwrap();
        fs::write(&path, "theirs").unwrap();
        assert_eq!(draft.publish(false).unwrap_err().exit(), Exit::CantCreate);
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
