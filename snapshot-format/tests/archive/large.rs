//! Sizes at which a number of 32 bits no longer does.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use rouse_snapshot_format::{
    Archive, Image, ImageId, MAX_MEM_SIZE, PackOptions, SparsifyOptions, Work, pack, sparsify,
};

#[test]
fn sparse_images_of_many_gib() {
    for size in [(5 << 30) + 17, (1 << 36) + 4096, MAX_MEM_SIZE] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.img");
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        let places = [0, 4096 * 64 - 1, (1 << 32) - 1, 1 << 32, size - 1];
        for at in places {
            file.write_all_at(&[at as u8 | 1], at).unwrap();
        }
        drop(file);
        let found = sparsify(&path, &SparsifyOptions::default()).unwrap();
        let map = found.into_map(ImageId::random());
        let image = Image::with_map(&path, map).unwrap();
        let mut archive = Vec::new();
        pack(&image, &mut archive, &PackOptions::default()).unwrap();
        assert!(archive.len() < 64 * 1024, "{} bytes", archive.len());

        let archive = Archive::open(archive).unwrap();
        assert_eq!(archive.map(), image.map());
        let out = File::create_new(dir.path().join("again.img")).unwrap();
        archive.unpack(&out, Work::default()).unwrap();
        let out = File::open(dir.path().join("again.img")).unwrap();
        let meta = out.metadata().unwrap();
        assert_eq!(meta.len(), size);
        assert!(meta.blocks() * 512 < 1 << 20, "it is not sparse");
        for at in places {
            let mut byte = [0];
            out.read_exact_at(&mut byte, at).unwrap();
            assert_eq!(byte, [at as u8 | 1], "at {at} of {size}");
        }
        let again = sparsify(&dir.path().join("again.img"), &SparsifyOptions::default()).unwrap();
        assert_eq!(again.states(), image.map().states());
    }
}
