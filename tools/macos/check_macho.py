#!/usr/bin/env python3
"""check_macho.py --min 14.0 --sdk 26.4 --symbols libSystem.tbd [--not-in TEXT] FILE...

Reads a program for arm64 macOS back: its kind, the load commands that decide whether and how it
starts (the oldest system, the SDK that Metal goes by, the signature), what it is linked with, and
that every symbol it imports is one of libSystem's. TEXT, such as the folder of the build, must not
occur in it. Python's standard library only. The last line is "N passed, N failed".
"""

import argparse
import hashlib
import re
import struct
import sys

MAGIC, ARM64, EXECUTE = 0xFEEDFACF, 0x0100000C, 2
FLAG_NOUNDEFS, FLAG_DYLDLINK, FLAG_TWOLEVEL, FLAG_PIE = 0x1, 0x4, 0x80, 0x200000
REQ = 0x80000000
SEGMENT, SYMTAB, DYLIB_KINDS = 0x19, 0x2, {0xC, 0xD, 0x18 | REQ, 0x1F | REQ, 0x20, 0x23 | REQ}
SIGNATURE, BUILD, RPATH, MAIN, UUID, DYLINKER, ENCRYPTION = (
    0x1D, 0x32, 0x1C | REQ, 0x28 | REQ, 0x1B, 0xE, 0x2C)
MACOS = 1
LIBSYSTEM = "/usr/lib/libSystem.B.dylib"
PAGE = 0x4000


class Bad(Exception):
    pass


def text_at(data, at, end):
    stop = data.find(b"\0", at, end)
    return data[at:stop if stop >= 0 else end].decode("utf-8", "replace")


def version(v):
    return f"{v >> 16}.{v >> 8 & 255}" + (f".{v & 255}" if v & 255 else "")


def commands(data):
    """(kind, offset, size) of each load command."""
    if len(data) < 32 or struct.unpack_from("<I", data)[0] != MAGIC:
        raise Bad("expected a 64-bit Mach-O file, found something else")
    n, size = struct.unpack_from("<II", data, 16)
    at, end, out = 32, 32 + size, []
    for _ in range(n):
        kind, length = struct.unpack_from("<II", data, at)
        if length < 8 or length % 8 or at + length > end or end > len(data):
            raise Bad("its load commands do not add up")
        out.append((kind, at, length))
        at += length
    if at != end:
        raise Bad("its load commands do not add up")
    return out


def only(cmds, kind, name):
    found = [c for c in cmds if c[0] == kind]
    if len(found) != 1:
        raise Bad(f"expected one {name}, found {len(found)}")
    return found[0]


def check_header(data, _cmds, _args):
    cpu, sub, kind = struct.unpack_from("<III", data, 4)
    flags = struct.unpack_from("<I", data, 24)[0]
    if cpu != ARM64 or sub & 0xFFFFFF != 0:
        raise Bad(f"expected arm64, found CPU type {cpu:#x}.{sub}")
    if kind != EXECUTE:
        raise Bad(f"expected a program (file type 2), found file type {kind}")
    for bit, name in ((FLAG_PIE, "PIE"), (FLAG_DYLDLINK, "DYLDLINK"), (FLAG_TWOLEVEL, "TWOLEVEL"),
                      (FLAG_NOUNDEFS, "NOUNDEFS")):
        if not flags & bit:
            raise Bad(f"expected the flag {name}, found flags {flags:#x}")


def check_build(data, cmds, args):
    _, at, _ = only(cmds, BUILD, "LC_BUILD_VERSION")
    platform, least, sdk = struct.unpack_from("<III", data, at + 8)
    if platform != MACOS:
        raise Bad(f"expected platform 1 (macOS), found {platform}")
    if version(least) != args.min:
        raise Bad(f"expected minos {args.min}, found {version(least)}")
    if version(sdk) != args.sdk:
        raise Bad(f"expected sdk {args.sdk}, found {version(sdk)}")


def check_start(data, cmds, _args):
    only(cmds, MAIN, "LC_MAIN")
    only(cmds, UUID, "LC_UUID")
    _, at, size = only(cmds, DYLINKER, "LC_LOAD_DYLINKER")
    name = text_at(data, at + struct.unpack_from("<I", data, at + 8)[0], at + size)
    if name != "/usr/lib/dyld":
        raise Bad(f"expected the loader /usr/lib/dyld, found {name}")


def check_dylibs(data, cmds, _args):
    names = [text_at(data, at + struct.unpack_from("<I", data, at + 8)[0], at + size)
             for kind, at, size in cmds if kind in DYLIB_KINDS]
    if names != [LIBSYSTEM]:
        raise Bad(f"expected {LIBSYSTEM} alone to be linked, found {', '.join(names) or 'nothing'}")
    if any(kind == RPATH for kind, _, _ in cmds):
        raise Bad("expected no run path, found one")


def check_segments(data, cmds, _args):
    """Inside the file, none both writable and executable, code readable at a page's boundary."""
    names = []
    for kind, at, _ in cmds:
        if kind != SEGMENT:
            continue
        name = text_at(data, at + 8, at + 24)
        addr, size, off, in_file = struct.unpack_from("<QQQQ", data, at + 24)
        most, first = struct.unpack_from("<II", data, at + 56)
        names.append(name)
        if off + in_file > len(data) or in_file > size:
            raise Bad(f"the segment {name} reaches past the end of the file")
        if addr % PAGE or off % PAGE:
            raise Bad(f"the segment {name} does not begin at a page of 16 KB")
        if most & 6 == 6 or first & 6 == 6:
            raise Bad(f"the segment {name} is writable and executable")
    if names[:2] != ["__PAGEZERO", "__TEXT"] or names[-1] != "__LINKEDIT":
        raise Bad(f"expected __PAGEZERO, __TEXT ... __LINKEDIT, found {', '.join(names)}")


def check_signature(data, cmds, _args):
    """An ad-hoc signature whose hashes are those of the file's pages."""
    _, at, _ = only(cmds, SIGNATURE, "LC_CODE_SIGNATURE")
    off, size = struct.unpack_from("<II", data, at + 8)
    if off + size != len(data) or size < 20:
        raise Bad("the signature is not at the end of the file")
    magic, _, n = struct.unpack_from(">III", data, off)
    if magic != 0xFADE0CC0 or n < 1:
        raise Bad(f"expected an embedded signature, found {magic:#x}")
    places = [struct.unpack_from(">II", data, off + 12 + 8 * i) for i in range(n)]
    at = off + dict(places).get(0, 0)
    magic, _, _, flags, hashes, _, n_special, n_pages, limit = struct.unpack_from(">9I", data, at)
    hash_size, hash_kind, _, page_bits = struct.unpack_from("4B", data, at + 36)
    if magic != 0xFADE0C02 or hash_kind != 2 or hash_size != 32:
        raise Bad("expected a code directory of SHA-256 hashes, found another kind")
    if not flags & 2:
        raise Bad(f"expected an ad-hoc signature, found flags {flags:#x}")
    if limit != off or n_special > 16 or n_pages != -(-limit >> page_bits):
        raise Bad("the signature does not cover the file")
    for i in range(n_pages):
        page = data[i << page_bits:min((i + 1) << page_bits, limit)]
        if hashlib.sha256(page).digest() != data[at + hashes + 32 * i:at + hashes + 32 * i + 32]:
            raise Bad(f"page {i} of the file is not what was signed")


def allowed(path):
    """The symbols of a text stub, whatever library of the system has them."""
    with open(path, encoding="utf-8") as f:
        stub = f.read()
    lists = re.findall(r"^ +(?:weak-|thread-local-)?symbols: +\[([^]]*)\]", stub, re.M)
    return {s.strip("'\"") for part in lists for s in re.split(r"[,\s]+", part) if s}


def imports(data, cmds):
    _, at, _ = only(cmds, SYMTAB, "LC_SYMTAB")
    off, n, names, n_names = struct.unpack_from("<IIII", data, at + 8)
    for i in range(n):
        name, kind, _, _, value = struct.unpack_from("<IBBHQ", data, off + 16 * i)
        if kind & 0xE0 == 0 and kind & 1 and kind & 0xE == 0 and value == 0:
            yield text_at(data, names + name, names + n_names)


def check_imports(data, cmds, args):
    found = set(imports(data, cmds))
    if not found:
        raise Bad("expected imported symbols, found none")
    strange = sorted(found - allowed(args.symbols))
    if strange:
        raise Bad(f"not in macOS {args.min}'s libSystem: {', '.join(strange[:10])}")


def check_texts(data, _cmds, args):
    for text in args.not_in:
        at = data.find(text.encode())
        if at >= 0:
            raise Bad(f"has {text!r} at {at:#x}: {text_at(data, at, at + 120)!r}")


CHECKS = (check_header, check_build, check_start, check_dylibs, check_segments, check_signature,
          check_imports, check_texts)


def main():
    p = argparse.ArgumentParser(description="checks a program for arm64 macOS")
    p.add_argument("--min", required=True)
    p.add_argument("--sdk", required=True)
    p.add_argument("--symbols", required=True)
    p.add_argument("--not-in", action="append", default=[])
    p.add_argument("files", nargs="+")
    args = p.parse_args()
    passed = failed = 0
    for path in args.files:
        with open(path, "rb") as f:
            data = f.read()
        bad = []
        for check in CHECKS:
            try:
                check(data, commands(data), args)
                passed += 1
            except (Bad, struct.error) as e:
                bad.append(f"{path}: {check.__name__[6:]}: {e}")
        failed += len(bad)
        print("\n".join(bad) if bad else
              f"{path}: arm64, macOS {args.min}, SDK {args.sdk}, signed, libSystem only, "
              f"{len(set(imports(data, commands(data))))} imports, {len(data)} bytes")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
