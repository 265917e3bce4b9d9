#!/usr/bin/env python3
"""Restores an image from an archive (.rsz), by FORMAT.md alone: reader.py FILE.rsz OUT.img

Prints what the archive says of the image as JSON. Python's standard library and the zstd program
are all it needs, so it does not check CRC-32C, BLAKE3 and XXH3; zstd checks its own checksums.
"""
import json, struct, subprocess, sys

def zstd(*arguments, data=None):
    return subprocess.run(["zstd", "-dcq", *arguments], input=data, stdout=subprocess.PIPE, check=True).stdout

def need(what, condition):
    if not condition:
        sys.exit(f"{sys.argv[1]}: {what}")

data = open(sys.argv[1], "rb").read()
# From the end: the seek table's last nine bytes, its entries, and by the last of them the index.
entries, descriptor, magic = struct.unpack_from("<IBI", data, len(data) - 9)
need("no seek table", magic == 0x8F92EAB1 and descriptor & 0x80 == 0)
table = len(data) - 9 - entries * 8
sizes = [struct.unpack_from("<II", data, table + number * 8) for number in range(entries)]
index_start = sum(compressed for compressed, _ in sizes[:-1])
magic, length = struct.unpack_from("<II", data, index_start)
index = data[index_start + 8 : index_start + 8 + length]
need("no index", magic == 0x184D2A51 and index[:8] == b"ROUSEIDX")

header_len, frames, first, states_len, set_len = struct.unpack_from("<5I", index, 8)
counts = struct.unpack_from("<3Q", index, 32)
header = index[64 : 64 + header_len]
major, minor, _, incompat = struct.unpack_from("<HHIQ", header, 8)
page_shift, window_shift, codec = header[40:43]
need("not made for this reader", header[:8] == b"ROUSEARC" and (major, incompat, codec) == (1, 0, 1))
mem_size, = struct.unpack_from("<Q", header, 48)

page, pages, at = 1 << page_shift, -(-mem_size >> page_shift), 64 + header_len
states = zstd(data=index[at : at + states_len])
words = -(-pages // 64)
bitmap = int.from_bytes(states[: words * 8], "little")
zero = int.from_bytes(states[words * 8 : words * 16], "little")
need("bitmaps and counts differ", (bitmap.bit_count(), zero.bit_count()) == counts[:2])
at += states_len + set_len
windows = struct.unpack_from(f"<{frames}I", index, at)
lengths = struct.unpack_from(f"<{frames}I", index, at + frames * 4)
need("seek table and index differ", [size for size, _ in sizes[1:-1]] == list(lengths))

# Decompressed as a whole, the file is the DATA pages of the frames' windows, one after the other.
packed = memoryview(zstd(sys.argv[1]))
with open(sys.argv[2], "wb") as image:
    image.truncate(mem_size)
    for window in windows:
        in_window = 1 << (window_shift - page_shift)
        for number in range(window * in_window, min((window + 1) * in_window, pages)):
            if bitmap >> number & 1:
                image.seek(number * page)
                size = min(page, mem_size - number * page)
                image.write(packed[:size])
                packed = packed[size:]
need("the frames hold more than the DATA pages", not packed)
print(json.dumps({"image_id": header[56:72].hex(), "mem_size": mem_size, "frames": frames,
    "working_set_frames": first, "pages": dict(zip(("data", "zero", "parent"), counts))}))
