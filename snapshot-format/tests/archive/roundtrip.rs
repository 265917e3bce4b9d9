//! Pack, then unpack.

use std::io::Read;

use proptest::prelude::*;
use rouse_snapshot_format::{
    Archive, Decoder, PackError, PackOptions, PageState, Progress, ReadWindowError, UnpackError,
    WindowSize, Work, pack,
};

use crate::images::{
    Fixture, WINDOW, WINDOW_BYTES, any_bytes, layer, read_all, small, threads, unpacked,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn what_is_packed_is_unpacked(
        bytes in any_bytes(),
        shift in 16_u8..=19,
        level in 1_i32..4,
        workers in 1_usize..4,
        touched in prop::collection::vec(0_u32..20, 0..10),
    ) {
        let window = WindowSize::from_shift(shift).unwrap();
        let image = Fixture::new(bytes, window).with_working_set(&touched);
        let options = PackOptions { level, work: threads(workers) };
        let (file, packed) = image.pack_with(&options);
        let archive = Archive::open(&file).unwrap();
        prop_assert_eq!(archive.map(), &image.map);
        prop_assert_eq!(packed.frames, archive.index().frames() as u64);
        prop_assert_eq!(packed.index_blake3, archive.index().blake3());
        prop_assert_eq!(archive.size(), file.len() as u64);
        archive.verify(threads(workers)).unwrap();
        prop_assert!(unpacked(&archive) == image.bytes, "the image is another");

        // The same archive whoever makes it: content can be told by its hash.
        let again = image.pack_with(&PackOptions { level, work: threads(1) });
        prop_assert!(again.0 == file);
    }

    #[test]
    fn every_window_can_be_read_by_itself(bytes in any_bytes()) {
        let image = Fixture::new(bytes, WINDOW);
        let file = image.pack();
        let archive = Archive::open(file).unwrap();
        let mut decoder = Decoder::new().unwrap();
        for window in (0..archive.map().windows()).rev() {
            let place = archive.map().window_bytes(window);
            let mut out = vec![0xaa; (place.end - place.start) as usize];
            archive.read_window(window, &mut decoder, &mut out).unwrap();
            prop_assert!(out == image.bytes[place.start as usize..place.end as usize]);
        }
        let windows = archive.map().windows();
        let unknown = archive.read_window(windows, &mut decoder, &mut []).unwrap_err();
        let expected = matches!(unknown, ReadWindowError::Unknown { window, .. } if window == windows);
        prop_assert!(expected, "{unknown}");
    }
}

#[test]
fn the_smallest_images() {
    for bytes in [vec![], vec![0], vec![7], vec![0; 4096], vec![9; 4097], vec![1; WINDOW_BYTES + 1]]
    {
        let image = Fixture::new(bytes, WINDOW);
        let file = image.pack();
        let archive = Archive::open(&file).unwrap();
        archive.verify(Work::default()).unwrap();
        assert_eq!(unpacked(&archive), image.bytes);
        assert_eq!(archive.map(), &image.map);
    }
}

#[test]
fn a_layer_keeps_what_its_parent_has() {
    let dir = tempfile::tempdir().unwrap();
    let (image, bytes) = layer(dir.path());
    let mut file = Vec::new();
    pack(&image, &mut file, &PackOptions::default()).unwrap();
    let archive = Archive::open(&file).unwrap();
    assert_eq!(archive.map().states(), image.map().states());
    assert_eq!(archive.map().parent(), image.map().parent());
    // What is not DATA is a hole.
    assert!(unpacked(&archive) == bytes);

    let mut decoder = Decoder::new().unwrap();
    let mut out = vec![0xaa; WINDOW_BYTES];
    archive.read_window(0, &mut decoder, &mut out).unwrap();
    for (page, bytes) in out.chunks(4096).enumerate() {
        let wanted = match archive.map().state(page as u64).unwrap() {
            PageState::Data => page as u8,
            PageState::Zero => 0,
            PageState::Parent => 0xaa,
        };
        assert!(bytes.iter().all(|byte| *byte == wanted), "page {page}");
    }
}

#[test]
fn other_zstd_decoders_read_it() {
    let image = small();
    let file = image.pack();
    let archive = Archive::open(&file).unwrap();
    let wanted: Vec<u8> = (0..archive.index().frames())
        .flat_map(|n| image.packed(archive.index().frame(n).unwrap().window.into()))
        .collect();
    // As a stream of frames, with the checksums that zstd itself knows.
    let plain = zstd::stream::decode_all(file.as_slice()).unwrap();
    assert!(plain == wanted);
    // As a seekable file, from the middle.
    let mut seekable = zeekstd::Decoder::new(std::io::Cursor::new(&file)).unwrap();
    seekable.set_offset(5000).unwrap();
    let mut rest = Vec::new();
    seekable.read_to_end(&mut rest).unwrap();
    assert!(rest == wanted[5000..]);

    let mut wrong = file.clone();
    let frame = archive.index().frame(1).unwrap();
    wrong[(frame.offset + u64::from(frame.length)) as usize - 1] ^= 1;
    assert!(zstd::stream::decode_all(wrong.as_slice()).is_err(), "zstd's own checksum");
}

#[test]
fn an_image_that_is_not_what_its_map_says_is_not_packed() {
    let image = small();
    let window = 1;
    let page =
        image.map.pages_of(window).find(|p| image.map.state(*p) == Ok(PageState::Data)).unwrap();
    let mut changed = image.bytes.clone();
    changed[page as usize * 4096] ^= 1;
    std::fs::write(image.path(), &changed).unwrap();
    let error = pack(&image.image(), Vec::new(), &PackOptions::default()).unwrap_err();
    assert!(matches!(error, PackError::Changed { window: 1, offset: 65536 }), "{error}");

    let zero = image.map.pages_of(2).find(|p| image.map.state(*p) == Ok(PageState::Zero)).unwrap();
    let mut changed = image.bytes.clone();
    changed[zero as usize * 4096 + 4095] = 1;
    std::fs::write(image.path(), &changed).unwrap();
    let error = pack(&image.image(), Vec::new(), &PackOptions::default()).unwrap_err();
    assert!(matches!(&error, PackError::Zeros(_)), "{error}");
    assert!(error.to_string().contains(&(zero * 4096).to_string()), "{error}");
}

#[test]
fn a_full_disk_is_told_with_the_offset() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            let some = bytes.len().min(self.0);
            self.0 -= some;
            Ok(some)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let image = small();
    let length = image.pack().len();
    for room in (0..length).step_by(211) {
        let error = pack(&image.image(), Full(room), &PackOptions::default()).unwrap_err();
        let expected = matches!(&error, PackError::Write { source, offset }
            if source.kind() == std::io::ErrorKind::StorageFull && *offset <= room as u64);
        assert!(expected, "{room}: {error}");
    }
    pack(&image.image(), Full(length), &PackOptions::default()).unwrap();
}

#[test]
fn a_file_with_something_in_it_is_not_unpacked_into() {
    let file = small().pack();
    let archive = Archive::open(&file).unwrap();
    let mut full = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut full, b"mine").unwrap();
    let error = archive.unpack(&full, Work::default()).unwrap_err();
    assert!(matches!(error, UnpackError::NotEmpty(4)), "{error}");
    assert_eq!(read_all(&mut full), b"mine");
}

#[test]
fn progress_is_told_and_cancelling_ends_it() {
    let image = small();
    let progress = Progress::new();
    let work = Work { threads: None, progress: Some(&progress) };
    let (file, _) = image.pack_with(&PackOptions { work, ..Default::default() });
    assert_eq!(progress.total(), image.map.counts().data * 4096);
    // The image's last page is cut short.
    assert!(progress.done().abs_diff(progress.total()) < 4096);

    progress.cancel();
    let options = PackOptions { work, ..Default::default() };
    let error = pack(&image.image(), Vec::new(), &options).unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
    let archive = Archive::open(&file).unwrap();
    let error = archive.unpack(&tempfile::tempfile().unwrap(), work).unwrap_err();
    assert!(matches!(error, UnpackError::Cancelled(_)), "{error}");
    assert!(archive.verify(work).is_err());
}
