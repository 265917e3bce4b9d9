//! Where the programs under test and the guest are.

use std::path::{Path, PathBuf};

/// The programs under test and the guest they run.
#[derive(Clone, Debug)]
pub struct Binaries {
    dir: PathBuf,
    guest: PathBuf,
}

impl Binaries {
    /// From `ROUSE_BIN_DIR` and `ROUSE_GUEST_DIR`, or else beside the program that runs (a test
    /// in `target/debug/deps` finds those in `target/debug`) and in `target/guest`.
    ///
    /// Panics, saying what to run, when one is missing: a test that can't test has failed.
    pub fn find() -> Self {
        let var = |name| std::env::var_os(name).map(PathBuf::from);
        let dir = var("ROUSE_BIN_DIR").unwrap_or_else(beside_this_program);
        Self::at(dir, var("ROUSE_GUEST_DIR").unwrap_or_else(default_guest))
    }

    /// Those in `dir`, with the guest in `guest`. Panics like [`Self::find`].
    pub fn at(dir: impl Into<PathBuf>, guest: impl Into<PathBuf>) -> Self {
        let found = Self { dir: absolute(&dir.into()), guest: absolute(&guest.into()) };
        for file in [found.waker(), found.proxy(), found.kernel(), found.initrd()] {
            assert!(
                file.is_file(),
                "{} is missing: run `./dev test`, which builds what the tests need",
                file.display()
            );
        }
        found
    }

    /// The directory of the binaries.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `rouse-waker`.
    pub fn waker(&self) -> PathBuf {
        self.dir.join("rouse-waker")
    }

    /// `rouse-proxy`.
    pub fn proxy(&self) -> PathBuf {
        self.dir.join("rouse-proxy")
    }

    /// An example of ours. Panics like [`Self::find`] when it is missing.
    pub fn example(&self, name: &str) -> PathBuf {
        let path = self.dir.join("examples").join(name);
        assert!(
            path.is_file(),
            "{} is missing: run `./dev test`, which builds what the tests need",
            path.display()
        );
        path
    }

    /// The guest's kernel.
    pub fn kernel(&self) -> PathBuf {
        self.guest.join("vmlinuz")
    }

    /// The guest's first file system, with the agent and the test app in it.
    pub fn initrd(&self) -> PathBuf {
        self.guest.join("initrd.cpio.gz")
    }

    /// Where what outlives one test is kept: `target/tmp`, when the binaries are in a target
    /// directory.
    pub(crate) fn kept(&self) -> PathBuf {
        self.dir.parent().unwrap_or(&self.dir).join("tmp")
    }
}

fn beside_this_program() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut dir = program.parent().unwrap_or(Path::new(".")).to_owned();
    if dir.ends_with("deps") || dir.ends_with("examples") {
        dir.pop();
    }
    dir
}

fn default_guest() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).join("target/guest")
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
