//! `rouse-snapshot` as people and scripts see it: the program itself, on real files.
#![allow(clippy::unwrap_used)]

mod archives;
mod inspecting;
mod layers;
mod pipes;
mod reader;
mod refusals;
mod signals;
mod sparsifying;
mod terminal;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rouse_snapshot_format::{Map, PAGE};
use tempfile::TempDir;

/// A directory, and the program run in it.
struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn map(&self, name: &str) -> Map {
        Map::open(self.path(name)).unwrap()
    }

    /// The program with the arguments in `line`, which blanks part.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rouse-snapshot"));
        command.args(line.split_whitespace()).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// What it says when all is well.
    fn good(&self, line: &str) -> String {
        let output = self.command(line).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.is_empty(), "{line}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// It fails with `code`, and what it says has `words`.
    fn refused(&self, line: &str, code: i32, words: &str) {
        let Output { status, stderr, .. } = self.command(line).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(code), "{line}: {said}");
        assert!(said.starts_with("rouse-snapshot: ") && said.contains(words), "{line}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }

    /// The names of all files, also hidden ones, and what is in them.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    fn names(&self) -> Vec<String> {
        self.files().into_iter().map(|(name, _)| name).collect()
    }

    /// Writes an image: `pages` pages of zeros, but for those in `data`.
    fn image(&self, name: &str, pages: u64, data: impl IntoIterator<Item = u64>) {
        let mut bytes = vec![0; (pages * PAGE) as usize];
        for page in data {
            fill(&mut bytes[(page * PAGE) as usize..][..PAGE as usize], page);
        }
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Changes a byte of a file.
    fn damage(&self, name: &str, at: usize) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        bytes[at] ^= 1;
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Gives a map a read-only feature that nobody knows yet (`FORMAT.md`, ro_compat).
    fn later(&self, name: &str) {
        let mut bytes = self.bytes(name);
        bytes[24] = 2;
        let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let crc = crc32c::crc32c(&bytes[..length - 4]).to_le_bytes();
        bytes[length - 4..length].copy_from_slice(&crc);
        fs::write(self.path(name), bytes).unwrap();
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }
}

/// Bytes of few kinds, which compress as a guest's memory does; none is zero.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = b"rouse wakes apps"[(state % 16) as usize];
    }
}

/// A program that a test compares with must be on the path: a test that says nothing without it
/// would pass.
fn needed(program: &str) {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&paths).any(|dir| dir.join(program).is_file());
    assert!(there, "{program} is not installed; `./dev setup` installs it");
}

/// What a program says of `input`, which must be that all is well.
fn filter(program: &str, args: &[&str], input: &Path) -> Vec<u8> {
    needed(program);
    let mut child = Command::new(program)
        .args(args)
        .stdin(fs::File::open(input).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{program} {args:?}");
    said
}
