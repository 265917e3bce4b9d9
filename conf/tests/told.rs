//! Is everything in the README that dashboards, rules and clients go by?

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The string literals of a source file's code, without its tests, of these characters only.
fn literals(file: &str, fits: impl Fn(u8) -> bool) -> BTreeSet<String> {
    let source = read(file);
    let (code, _tests) = source.split_once("#[cfg(test)]").unwrap_or((&source, ""));
    let plain = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words = plain.flat_map(|line| line.split('"').skip(1).step_by(2)).filter(|word| {
        word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_lowercase() || fits(byte))
    });
    words.map(str::to_owned).collect()
}

/// What of `all` has no place in the README's tables.
fn untold(all: &BTreeSet<String>) -> Vec<&str> {
    let readme = read("README.md");
    let tables: Vec<_> = readme.lines().filter(|line| line.starts_with('|')).collect();
    let told = |word: &str| {
        let (plain, labelled) = (format!("`{word}`"), format!("`{word}{{"));
        tables.iter().any(|line| line.contains(&plain) || line.contains(&labelled))
    };
    all.iter().map(String::as_str).filter(|word| !told(word)).collect()
}

#[test]
fn every_metric_of_the_proxy() {
    let mut all = BTreeSet::new();
    for file in ["metrics", "door"] {
        let found = literals(&format!("proxy/src/{file}.rs"), |byte| byte == b'_');
        all.extend(found.into_iter().filter(|word| word.starts_with("rouse_")));
    }
    assert!(all.len() >= 20, "{all:?}");
    assert_eq!(untold(&all), Vec::<&str>::new());
}

#[test]
fn every_error_of_the_proxy() {
    let mut all = literals("proxy/src/answer.rs", |byte| byte == b'-');
    // Of headers, and no codes.
    for word in ["accept", "no-store"] {
        all.remove(word);
    }
    let denied = literals("proxy/policy/src/denied.rs", |byte| byte == b'-');
    all.extend(denied.into_iter().filter(|word| word.starts_with("wake-")));
    assert!(all.len() >= 20, "{all:?}");
    assert_eq!(untold(&all), Vec::<&str>::new());
}
