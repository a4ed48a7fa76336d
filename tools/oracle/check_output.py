#!/usr/bin/env python3
"""Compares calla's output parser with a second one, written from the rules of docs/API.md.

    make check-output-oracle
    python3 tools/oracle/check_output.py [--cases 20000] [--seed 1] [--driver build/oracle/output_batch]

Needs nothing but Python. The second parser sees the whole output at once and uses regular expressions
and Python's own readers of JSON and of literals, so it shares no way of working with the first.
"""

import argparse
import ast
import json
import random
import re
import subprocess
import sys

GAP = r"[ \t-\r]{0,1024}"
NAME = r"[^\x00-\x20\x7f<>{}\"']{1,256}"
KEY = r"(?=[^>]*[^>\s])[^<>\n\r]{1,256}"
FUNCTION = rf"<function={NAME}>"
PARAMETER = rf"<parameter={KEY}>"
ENDINGS = ["</parameter>", "</function>", "</tool_call>"]
TAIL_TAGS = ["<parameter=", "</function>", "</tool_call>", "<function="]


def cut_tag(rest, tags):
    """Is rest, which reaches to the end of the output, the beginning of one of the tags?"""
    for t in tags:
        if t.startswith(rest) and rest != t:
            return True
        if t == "<parameter=" and re.fullmatch(r"<parameter=[^<>\n\r]{0,256}", rest):
            return True
        if t == "<function=N" and re.fullmatch(rf"<function=({NAME})?", rest):
            return True
    return False


class Value:
    def __init__(self, tool):
        schema = (tool or {}).get("parameters") or {}
        self.root = schema
        self.props = schema.get("properties") or {}

    def kinds(self, s, seen=0):
        """List of kinds in their order."""
        if not isinstance(s, dict) or seen > 20:
            return ["string"]
        null = ["null"] if s.get("nullable") is True or None in s.get("enum", []) else []
        if "type" in s:
            types = s["type"] if isinstance(s["type"], list) else [s["type"]]
            return null + [self.kind(t) for t in types]
        if "$ref" in s:
            m = re.fullmatch(r"#/(\$defs|definitions)/(.*)", s["$ref"])
            found = self.root.get(m[1], {}).get(m[2]) if m else None
            return null + (self.kinds(found, seen + 1) if found is not None else ["object"])
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(s.get(key), list):
                return null + [k for a in s[key] for k in self.kinds(a, seen + 1)]
        if "enum" not in s and "properties" in s:
            return null + ["object"]
        if "enum" not in s and "items" in s:
            return null + ["array"]
        return null + ["string"]

    @staticmethod
    def kind(t):
        if t == "null":
            return "null"
        t = t.lower()
        if re.match("int|uint|long|short|unsigned", t):
            return "integer"
        if re.match("num|float|double$", t):
            return "number"
        if t in ("boolean", "bool", "binary"):
            return "boolean"
        if re.match("object$|dict", t):
            return "object"
        if re.match("array$|arr$|list", t):
            return "array"
        return "string"

    def convert(self, key, raw):
        """A Python value; numbers as ("number", spelling)."""
        kinds = self.kinds(self.props[key]) if key in self.props else ["string"]
        if not [k for k in kinds if k != "null"]:
            kinds.append("string")
        s = raw.strip()
        if s.lower() == "null" and ("null" in kinds or "string" not in kinds):
            if not (set(kinds) <= {"null", "string"} and len(raw) > 64):
                return None
        for k in kinds:
            v = self.try_kind(k, s)
            if v is not None:
                return v[0]
        return raw

    @staticmethod
    def try_kind(kind, s):
        if kind == "integer" and re.fullmatch(r"[+-]?[0-9]+", s, re.A):
            return (int(s),)
        if kind == "integer" and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?([eE]\+?[0-9]+)?", s, re.A):
            from decimal import Decimal, InvalidOperation
            try:
                d = Decimal(s)
                if d.adjusted() < 400 and d == d.to_integral_value():
                    return (int(d),)
            except InvalidOperation:
                pass
            return None
        if kind == "number" and re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", s, re.A):
            return (json.loads(s),)
        if kind == "boolean" and s.lower() in ("true", "false"):
            return (s.lower() == "true",)
        if kind in ("object", "array") and s[:1] == ("{" if kind == "object" else "["):
            def refuse(_):
                raise ValueError
            try:
                return (json.loads(s, parse_constant=refuse),)
            except ValueError:
                pass
            try:
                v = ast.literal_eval(s)
                if plain(v):
                    return (v,)
            except (ValueError, SyntaxError, MemoryError, TypeError):
                pass
        return None


def half_ending(rest, newline):
    """What is left when the output was cut inside an ending: no part of the value."""
    if any(t.startswith(rest) for t in ENDINGS) and rest != "":
        return True
    return newline and ("<parameter=".startswith(rest) or
                        re.fullmatch(r"<parameter=[^<>\r\n]{0,256}", rest) is not None)


def plain(v):
    if isinstance(v, dict):
        return all(isinstance(k, str) and plain(x) for k, x in v.items())
    if isinstance(v, list):
        return all(map(plain, v))
    return v is None or isinstance(v, (str, int, float, bool))


class Parser:
    def __init__(self, case):
        self.s = case["output"]
        self.tools = case["tools"]
        self.truncated = case["truncated"]
        self.reasoning = case["reasoning"]
        self.parts = {True: "", False: ""}
        self.calls = []

    def tool(self, name):
        for t in self.tools:
            f = t.get("function", t)
            if f.get("name") == name:
                return f
        return None

    def value_end(self, i, key, value):
        """(end of the value, where to go on, complete or None when the call goes on)."""
        s = self.s
        tails = TAIL_TAGS[:3]
        for j in range(i, len(s)):
            if s[j] not in "<\n":
                continue
            k = j + (s[j] == "\n")
            m = re.compile("</parameter>" + GAP).match(s, k)
            if m:
                rest = s[m.end():]
                if re.match(rf"{PARAMETER}|</function>|</tool_call>", rest):
                    return j, m.end(), None
                if rest == "":
                    return j, len(s), not self.truncated
                if cut_tag(rest, tails):
                    return j, len(s), False
            m = re.compile("</function>" + GAP).match(s, k)
            if m:
                rest = s[m.end():]
                if re.match(rf"{FUNCTION}|</tool_call>", rest):
                    return j, m.end(), True
                if rest == "":
                    return j, len(s), not self.truncated
                if cut_tag(rest, ["</tool_call>", "<function=", "<function=N"]):
                    return j, len(s), False
            if k > j:
                m = re.compile(PARAMETER).match(s, k)
                if m and m[0][11:-1].strip() in value.props and m[0][11:-1].strip() != key:
                    return j, k, None
            if re.compile("</tool_call>" + GAP + r"\Z").match(s, k):
                return j, len(s), not self.truncated
            if self.truncated and half_ending(s[k:], k > j):
                return j, len(s), False
        j = len(s) - 1 if s.endswith("\n") and len(s) > i else len(s)
        return j, len(s), not self.truncated

    def call(self, i, name):
        """Parses a call whose name ends at i (already known to be one); returns where to go on."""
        s, args, value = self.s, {}, Value(self.tool(name))
        i = re.compile(GAP).match(s, i).end()
        complete = None
        while complete is None:
            m = re.compile(PARAMETER).match(s, i)
            if m:
                key = m[0][11:-1].strip()
                j, after, complete = self.value_end(m.end(), key, value)
                raw = s[m.end():j] if j > m.end() else ""
                raw = raw[1:] if raw.startswith("\n") else raw
                unfinished = complete is not None and not complete and after == len(s)
                closed = re.compile(r"\n?(</parameter>)").match(s, j) is not None
                args[key] = raw if unfinished and not closed else value.convert(key, raw)
                i = after
            elif s.startswith("</function>", i):
                i, complete = i + 11, True
            elif s.startswith("</tool_call>", i):
                i, complete, self.wrapped = i + 12, True, False
            elif s.startswith("<function=", i):
                complete = True
            else:
                complete = not self.truncated and i == len(s)
                i = len(s)
        self.calls.append((name, args, complete))
        return i

    def opens(self, i, wrapped):
        """(name, end of the name) when a call opens here."""
        s = self.s
        m = re.compile((f"<tool_call>{GAP}" if wrapped else "") + FUNCTION).match(s, i)
        if not m:
            return None
        name = m[0][m[0].index("<function=") + 10:-1]
        g = re.compile(GAP).match(s, m.end()).end()
        rest = s[g:]
        if rest == "" or re.match(rf"{PARAMETER}|</function>|</tool_call>|<function=", rest) or \
                cut_tag(rest, TAIL_TAGS):
            return name, m.end()
        return None

    def json_call(self, i):
        m = re.compile(f"<tool_call>{GAP}(?={{)").match(self.s, i)
        if not m:
            return None
        try:
            def refuse(_):
                raise ValueError
            v, end = json.JSONDecoder(parse_constant=refuse).raw_decode(self.s, m.end())
        except ValueError:
            return None
        t = re.compile(rf"{GAP}(</tool_call>|\Z)").match(self.s, end)
        rest = re.compile(GAP).match(self.s, end).end()
        if not t and not "</tool_call>".startswith(self.s[rest:]):
            return None
        if not isinstance(v.get("name"), str) or not re.fullmatch(NAME, v["name"]) or \
                "\\" in v["name"] or not isinstance(v.get("arguments"), dict):
            return None
        self.wrapped = False
        self.calls.append((v["name"], v["arguments"], True))
        return t.end() if t else len(self.s)

    def text(self, t):
        self.parts[self.reasoning] += t

    def parse(self):
        s, i = self.s, 0
        led = False             # text in this reasoning block
        self.wrapped = after = False
        line = ""               # since the last newline
        while i < len(s):
            if after:
                n = re.compile(r"[ \t-\r]*").match(s, i)
                gap, i = gap + n[0].count("\n"), n.end()
                if i == len(s):
                    break
            end = None
            if s.startswith("</think>", i) or (s.startswith("<think>", i) and (not self.reasoning or not led)):
                think = s[i + 1] != "/"
                if after and think:
                    self.settle(gap)
                    after = self.wrapped = False
                self.reasoning, led, line = think, False, ""
                i += 7 if think else 8
                continue
            if self.tools is not None and s[i] == "<":
                if after and self.wrapped and s.startswith("</tool_call>", i):
                    self.wrapped, gap = False, 0
                    i += 12
                    continue
                found = self.opens(i, True)
                if not found and not self.reasoning and line.strip(" \t") == "":
                    found = self.opens(i, False)
                    if found and not (after and self.wrapped) and self.tool(found[0]) is None:
                        found = None
                if found:
                    self.wrapped = True
                    end = self.call(found[1], found[0])
                elif not self.reasoning:
                    end = self.json_call(i)
            if end is not None:
                i, after, gap, line, self.reasoning = end, True, 0, "", False
                continue
            if after:
                self.settle(gap)
                after = self.wrapped = False
                line = ""
            c = s[i]
            self.text(c)
            led = led or c != "\n"
            line = "" if c == "\n" else line + c
            i += 1
        return {"reasoning": self.parts[True].strip("\n"), "content": self.parts[False].strip("\n"),
                "calls": self.calls}

    def settle(self, gap):
        t = self.parts[False]
        had = len(t) - len(t.rstrip("\n"))
        self.parts[False] = t + "\n" * max(0, gap - had) if t.strip("\n") else ""


PIECES = ["<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "<think>",
          "</think>", "\n", "\n", "\n\n", " ", "\t", "\r\n", ">", "<", "/", "{", "}", '"', "'", "\\", "[", "]", ",",
          ":", "null", "true", "None", "12", "-3.50", "1e5", "a", "text ", "<function=f>", "<function=get_weather>",
          "<function=nope>", "<parameter=city>", "<parameter=days>", "<parameter=zzz>", "\n</parameter>\n",
          "\n</function>\n</tool_call>", "<tool_call>\n<function=get_weather>\n", "{\"a\": [1, {\"b\": null}]}",
          "{'a': True, }", "\u00e9", "\U0001f3d4", "</", "<t", "<para", "\n<parameter=city>\n",
          "\n<parameter=days>\n", "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": ", "}}</tool_call>", "Null"]
KEYS = ["city", "days", "opts", "tags", "lat", "metric", "note", "when", "any", "ref", "mode", "zzz"]
PROPS = {"city": {"type": "string"}, "days": {"type": "integer"}, "opts": {"type": "object"},
         "tags": {"type": "array"}, "lat": {"type": "number"}, "metric": {"type": "boolean"},
         "note": {"type": ["string", "null"]}, "when": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
         "any": {"type": ["number", "object", "string"]}, "ref": {"$ref": "#/$defs/T"}, "mode": {"enum": ["a"]}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "$defs": {"T": {"type": "string"}}, "properties": PROPS}}}, {"name": "f", "parameters": {}}]


def generate(rng):
    def pieces(n):
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(n)))

    def call():
        params = "".join(f"<parameter={rng.choice(KEYS)}>\n{pieces(4)}\n</parameter>\n" for _ in range(rng.randrange(4)))
        return f"<tool_call>\n<function=get_weather>\n{params}</function>\n</tool_call>"

    s = "".join(call() if rng.random() < 0.3 else pieces(3) for _ in range(rng.randrange(9)))
    how, i = rng.randrange(6), rng.randrange(len(s) + 1)
    s = s[:i] + s[i + 1:] if how == 0 else s[:i] + s[i + rng.randrange(20):] if how == 1 else s[:i] if how == 2 else s
    return {"output": s, "tools": TOOLS if rng.random() < 0.95 else None, "reasoning": rng.random() < 0.4,
            "truncated": rng.random() < 0.5}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--driver", default="build/oracle/output_batch")
    ap.add_argument("--cases", type=int, default=20000)
    ap.add_argument("--seed", type=int, default=20261129)
    opt = ap.parse_args()
    rng = random.Random(opt.seed)
    cases = [generate(rng) for _ in range(opt.cases)]
    out = subprocess.run([opt.driver], input="".join(json.dumps(c) + "\n" for c in cases).encode(), check=True,
                         stdout=subprocess.PIPE).stdout.decode().splitlines()
    assert len(out) == len(cases)
    n_failed = n_calls = 0
    for case, line in zip(cases, out):
        found = json.loads(line)
        found["calls"] = [(c["name"], json.loads(c["arguments"]), c["complete"]) for c in found["calls"]]
        want = Parser(case).parse()
        n_calls += len(want["calls"])
        if repr(found) != repr(want):
            n_failed += 1
            if n_failed <= 5:
                print(f"case {json.dumps(case | {'tools': case['tools'] and '...'}, ensure_ascii=False)}\n"
                      f"  expected {want}\n  found    {found}", file=sys.stderr)
    print(f"{len(cases) - n_failed} passed, {n_failed} failed ({n_calls} calls, seed {opt.seed})")
    sys.exit(n_failed > 0)


if __name__ == "__main__":
    main()
