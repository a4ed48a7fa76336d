#!/usr/bin/env python3
"""Constraints (src/text/constraint.h) against jsonschema on random schemas.

Random walks over a compiled schema must give valid documents; valid documents, in the schema's
order of members, must be accepted and invalid ones refused. Needs PyPI's jsonschema[format]."""

import argparse
import json
import random
import subprocess
import sys

import jsonschema

FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname"]
PATTERNS = ["^[a-z]{2,5}$", "^(foo|ba[rz])+$", "[0-9]+", "^\\d{3}-\\d{4}$", "^[^\"\\\\]*$", "a.c$",
            "^[\\u00e0-\\u00ff]+x?$", "^\\w+(\\.\\w+)*$", "^$", "x|^y", "^[\\s\\S]{0,3}$"]
NAMES = ["a", "ab", "b", "é", "na me", "q\"uote", "", "a/b", "type", "<x", "</y"]


class Gen:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def number(self, integral):
        r = self.r
        s = {"type": "integer" if integral else "number"}
        def bound():
            x = r.choice([0, 1, -1, 10, 99, 100, -5, 12345, -1000, 7])
            return x if integral or r.random() < .5 else r.choice([0.5, -0.25, 1.5, 99.95, 1e-3, -2.75])
        if r.random() < .5:
            s[r.choice(["minimum", "exclusiveMinimum"])] = bound()
        if r.random() < .5:
            s[r.choice(["maximum", "exclusiveMaximum"])] = bound()
        return s

    def string(self):
        r = self.r
        s = {"type": "string"}
        k = r.random()
        if k < .25:
            s["minLength"] = r.randrange(4)
        if .15 < k < .4:
            s["maxLength"] = s.get("minLength", 0) + r.randrange(6)
        if .4 < k < .6:
            s["pattern"] = r.choice(PATTERNS)
        if .6 < k < .75:
            s["format"] = r.choice(FORMATS)
        return s

    def object(self, depth):
        r = self.r
        s = {"type": "object"}
        props = r.sample(NAMES, r.randrange(5))
        if props or r.random() < .5:
            s["properties"] = {p: self.schema(depth - 1) for p in props}
        if props and r.random() < .7:
            s["required"] = r.sample(props, r.randrange(len(props) + 1))
        if r.random() < .7:
            s["additionalProperties"] = r.choice([False, False, True, {"type": "integer"}])
        return s

    def array(self, depth):
        r = self.r
        s = {"type": "array"}
        if r.random() < .8:
            s["items"] = self.schema(depth - 1)
        if r.random() < .2:
            s["prefixItems"] = [self.schema(0) for _ in range(r.randrange(1, 3))]
        if r.random() < .4:
            s["minItems"] = r.randrange(4)
        if r.random() < .4:
            s["maxItems"] = s.get("minItems", 0) + r.randrange(4)
        return s

    def value(self):
        r = self.r
        return r.choice([1, 0, -3, 2.5, True, None, "x", "é\n", "", [1, "a"], {"k": "v"}, "</"])

    def schema(self, depth):
        r = self.r
        k = r.random()
        if depth > 0 and k < .45:
            return self.object(depth) if r.random() < .6 else self.array(depth)
        if depth > 0 and k < .55:
            return {"anyOf": [self.schema(depth - 1) for _ in range(r.randrange(1, 4))]}
        if depth > 0 and k < .6:
            return {"$ref": r.choice(["#/$defs/node", "#/$defs/leaf"]), "description": "d"}
        if k < .68:
            return {"enum": [self.value() for _ in range(r.randrange(1, 5))]}
        if k < .71:
            return {"const": self.value()}
        if k < .75:
            return r.choice([{}, True, {"type": ["string", "null"]}, {"type": ["integer", "boolean"]}])
        if k < .78:
            return {"type": r.choice(["null", "boolean"])}
        return self.string() if r.random() < .5 else self.number(r.random() < .5)

    def root(self):
        s = self.schema(3)
        if not isinstance(s, dict):
            s = {}
        s["$defs"] = {
            "leaf": self.schema(0),
            "node": {"type": "object", "properties": {"v": self.schema(0), "next": {"anyOf": [
                {"type": "null"}, {"$ref": "#/$defs/node"}]}, "all": {"type": "array", "items": {
                    "$ref": "#/$defs/node"}}}, "required": ["v"], "additionalProperties": False}}
        return s

    def mutate(self, v):
        r = self.r
        if isinstance(v, dict) and v and r.random() < .8:
            k = r.choice(list(v))
            w = dict(v)
            if r.random() < .3:
                del w[k]
            elif r.random() < .2:
                w["zz"] = self.value()
            else:
                w[k] = self.mutate(w[k])
            return w
        if isinstance(v, list) and v and r.random() < .8:
            w = list(v)
            i = r.randrange(len(w))
            c = r.random()
            if c < .2:
                del w[i]
            elif c < .4:
                w.insert(i, w[i])
            else:
                w[i] = self.mutate(w[i])
            return w
        if isinstance(v, bool) or v is None:
            return self.value()
        if isinstance(v, int) and r.random() < .7:
            return v + r.choice([-1, 1, 10, -10])
        if isinstance(v, str) and r.random() < .8:
            i = r.randrange(len(v) + 1)
            return r.choice([v[:i] + v[i + 1:], v[:i] + r.choice("a0é -:\"") + v[i:]])
        return self.value()


def texts(v, one_way):
    yield json.dumps(v, ensure_ascii=False)
    if one_way:
        return
    yield json.dumps(v, ensure_ascii=False, indent=2)
    yield json.dumps(v, ensure_ascii=False, separators=(",", ":"))


def has_composite_choice(s):
    """An enum of arrays or objects, which have one spelling."""
    if isinstance(s, dict):
        choices = (s.get("enum") or []) + [s.get("const")] if isinstance(s.get("enum"), (list, type(None))) else []
        return any(isinstance(c, (list, dict)) for c in choices) or any(map(has_composite_choice, s.values()))
    return isinstance(s, list) and any(map(has_composite_choice, s))


def is_special(v):
    """Numbers that are spelled with an exponent, integral ones like 1.0, and texts that end in a
    newline, before which Python's $ matches."""
    if isinstance(v, float):
        return "e" in repr(v) or v == int(v)
    if isinstance(v, str):
        return v.endswith("\n")
    if isinstance(v, int) and not isinstance(v, bool):
        return abs(v) >= 10**20
    if isinstance(v, dict):
        return any(map(is_special, v.values())) or any(map(is_special, v))
    return isinstance(v, list) and any(map(is_special, v))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--driver", default="build/oracle/constraint_batch")
    a.add_argument("--n", type=int, default=1000)
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    p = subprocess.Popen([a.driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(job):
        p.stdin.write(json.dumps(job) + "\n")
        p.stdin.flush()
        line = p.stdout.readline()
        if not line:
            sys.exit("the driver ended at " + json.dumps(job))
        return json.loads(line)

    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    n_walks = n_long = n_docs = n_refused = n_bad = n_incomplete = 0
    errors = {}
    for i in range(a.n):
        g = Gen(a.seed * 1000003 + i)
        schema = g.root()
        v = jsonschema.Draft202012Validator(schema, format_checker=checker)
        got = ask({"schema": schema, "walks": 8, "seed": i})
        if "error" in got:
            n_refused += 1
            key = got["error"][1].split('"')[-1][:60]
            errors[key] = errors.get(key, 0) + 1
            if got["error"][0] == 9:
                print("internal:", got["error"][1], json.dumps(schema))
                n_bad += 1
            continue
        values = []
        for w in got["walks"]:
            if w is None:
                n_long += 1
                continue
            n_walks += 1
            try:
                x = json.loads(w)
                e = next(v.iter_errors(x), None)
            except ValueError as err:
                x, e = None, err
            if e is not None:
                n_bad += 1
                print("INVALID WALK", json.dumps(schema), repr(w), str(e)[:200])
            else:
                values.append(x)
        one_way = has_composite_choice(schema)
        docs, want = [], []
        for x in values:
            for y in [x, g.mutate(x), g.mutate(g.mutate(x))]:
                if is_special(y):
                    continue
                ok = v.is_valid(y)
                for t in texts(y, one_way):
                    docs.append(t)
                    want.append(ok)
        got = ask({"schema": schema, "docs": docs})
        for d, w, r in zip(docs, want, got["docs"]):
            n_docs += 1
            if r and not w:
                n_bad += 1
                print("ACCEPTED", json.dumps(schema), d)
            if w and not r:
                n_incomplete += 1
                if n_incomplete <= 10:
                    print("refused though valid", json.dumps(schema), d)
    print(f"{a.n} schemas ({n_refused} refused), {n_walks} walks ({n_long} too long), {n_docs} documents: "
          f"{n_bad} wrong, {n_incomplete} valid ones refused")
    print(errors)
    sys.exit(n_bad != 0)


main()
