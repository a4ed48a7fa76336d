#!/usr/bin/env python3
"""test_check_macho.py PROGRAM --min V --sdk V --symbols STUB: does check_macho.py see what is wrong?

Plants one fault at a time into a copy of PROGRAM, which must be a right one, and expects the check
whose matter it is to object. The last line is "N passed, N failed".
"""

import argparse
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_macho as m  # noqa: E402


def put(data, at, fmt, *values):
    struct.pack_into(fmt, data, at, *values)


def command(data, kind):
    return m.only(m.commands(data), kind, "it")[1]


def field(kind, off, value):
    return lambda d: put(d, command(d, kind) + off, "<I", value)


def header(off, value):
    return lambda d: put(d, off, "<I", value)


def clear_flag(bit):
    return lambda d: put(d, 24, "<I", struct.unpack_from("<I", d, 24)[0] & ~bit)


def dylib(d):
    """Another library in place of libSystem."""
    at = next(at for kind, at, _ in m.commands(d) if kind in m.DYLIB_KINDS)
    name = b"/opt/lib/libyajl.2.dylib\0"
    d[at + 24:at + 24 + len(name)] = name


def rename_import(d):
    at = command(d, m.SYMTAB)
    off, n, names, _ = struct.unpack_from("<IIII", d, at + 8)
    for i in range(n):
        name, kind = struct.unpack_from("<IB", d, off + 16 * i)
        if kind & 0xE0 == 0 and kind & 0xF == 1:
            d[names + name + 1] = ord("0")
            return


def segment_flags(d):
    at = next(at for kind, at, _ in m.commands(d) if kind == m.SEGMENT and m.text_at(d, at + 8, at + 24) == "__TEXT")
    put(d, at + 56, "<II", 7, 7)


def change_code(d):
    d[m.PAGE * 4] ^= 1


PLANTED = (
    ("another CPU", "header", header(4, 0x01000007)),
    ("a library instead of a program", "header", header(12, 6)),
    ("not position independent", "header", clear_flag(m.FLAG_PIE)),
    ("SDK 14.5: Metal without tensors", "build", field(m.BUILD, 16, 0x000E0500)),
    ("SDK left out", "build", field(m.BUILD, 16, 0)),
    ("a later system demanded", "build", field(m.BUILD, 12, 0x001A0400)),
    ("for iOS", "build", field(m.BUILD, 8, 2)),
    ("no LC_BUILD_VERSION", "build", field(m.BUILD, 0, 0x26)),
    ("no LC_MAIN", "start", field(m.MAIN, 0, 0x26)),
    ("a library of Homebrew", "dylibs", dylib),
    ("writable code", "segments", segment_flags),
    ("not signed", "signature", field(m.SIGNATURE, 0, 0x26)),
    ("changed after it was signed", "signature", change_code),
    ("an import that macOS lacks", "imports", rename_import),
    ("cut short", "segments", lambda d: d.__delitem__(slice(len(d) - 4096, None))),
    ("the folder of the build", "texts", lambda d: d.__setitem__(slice(len(d) - 64, len(d) - 64 + 8), b"/planted")),
)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    for name in ("min", "sdk", "symbols"):
        p.add_argument("--" + name, required=True)
    args = p.parse_args()
    args.not_in = ["/planted"]
    with open(args.program, "rb") as f:
        right = f.read()
    for check in m.CHECKS:
        check(right, m.commands(right), args)
    passed = 0
    for what, name, plant in PLANTED:
        data = bytearray(right)
        plant(data)
        try:
            getattr(m, "check_" + name)(bytes(data), m.commands(data), args)
            print(f"FAIL: {what}: check_{name} did not object")
        except (m.Bad, struct.error) as e:
            print(f"{what}: {e}")
            passed += 1
    print(f"{passed} passed, {len(PLANTED) - passed} failed")
    return 0 if passed == len(PLANTED) else 1


if __name__ == "__main__":
    sys.exit(main())
