//! Makes checksums right, so that a fuzzer reaches what lies behind them. Offsets are those of
//! `FORMAT.md`; what does not lie within the bytes is left as it is.

pub mod archive;

use rouse_snapshot_format::PAGE;

/// The field of four bytes at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The field of eight bytes at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Puts `field` at `at`, if it has room there.
pub fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..field.len())) {
        place.copy_from_slice(field);
    }
}

/// Puts the CRC-32C of all but the last four bytes there.
pub fn crc_at_end(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(4) {
        let crc = crc32c::crc32c(&bytes[..end]);
        put(bytes, end, &crc.to_le_bytes());
    }
}

/// How many pages are DATA, ZERO and PARENT by two bitmaps.
fn counts(mem_size: u64, data: &[u8], zero: &[u8]) -> [u64; 3] {
    let ones = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
    let (data, zero) = (ones(data), ones(zero));
    [data, zero, mem_size.div_ceil(PAGE).wrapping_sub(data).wrapping_sub(zero)]
}

/// Seals a map: magic bytes, version, the checksums of sections and header, and with `counted` the
/// numbers of pages.
pub fn map(bytes: &mut [u8], counted: bool) {
    const TABLE: usize = 112;
    const ENTRY: usize = 32;
    put(bytes, 0, b"ROUSEMAP\x01\0");
    let Some(header_len) = u32_at(bytes, 12).map(|length| length as usize) else { return };
    let lines = bytes.get(42).copied().unwrap_or(0);
    let mut bitmaps = [0..0, 0..0];
    for line in (0..usize::from(lines)).map(|line| TABLE + line * ENTRY) {
        let place = |field| Some(usize::try_from(u64_at(bytes, line + field)?).unwrap());
        let (Some(offset), Some(length)) = (place(8), place(16)) else { break };
        let section = offset..offset.saturating_add(length);
        let Some(of) = bytes.get(section.clone()) else { continue };
        let crc = crc32c::crc32c(of).to_le_bytes();
        if let Some(kind @ (1 | 2)) = u32_at(bytes, line) {
            bitmaps[kind as usize - 1] = section;
        }
        // A section may lie over the table itself; then the later line has the last word.
        put(bytes, line + 4, &crc);
    }
    if counted && let Some(mem_size) = u64_at(bytes, 48) {
        let [data, zero] = bitmaps.map(|place| bytes[place].to_vec());
        for (number, count) in counts(mem_size, &data, &zero).into_iter().enumerate() {
            put(bytes, 88 + number * 8, &count.to_le_bytes());
        }
    }
    if let Some(header) = bytes.get_mut(..header_len) {
        crc_at_end(header);
    }
}
