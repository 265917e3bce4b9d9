//! Facts as text and as JSON.

use rouse_snapshot_format::PAGE;
use serde_json::{Value, json};

use super::facts::{Disk, Facts, Stored};
use super::picture;
use crate::text::{percent, ratio, size};

/// How many windows of the working set are named.
const NAMED: usize = 8;

/// For people.
pub(crate) fn text(facts: &Facts, colour: bool) -> String {
    let (map, counts) = (&facts.map, facts.map.counts());
    let share = |name: &str, pages: u64| {
        let percent = percent(pages, map.pages());
        format!("{name:<12}{pages:>10} pages  {percent:5.1} %  {:>10}", size(pages * PAGE))
    };
    let mut lines = vec![format!("{:<12}{}", "image", map.image_id())];
    if let Some(parent) = map.parent() {
        lines.push(format!("{:<12}{parent}", "layer over"));
    }
    lines.push(format!(
        "{:<12}{} in {} pages, {} windows of {} KiB",
        "size",
        size(map.mem_size()),
        map.pages(),
        map.windows(),
        map.window_size().bytes() / 1024
    ));
    lines.push(format!(
        "{}  {} runs in {} windows",
        share("data", counts.data),
        facts.data_runs,
        facts.windows_with_data
    ));
    lines.push(share("zero", counts.zero));
    if map.parent().is_some() {
        lines.push(share("parent", counts.parent));
    }
    let checksums = if map.has_checksums() { "of every window" } else { "none" };
    lines.push(format!("{:<12}{checksums}", "checksums"));
    lines.push(format!("{:<12}{}", "working set", working_set(facts)));
    if let Some(stored) = &facts.archive {
        lines.extend(archive(facts, stored));
    }
    if let Some(disk) = facts.disk {
        lines.push(format!("{:<12}{}", "on disk", on_disk(facts, disk)));
    }
    lines.extend(picture::lines(map, &facts.working_set.order, colour));
    lines.join("\n")
}

fn working_set(facts: &Facts) -> String {
    let set = &facts.working_set;
    if facts.map.working_set_dropped() {
        return "damaged and left out; the next wake records another".to_owned();
    }
    if set.order.is_empty() {
        return "none".to_owned();
    }
    let first: Vec<_> = set.order.iter().take(NAMED).map(u32::to_string).collect();
    let more = if set.order.len() > NAMED { ", …" } else { "" };
    let wakes = if set.wakes == 1 { "1 wake".to_owned() } else { format!("{} wakes", set.wakes) };
    format!(
        "{} windows, {} with {} of data, from {wakes}: {}{more}",
        set.order.len(),
        size(set.bytes),
        size(set.data_bytes),
        first.join(", ")
    )
}

fn archive(facts: &Facts, stored: &Stored) -> Vec<String> {
    let to_one = |all: u64| ratio(all, stored.bytes).unwrap_or_default();
    let mut lines = vec![format!(
        "{:<12}{} of zstd: {:.2}:1 to its data, {:.2}:1 to the image's size",
        "archive",
        size(stored.bytes),
        to_one(facts.data_bytes),
        to_one(facts.map.mem_size()),
    )];
    let Some((length, window)) = stored.largest else {
        return lines;
    };
    lines.push(format!(
        "{:<12}{} with {}, the largest {} (window {window})",
        "frames",
        stored.frames,
        size(stored.frame_bytes),
        size(length.into()),
    ));
    if stored.working_set_frames > 0 {
        lines.push(format!(
            "{:<12}the first {} are the working set's: {}, {:.1} %",
            "",
            stored.working_set_frames,
            size(stored.working_set_bytes),
            percent(stored.working_set_bytes, stored.frame_bytes)
        ));
    }
    lines
}

fn on_disk(facts: &Facts, disk: Disk) -> String {
    let mut text = format!("{} allocated", size(disk.allocated));
    if disk.size != facts.map.mem_size() {
        text += &format!(", and {} long: this is not the map's image", size(disk.size));
        return text;
    }
    text += &format!(" ({:.1} % of its size)", percent(disk.allocated, disk.size));
    let more = disk.allocated.saturating_sub(facts.data_bytes);
    // Below a window it is what filesystems round up to.
    if more >= facts.map.window_size().bytes() {
        text += &format!(", {} more than its data", size(more));
        if facts.map.parent().is_none() {
            text += "; `rouse-snapshot sparsify` gives back what it can";
        }
    } else if disk.allocated + facts.map.window_size().bytes() <= facts.data_bytes {
        text += ", less than its data: the filesystem compresses, or the map is of another image";
    }
    text
}

/// For programs. Names stay; sizes are in bytes.
pub(crate) fn json(facts: &Facts) -> Value {
    let (map, counts, set) = (&facts.map, facts.map.counts(), &facts.working_set);
    let mut json = json!({
        "kind": facts.kind,
        "path": facts.path,
        "image_id": map.image_id().to_hex(),
        "parent": map.parent().map(|id| id.to_hex()),
        "mem_size": map.mem_size(),
        "page_size": PAGE,
        "window_size": map.window_size().bytes(),
        "windows": map.windows(),
        "windows_with_data": facts.windows_with_data,
        "pages": {
            "all": map.pages(),
            "data": counts.data,
            "zero": counts.zero,
            "parent": counts.parent,
        },
        "data_bytes": facts.data_bytes,
        "data_runs": facts.data_runs,
        "checksums": map.has_checksums(),
        "working_set": {
            "wakes": set.wakes,
            "windows": set.order.len(),
            "bytes": set.bytes,
            "data_bytes": set.data_bytes,
            "order": set.order,
            "damaged": map.working_set_dropped(),
        },
    });
    if let Some(stored) = &facts.archive {
        json["archive"] = json!({
            "codec": "zstd",
            "bytes": stored.bytes,
            "data_to_bytes": ratio(facts.data_bytes, stored.bytes),
            "mem_size_to_bytes": ratio(map.mem_size(), stored.bytes),
            "frames": stored.frames,
            "frame_bytes": stored.frame_bytes,
            "largest_frame": stored.largest.map(|(bytes, window)| json!({
                "bytes": bytes,
                "window": window,
            })),
            "working_set_frames": stored.working_set_frames,
            "working_set_bytes": stored.working_set_bytes,
        });
    }
    if let Some(disk) = facts.disk {
        json["disk"] = json!({
            "size": disk.size,
            "allocated": disk.allocated,
            "allocated_to_data": ratio(disk.allocated, facts.data_bytes),
            "allocated_to_mem_size": ratio(disk.allocated, map.mem_size()),
        });
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::map;
    use std::path::Path;

    fn facts() -> Facts {
        Facts::new(
            "image",
            Path::new("m.img"),
            map(300 * PAGE, [0].into_iter().chain(200..250), &[3, 0]),
        )
    }

    #[test]
    fn json_has_what_scripts_need() {
        let json = json(&facts());
        assert_eq!(json["kind"], "image");
        assert_eq!(json["pages"]["data"], 51);
        assert_eq!(json["pages"]["zero"], 249);
        assert_eq!(json["mem_size"], 300 * PAGE);
        assert_eq!(json["parent"], Value::Null);
        assert_eq!(json["data_runs"], 2);
        assert_eq!(json["windows_with_data"], 2);
        assert_eq!(json["checksums"], false);
        assert_eq!(json["working_set"]["order"], json!([3, 0]));
        assert_eq!(json["disk"], Value::Null);
    }

    #[test]
    fn text_says_what_people_ask() {
        let mut facts = facts();
        let text = |facts: &Facts| text(facts, false);
        let said = text(&facts);
        for part in ["1111", "300 pages, 5 windows of 256 KiB", "51 pages", "2 windows, 512.0 KiB"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("parent") && !said.contains("on disk"), "{said}");
        let full = 300 * PAGE;
        facts.disk = Some(Disk { size: full, allocated: full });
        assert!(text(&facts).contains("996.0 KiB more than its data; `rouse-snapshot sparsify`"));
        facts.disk = Some(Disk { size: full, allocated: 51 * PAGE });
        assert!(text(&facts).contains("204.0 KiB allocated (17.0 % of its size)\n"));
        facts.disk = Some(Disk { size: full + 1, allocated: 0 });
        assert!(text(&facts).contains("not the map's image"));
    }
}
