use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::layer::tests::{image, layer, one_thread, open, pages};
use crate::layer::{LayerOptions, merge_copy};
use crate::units::PAGE;

/// A base, what its layers make of it, and a place to do it in.
struct Scene {
    dir: tempfile::TempDir,
    base: Vec<u8>,
    layers: Vec<PathBuf>,
    /// The bytes that come out.
    wanted: Vec<u8>,
    /// The map that the copying merge writes.
    map: Map,
}

impl Scene {
    /// The images one after the other, each made from the one before by a layer.
    fn new(images: &[Vec<u8>]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (1..)
            .zip(images)
            .map(|(id, bytes)| image(dir.path(), &format!("{id}.img"), bytes, id))
            .collect();
        let layers: Vec<_> = (1..)
            .zip(paths.windows(2))
            .map(|(n, pair)| layer(dir.path(), &format!("layer-{n}.img"), &pair[0], &pair[1]))
            .collect();
        let out = dir.path().join("out.img");
        let opened: Vec<_> = layers.iter().map(|path| open(path)).collect();
        let copied = merge_copy(
            &open(&paths[0]),
            &opened.iter().collect::<Vec<_>>(),
            &out,
            &Image::map_path(&out),
            &LayerOptions::default(),
        );
        let (base, wanted) = (images[0].clone(), images[images.len() - 1].clone());
        assert!(fs::read(&out).unwrap() == wanted);
        Self { dir, base, layers, wanted, map: copied.unwrap().map }
    }

    /// Of many pages, with zeros that become DATA and DATA that becomes zeros, cut and grown.
    fn rich() -> Self {
        let mut first = pages(&[1, 0, 2, 0, 3, 4, 5, 6, 0, 0, 7, 8, 9, 1, 2, 3, 4, 5, 0, 6]);
        first.extend([7; 100]);
        let mut second = pages(&[1, 9, 2, 9, 0, 4, 9, 6, 0, 9, 7, 0, 9, 1, 9, 3, 9]);
        second.extend([5; 10]);
        let mut third = second.clone();
        third.resize(24 * PAGE as usize + 1, 0);
        third[..PAGE as usize].fill(0);
        third[23 * PAGE as usize..].fill(3);
        Self::new(&[first, second, third])
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("live.img")
    }

    fn map_path(&self) -> PathBuf {
        Image::map_path(self.path())
    }

    fn journal(&self) -> PathBuf {
        journal_path(self.map_path())
    }

    /// Puts the base there, as it was.
    fn reset(&self) -> Map {
        let path = image(self.dir.path(), "live.img", &self.base, 1);
        match fs::remove_file(self.journal()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
            _ => Map::open(Image::map_path(path)).unwrap(),
        }
    }

    fn merge(
        &self,
        work: Work<'_>,
        before: Before<'_>,
    ) -> Result<MergedInPlace, MergeInPlaceError> {
        let layers: Vec<_> = self.layers.iter().map(|path| open(path)).collect();
        run(&self.path(), &self.map_path(), &layers.iter().collect::<Vec<_>>(), &work, before)
    }

    /// Ends the merge before its step `number`.
    fn merge_until(
        &self,
        work: Work<'_>,
        number: usize,
    ) -> Result<MergedInPlace, MergeInPlaceError> {
        let steps = AtomicUsize::new(0);
        // Who is killed does nothing more, on whichever thread.
        self.merge(work, &|_| match steps.fetch_add(1, Ordering::SeqCst) {
            step if step < number => Ok(()),
            _ => Err(io::Error::other("killed")),
        })
    }

    /// What is there while the merge has not ended.
    fn is_sound(&self, old: &Map) {
        match Map::open(self.map_path()) {
            Err(OpenMapError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            Err(error) => panic!("{error}"),
            Ok(map) if map == *old => assert!(fs::read(self.path()).unwrap() == self.base),
            Ok(_) => self.is_done(),
        }
    }

    fn is_done(&self) {
        assert_eq!(Map::open(self.map_path()).unwrap(), self.map);
        assert!(fs::read(self.path()).unwrap() == self.wanted);
    }
}

/// All steps that a merge takes.
fn steps(scene: &Scene) -> Vec<Step> {
    scene.reset();
    let steps = std::sync::Mutex::new(Vec::new());
    let noted = |step| {
        steps.lock().unwrap().push(step);
        Ok(())
    };
    assert!(!scene.merge(one_thread(), &noted).unwrap().resumed);
    scene.is_done();
    steps.into_inner().unwrap()
}

#[test]
fn steps_come_in_the_order_that_makes_it_safe() {
    let scene = Scene::rich();
    let steps = steps(&scene);
    let (first, rest) = steps.split_at(3);
    assert_eq!(first, [Step::Journal, Step::Unname, Step::Resize]);
    let (changes, last) = rest.split_at(rest.len() - 3);
    assert_eq!(last, [Step::Sync, Step::Map, Step::Done]);
    let of = |wanted: fn(&Step) -> bool| changes.iter().filter(|step| wanted(step)).count();
    let (zeroed, written) =
        (of(|s| matches!(s, Step::Zero(_))), of(|s| matches!(s, Step::Write(_))));
    assert!(zeroed >= 2 && written >= 8 && zeroed + written == changes.len(), "{changes:?}");
}

#[test]
fn killed_at_any_step_it_goes_on() {
    let scene = Scene::rich();
    let count = steps(&scene).len();
    for number in 0..count {
        let old = scene.reset();
        scene.merge_until(one_thread(), number).unwrap_err();
        scene.is_sound(&old);
        // And killed again on the way, early and late.
        for again in [0, 1, number / 2 + 2, number] {
            if scene.merge_until(one_thread(), again).is_err() {
                scene.is_sound(&old);
            }
        }
        let done = Map::open(scene.map_path()).is_ok_and(|map| map == scene.map);
        let begun = scene.journal().exists() || done;
        let merged = scene.merge(Work::default(), &|_| Ok(())).unwrap();
        assert_eq!(merged.map, scene.map);
        assert_eq!(merged.resumed, begun, "at step {number}");
        scene.is_done();
        assert!(!scene.journal().exists());
    }
    // Once more, and nothing happens.
    let merged = scene.merge(one_thread(), &|step| panic!("{step:?}")).unwrap();
    assert!(merged.resumed && merged.map == scene.map);
}

#[test]
fn killed_with_many_threads_it_goes_on() {
    let images: Vec<Vec<u8>> = (0..4)
        .map(|n| (0..200_u32).flat_map(|page| [(page * page + n * page) as u8 % 7; 4096]).collect())
        .collect();
    let scene = Scene::new(&images);
    for number in (0..400).step_by(23) {
        let old = scene.reset();
        let work = Work { threads: std::num::NonZeroUsize::new(4), ..Work::default() };
        if scene.merge_until(work, number).is_err() {
            scene.is_sound(&old);
        }
        scene.merge(work, &|_| Ok(())).unwrap();
        scene.is_done();
    }
}

#[test]
fn another_merge_waits_for_the_first() {
    let scene = Scene::rich();
    scene.reset();
    let late = steps(&scene).len() - 4;
    scene.reset();
    scene.merge_until(one_thread(), late).unwrap_err();
    let half = fs::read(scene.path()).unwrap();

    // Other layers: one fewer, and none of it.
    let only = open(&scene.layers[0]);
    let refused = run(&scene.path(), &scene.map_path(), &[&only], &one_thread(), &|_| Ok(()));
    let error = refused.unwrap_err();
    let target = scene.map.image_id();
    assert!(
        matches!(
            &error,
            MergeInPlaceError::OtherMerge { target: t, layers, .. }
                if *t == target && layers.len() == 2
        ),
        "{error}"
    );
    assert!(error.to_string().contains(&target.to_hex()));

    // An image of another size can't be the one that was being merged.
    let file = fs::OpenOptions::new().write(true).open(scene.path()).unwrap();
    file.set_len(half.len() as u64 + 1).unwrap();
    let size = scene.merge(one_thread(), &|_| Ok(())).unwrap_err();
    assert!(matches!(size, MergeInPlaceError::Size { .. }), "{size}");
    file.set_len(half.len() as u64).unwrap();
    drop(file);
    assert!(fs::read(scene.path()).unwrap() == half);

    // Somebody has made a map for what is no image.
    let path = scene.dir.path().join("other.img");
    image(scene.dir.path(), "other.img", &half, 77);
    fs::copy(Image::map_path(path), scene.map_path()).unwrap();
    let foreign = scene.merge(one_thread(), &|_| Ok(())).unwrap_err();
    assert!(matches!(foreign, MergeInPlaceError::ForeignJournal { .. }), "{foreign}");
    fs::remove_file(scene.map_path()).unwrap();

    // A damaged journal is no reason to guess.
    let journal = fs::read(scene.journal()).unwrap();
    fs::write(scene.journal(), &journal[1..]).unwrap();
    let damaged = scene.merge(one_thread(), &|_| Ok(())).unwrap_err();
    assert!(matches!(damaged, MergeInPlaceError::Journal { .. }), "{damaged}");
    fs::write(scene.journal(), journal).unwrap();

    // With the old map put back by somebody it still goes on, and not by the map.
    image(scene.dir.path(), "other.img", &scene.base, 1);
    fs::copy(Image::map_path(scene.dir.path().join("other.img")), scene.map_path()).unwrap();
    assert!(scene.merge(one_thread(), &|_| Ok(())).unwrap().resumed);
    scene.is_done();
}

#[test]
fn a_journal_of_a_merge_that_has_ended_is_in_nobodys_way() {
    let scene = Scene::new(&[pages(&[1, 2]), pages(&[1, 3]), pages(&[4, 3])]);
    let first = open(&scene.layers[0]);
    let merge = |layer: &Image, before: Before<'_>| {
        run(&scene.path(), &scene.map_path(), &[layer], &one_thread(), before)
    };
    scene.reset();
    let last = |step| if step == Step::Done { Err(io::Error::other("killed")) } else { Ok(()) };
    merge(&first, &last).unwrap_err();
    assert!(scene.journal().exists() && scene.map_path().exists());
    // The next layer comes, and the first merge is found to be done.
    let second = open(&scene.layers[1]);
    assert!(!merge(&second, &|_| Ok(())).unwrap().resumed);
    assert!(fs::read(scene.path()).unwrap() == scene.wanted);
    assert!(!scene.journal().exists());
}

#[test]
fn a_damaged_image_is_found_before_anything_changes() {
    let scene = Scene::rich();
    let damage = |path: &Path, at: u64| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at as usize] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let old = scene.reset();
    // A page of the base that shares its window with changed ones, and one of a layer.
    for (path, at) in [(scene.path(), 2 * PAGE), (scene.layers[0].clone(), 9 * PAGE)] {
        damage(&path, at);
        let error = scene.merge(Work::default(), &|step| panic!("{step:?}")).unwrap_err();
        assert!(error.to_string().contains("window 0"), "{error}");
        damage(&path, at);
    }
    scene.is_sound(&old);

    // A layer that is damaged after the merge began: found before its window is written.
    let journal_and_more = 4;
    scene.merge_until(one_thread(), journal_and_more).unwrap_err();
    damage(&scene.layers[0], 9 * PAGE);
    let error = scene.merge(one_thread(), &|step| match step {
        Step::Write(at) if at < 16 * PAGE => panic!("wrote at {at}"),
        _ => Ok(()),
    });
    assert!(error.unwrap_err().to_string().contains("window 0"));
    assert!(!scene.map_path().exists());
    damage(&scene.layers[0], 9 * PAGE);
    scene.merge(Work::default(), &|_| Ok(())).unwrap();
    scene.is_done();
}

#[test]
fn the_map_of_the_layer_itself_is_no_sign_that_all_is_done() {
    let scene = Scene::new(&[pages(&[1, 2]), pages(&[1, 3])]);
    scene.reset();
    // It is called as what the merge makes.
    fs::copy(Image::map_path(&scene.layers[0]), scene.map_path()).unwrap();
    let error = scene.merge(one_thread(), &|step| panic!("{step:?}")).unwrap_err();
    let MergeInPlaceError::Merge(MergeError::Chain(error)) = error else { panic!("{error}") };
    assert!(error.to_string().contains("is a layer"), "{error}");

    // So is one of an image of another size.
    scene.reset();
    scene.map.write_unsynced(scene.map_path()).unwrap();
    fs::write(scene.path(), pages(&[1])).unwrap();
    let error = scene.merge(one_thread(), &|step| panic!("{step:?}")).unwrap_err();
    assert!(matches!(error, MergeInPlaceError::Open(OpenImageError::Size { .. })), "{error}");
}

#[test]
fn who_has_the_image_is_not_disturbed() {
    let scene = Scene::new(&[pages(&[1, 2]), pages(&[1, 3])]);
    let old = scene.reset();
    let vm = open(&scene.path());
    let error = scene.merge(one_thread(), &|step| panic!("{step:?}")).unwrap_err();
    assert!(matches!(error, MergeInPlaceError::Open(OpenImageError::InUse(_))), "{error}");
    drop(vm);
    scene.is_sound(&old);

    fs::remove_file(scene.map_path()).unwrap();
    let error = scene.merge(one_thread(), &|step| panic!("{step:?}")).unwrap_err();
    assert!(matches!(error, MergeInPlaceError::Open(OpenImageError::Map { .. })), "{error}");
}
