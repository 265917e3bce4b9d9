//! `/disk`: the file system that the app's data is on.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use http::{Response, StatusCode};
use nix::sys::statvfs::{FsFlags, statvfs};
use serde_json::{Value, json};

use crate::answer::{self, Body};
use crate::error::Refusal;

/// Whether one is mounted at `data`, whether it takes writes, and its bytes.
pub(crate) fn answer(data: &Path) -> Result<Response<Body>, Refusal> {
    let value = look(data).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            Refusal::Missing(format!("no disk: there is no directory {}", data.display()))
        }
        _ => Refusal::Machine(format!("{}: {e}", data.display())),
    })?;
    Ok(answer::json(StatusCode::OK, &value))
}

fn look(data: &Path) -> io::Result<Value> {
    // The root of a file system is on another device than what it is mounted in.
    let mounted = data.metadata()?.dev() != data.join("..").metadata()?.dev();
    let stat = statvfs(data)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok(json!({
        "mounted": mounted,
        "writable": !stat.flags().contains(FsFlags::ST_RDONLY),
        "free_bytes": bytes(stat.blocks_available()),
        "size_bytes": bytes(stat.blocks()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_no_mount() {
        let directory = tempfile::tempdir().unwrap();
        let value = look(directory.path()).unwrap();
        assert_eq!((&value["mounted"], &value["writable"]), (&json!(false), &json!(true)));
        assert!(value["free_bytes"].as_u64() <= value["size_bytes"].as_u64());
        assert_eq!(look(Path::new("/proc")).unwrap()["mounted"], true);
        let missing = answer(&directory.path().join("data")).unwrap_err();
        assert_eq!(missing.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
