#!/usr/bin/env python3
"""check_metal_api.py: is what the Metal driver says what Apple's headers say?

Compares the table src/exec/gpu/metal/selectors.inc with facts from two public bindings: does a
receiver have the selector, how many arguments does it take and of which types, what does it give,
which values have the constants, who owns what the functions give.

  check_metal_api.py                            against tests/data/metal-api.txt
  check_metal_api.py --derive pyobjc=VERSION:DIR metal-cpp=VERSION:DIR
                                                prints those facts, of the table's names only;
                                                DIR: an unpacked wheel or the folder of the headers
  check_metal_api.py --against FILE             FILE instead of tests/data/metal-api.txt
  check_metal_api.py --plant                    is every kind of error in every row seen?

pyobjc has full types for what protocols have and the constants, but neither receivers nor the
setters of classes; metal-cpp has receivers too. A row that neither knows must be in KNOWN below
with its reason. Python's standard library only. The last line is "N passed, N failed".
"""

import argparse
import ast
import os
import re
import sys

TABLE = "src/exec/gpu/metal/selectors.inc"
FACTS = "tests/data/metal-api.txt"

# Our names of types as Objective-C encodes them. A typed pointer stands for any pointer to data.
TYPES = {
    "void": "v", "m_id": "@", "m_uint": "Q", "m_u64": "Q", "m_int": "q", "m_bool": "B",
    "m_str": "*", "m_data": "^v", "m_ptr": "^v", "m_error": "^@", "m_block": "@?", "double": "d",
    "uint8_t": "C", "m_size": "{QQQ}", "m_range": "{QQ}", "m_version": "{qqq}", "m_sel": ":",
}

# What no binding has, and where it is written down.
KNOWN = {
    "- objc_getClass @ *": "objc/runtime.h: id objc_getClass(const char *)",
    "- sel_registerName : *": "objc/runtime.h: SEL sel_registerName(const char *)",
    "- objc_autoreleasePoolPush ^v": "Clang's description of ARC's runtime: void *(void)",
    "- objc_autoreleasePoolPop v ^v": "Clang's description of ARC's runtime: void (void *)",
    "NSObject alloc @": "objc/NSObject.h: + (instancetype)alloc; metal-cpp has it as a template",
    "NSObject retain @": "objc/NSObject.h: - (instancetype)retain; metal-cpp has it as a template",
    "NSObject release v": "objc/NSObject.h: - (oneway void)release; metal-cpp has it as a template",
    "NSString stringWithUTF8String: @ *": "Apple's documentation: + (instancetype)"
                                          "stringWithUTF8String:(const char *)",
}
# Where pyobjc, which goes by the selector alone, means another class.
ANOTHER = {"MTLCommandBuffer status": "MTLIOCommandBuffer's is an NSInteger"}


# ---- The table -----------------------------------------------------------------------------------

def rows(text):
    """(macro, [arguments]) of each row, comments gone."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    out, at = [], 0
    for m in re.finditer(r"\b(LIBRARY|FUNCTION|CLASS|METHOD|CLASS_METHOD|VALUE)\(", text):
        if m.start() < at:
            continue
        inside, at = balanced(text, m.end())
        out.append((m.group(1), split(inside)))
    return out


def balanced(text, at):
    """What stands before the parenthesis that closes, and where that is."""
    depth, begin = 1, at
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[begin:at - 1], at


def split(text):
    """At the commas of the outermost level."""
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += {"(": 1, "<": 1, "{": 1, ")": -1, ">": -1, "}": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append(text[last:i].strip())
            last = i + 1
    parts.append(text[last:].strip())
    return [p for p in parts if p]


def signature(result, parameters):
    """Encoded result and parameters; those of methods without receiver and selector."""
    names = [p for p in split(parameters.strip()[1:-1]) if p != "void"]
    if names[:2] == ["m_id", "m_sel"]:
        names = names[2:]
    return " ".join(TYPES[n] for n in [result] + names)


def table(text):
    """(kind, receiver, name, what is said of it) of each row that can be compared."""
    out = []
    for macro, a in rows(text):
        if macro == "FUNCTION":
            out.append(("function", "-", a[1], signature(a[2], a[3])))
        elif macro == "CLASS":
            out.append(("class", "-", a[1], "-"))
        elif macro in ("METHOD", "CLASS_METHOD"):
            kind = "method" if macro == "METHOD" else "class-method"
            out.append((kind, a[0], a[2].strip('"'), signature(a[4], a[5])))
        elif macro == "VALUE":
            out.append(("value", "-", a[1], str(int(a[2], 0))))
    return out


# ---- pyobjc --------------------------------------------------------------------------------------

def encode(raw):
    """An encoding of the compiler, as pyobjc keeps it, in ours."""
    t = (raw.decode() if isinstance(raw, bytes) else raw).lstrip("nNoOrRV")
    if t in ("^t", "^c"):
        return "*"
    if t.startswith("{"):
        return "{" + t[t.index("=") + 1:]
    if t.startswith("^"):
        return "^@" if t == "^@" else "^v"
    return {"L": "Q", "l": "q", "Z": "B", "z": "C"}.get(t, t)


def pyobjc_methods(path):
    """selector -> encoding, of the metadata's calls r(class, selector, {...}) that are complete."""
    with open(path, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "r"):
            continue
        try:
            receiver, selector, about = (ast.literal_eval(a) for a in call.args)
        except ValueError:
            continue
        selector = selector.decode()
        arguments = about.get("arguments", {})
        n = selector.count(":")
        types = [about.get("retval", {}).get("type")]
        for i in range(2, n + 2):
            a = arguments.get(i, {})
            types.append(b"@?" if "callable" in a else a.get("type"))
        if all(types):
            yield receiver.decode(), selector, " ".join(encode(t) for t in types)


def pyobjc(folder):
    """Facts of the unpacked wheels below a folder."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "_metadata.py")
        if not os.path.exists(path):
            continue
        for receiver, selector, types in pyobjc_methods(path):
            yield "method", "-" if receiver == "NSObject" else receiver, selector, types
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for value in re.findall(r"[\"$]([A-Za-z0-9_]+)@(-?[0-9]+)(?=[\"$])", text):
            yield "value", "-", value[0], value[1]
        for function, types, rest in re.findall(
                r'"(MTL\w+)": \(\s*b"([^"]*)",\s*"",\s*(\{.*?\}),?\s*\)', text, re.S):
            owned = "retained\": True" in rest
            yield "function", "-", function, " ".join(types) + ("" if owned else " unowned")


# ---- metal-cpp -----------------------------------------------------------------------------------

PRIMITIVE = {
    "void": "v", "bool": "B", "double": "d", "CFTimeInterval": "d", "uint8_t": "C", "uint64_t": "Q",
    "NS::UInteger": "Q", "NS::Integer": "q", "UInteger": "Q", "Integer": "q", "MTL::Size": "{QQQ}",
    "NS::ErrorDomain": "@", "ErrorDomain": "@", "NS::Range": "{QQ}", "NS::OperatingSystemVersion": "{qqq}", "OperatingSystemVersion": "{qqq}",
    "std::uint64_t": "Q", "std::int64_t": "q", "uint32_t": "I", "std::uint32_t": "I", "uint16_t": "S", "NS::TimeInterval": "d", "MTL::Timestamp": "Q", "unsigned long long": "Q", "MTL::GPUAddress": "Q",
}


def apple_name(cpp):
    return cpp.replace("MTL::", "MTL").replace("NS::", "NS")


class MetalCpp:
    """The inline definitions of metal-cpp's headers."""

    def __init__(self, folder):
        self.selectors, self.enums, self.values, self.base = {}, {}, {}, {}
        self.texts = []
        for space in ("Foundation", "Metal"):
            for name in sorted(os.listdir(os.path.join(folder, space))):
                if name.endswith(".hpp"):
                    with open(os.path.join(folder, space, name), encoding="utf-8") as f:
                        self.texts.append(("NS" if space == "Foundation" else "MTL", f.read()))
        for space, text in self.texts:
            for accessor, selector in re.findall(
                    r'_PRIVATE_DEF_SEL\(\s*(\w+),\s*"([^"]+)"\)', text):
                self.selectors[space, accessor] = selector
            self.read_enums(space, text)
            for cls, base in re.findall(
                    r"class (\w+) : public (?:NS::)?\w+<\w+(?:, *([\w:]+))?>", text):
                base = base or "NS::Object"
                self.base[space + cls] = apple_name(base if "::" in base else f"{space}::{base}")

    def read_enums(self, space, text):
        for base, name, body in re.findall(
                r"_(?:NS|MTL)_(?:ENUM|OPTIONS)\(([\w:]+), (\w+)\)\s*\{(.*?)\}", text, re.S):
            self.enums[f"{space}::{name}"] = PRIMITIVE.get(base, "?" + base)
            known, after = {}, 0
            for item in split(re.sub(r"//.*", "", body)):
                key, _, value = (s.strip() for s in item.partition("="))
                value = re.sub(r"\b([A-Za-z_]\w*)\b", lambda m: str(known.get(m.group(1), "x")),
                               re.sub(r"(?<=[0-9a-fA-F])(?:UL+|L+|U)\b", "", value)) or str(after)
                if not re.fullmatch(r"[0-9a-fA-FxX<>|()~ +-]+", value):
                    continue
                try:
                    known[key] = eval(value, {"__builtins__": {}})  # digits and operators only
                except (SyntaxError, NameError, TypeError):
                    continue
                after = known[key] + 1
                self.values[space + key] = known[key]

    def type(self, space, text):
        t = re.sub(r"\b(const|class|struct)\b", "", text)
        if "(^" in t or "std::function" in t or t.strip().endswith(("Handler", "Block")):
            return "@?"
        t = re.sub(r"\s+", " ", t).strip()
        if t in PRIMITIVE:
            return PRIMITIVE[t]
        for name in (t, f"{space}::{t}"):
            if name in self.enums:
                return self.enums[name]
        if t.endswith("*"):
            inner = t[:-1].strip()
            if inner == "char":
                return "*"
            if inner.endswith("*") or inner.startswith("MTL::Autoreleased"):
                return "^@"
            return "^v" if inner in PRIMITIVE else "@"
        return "@" if t[:1].isupper() and t.endswith("String") else "?" + t

    def methods(self):
        define = re.compile(r"_(?:NS|MTL)_INLINE ([^\n;{}]*?)\b(NS|MTL)::(\w+)::(~?\w+)\(")
        for space, text in self.texts:
            for m in define.finditer(text):
                inside, at = balanced(text, m.end())
                body = re.match(r"[^{;]*\{(.*?)\n?\}\n", text[at:], re.S)
                call = body and re.search(
                    r"sendMessage(?:Safe)?<(.*?)>\(\s*(\S.*?),\s*_(NS|MTL)_PRIVATE_SEL\((\w+)\)",
                    body.group(1), re.S)
                if not call:
                    continue
                selector = self.selectors.get((call.group(3), call.group(4)))
                if selector is None:
                    continue
                result = re.sub(r"\s+", " ", call.group(1)).strip()
                parameters = [re.sub(r"(?<=[\s*&])\w+(\[\])?$", "", p).strip() if "(^" not in p
                              else p for p in split(inside)]
                types = [self.type(space, result)] + [self.type(space, p) for p in parameters]
                kind = "class-method" if "_PRIVATE_CLS" in call.group(2) else "method"
                if len(types) - 1 == selector.count(":"):
                    yield kind, m.group(2) + m.group(3), selector, " ".join(types)

    def facts(self):
        found = {(k, r, s): t for k, r, s, t in self.methods()}
        yield from ((k, r, s, t) for (k, r, s), t in found.items())
        for name in sorted(self.base):  # what a class has from those below it
            below = self.base[name]
            for _ in range(8):
                for (k, r, s), t in found.items():
                    if r == below and (k, name, s) not in found:
                        yield k, name, s, t
                below = self.base.get(below, "NSObject")
        for key, value in self.values.items():
            yield "value", "-", key, str(value)
        for _, text in self.texts:
            for name in re.findall(r"_PRIVATE_DEF_CLS\((\w+)\)", text):
                yield "class", "-", name, "-"


# ---- Facts and their comparison ------------------------------------------------------------------

def derive(sources, wanted):
    """Lines of the facts about the names that are wanted."""
    names = {(k.replace("class-", ""), r, n) for k, r, n, _ in wanted}
    names |= {(k, "-", n) for k, _, n in names}
    out = []
    for source, facts in sources:
        lines = {"\t".join((source,) + f) for f in facts
                 if (f[0].replace("class-", ""), f[1], f[2]) in names}
        out += sorted(lines)
    return out


def read_facts(path):
    with open(path, encoding="utf-8") as f:
        lines = [line.rstrip("\n").split("\t") for line in f if line.strip() and line[0] != "#"]
    return [tuple(line) for line in lines]


def same(ours, theirs):
    """The same types? A pointer to objects is a pointer, too."""
    a, b = ours.split(), theirs.split()
    return len(a) == len(b) and all(x == y or (x == "^v" and y in ("^@", "^v")) for x, y in zip(a, b))


def compare(row, facts):
    """None, or what is wrong with a row; facts: (kind, name) -> [(source, receiver, what)]."""
    kind, receiver, name, ours = row
    if f"{receiver} {name} {ours}" in KNOWN:
        return None
    found = facts.get((kind, name), [])
    if kind in ("method", "class-method"):
        found = [f for f in found if f[1] in ("-", receiver)]
        if not any(f[1] == receiver for f in found):
            return f"{receiver} has no {kind} {name}"
    if not found:
        return f"no binding has the {kind} {name}"
    if kind in ("function", "class", "value"):
        wrong = [f for f in found if f[2] != ours]
    elif [f for f in found if f[1] == receiver and not same(ours, f[2])]:
        wrong = [f for f in found if f[1] == receiver and not same(ours, f[2])]
    else:
        # A binding without receivers may mean another object's method of that name.
        loose = [f for f in found if f[1] == "-" and f"{receiver} {name}" not in ANOTHER]
        wrong = [] if any(same(ours, f[2]) for f in loose) else loose
    return "; ".join(f"{name}: expected {f[2]} ({f[0]}), found {ours}" for f in wrong) or None


def indexed(facts):
    out = {}
    for source, kind, receiver, name, what in facts:
        out.setdefault((kind, name), []).append((source, receiver, what))
    return out


def planted(row):
    """The row with an error of each kind."""
    kind, receiver, name, ours = row
    if kind in ("method", "class-method"):
        yield kind, receiver, name[:-1] + ("x:" if name.endswith(":") else "x"), ours
        yield kind, "MTLNothing", name, ours
        if f"{receiver} {name} {ours}" not in KNOWN:
            yield "method" if kind == "class-method" else "class-method", receiver, name, ours
        parts = ours.split()
        yield kind, receiver, name, " ".join(parts + ["Q"])
        for i, p in enumerate(parts):
            yield kind, receiver, name, " ".join(parts[:i] + ["d" if p != "d" else "Q"] + parts[i + 1:])
    elif kind == "value":
        yield kind, receiver, name, str(int(ours) + 1)
        yield kind, receiver, name + "X", ours
    else:
        yield kind, receiver, name + "X", ours


def main():
    p = argparse.ArgumentParser(description="the Metal driver's table against public bindings")
    p.add_argument("--table", default=TABLE)
    p.add_argument("--against", default=FACTS)
    p.add_argument("--derive", nargs="+", metavar="SOURCE=VERSION:DIR")
    p.add_argument("--plant", action="store_true")
    args = p.parse_args()
    with open(args.table, encoding="utf-8") as f:
        wanted = table(f.read())
    if args.derive:
        sources = []
        for s in args.derive:
            name, _, rest = s.partition("=")
            version, _, folder = rest.partition(":")
            facts = pyobjc(folder) if name == "pyobjc" else MetalCpp(folder).facts()
            sources.append((f"{name} {version}", facts))
        print("\n".join(derive(sources, wanted)))
        return 0
    facts = indexed(read_facts(args.against))
    passed = failed = 0
    for row in wanted:
        for wrong in [r for r in planted(row) if compare(r, facts) is None] if args.plant else [row]:
            said = "not seen: " + " ".join(wrong) if args.plant else compare(row, facts)
            if said:
                print(f"FAIL: {said}")
                failed += 1
        passed += len(list(planted(row))) if args.plant else 1
    if not args.plant:
        both = sum(len({f[0] for f in facts.get((k, n), []) if f[1] in ("-", r)}) > 1
                   for k, r, n, _ in wanted)
        print(f"{len(wanted)} rows, {both} of them in both bindings")
    print(f"{passed - failed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
