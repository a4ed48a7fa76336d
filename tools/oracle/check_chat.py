#!/usr/bin/env python3
"""Compares calla's chat rendering with the official template rendered by jinja2.

    make check-chat
    python3 tools/oracle/check_chat.py [--cases 2000] [--seed 1] [--driver build/oracle/chat_batch]
    python3 tools/oracle/check_chat.py --freeze tests/data/chat-generated.jsonl --cases 200

Needs jinja2 (checked with 3.1.2 and 3.1.6). The environment is set up as transformers does it: sandbox, trim_blocks,
lstrip_blocks, loop controls, tojson without HTML escaping. Conversations come from a seeded
generator; part of them are odd on purpose (wrong types, missing keys, split tags). Renderings are
compared byte for byte. Errors: the template's own sentences (raise_exception, and the one of the
items filter) must be equal; where Python fails in another way calla must fail as well.
"""

import argparse
import collections
import json
import random
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ITEMS_ERROR = "Can only get item pairs from a mapping."


class TemplateRefusal(Exception):
    """What raise_exception() throws, told apart from jinja2's own errors."""


def compile_template(path):
    def raise_exception(message):
        raise TemplateRefusal(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    with open(path, encoding="utf-8", newline="") as f:
        return env.from_string(f.read())


def expect(template, line):
    """The reference's answer for one case, from its JSON text as a server would receive it."""
    case = json.loads(line)
    try:
        text = template.render(messages=case.get("messages"), tools=case.get("tools"),
                               **case["kwargs"])
        return {"rendered": text}
    except TemplateRefusal as e:
        return {"error": str(e), "error_type": "TemplateError"}
    except Exception as e:  # whatever Python says: a refusal
        return {"error": str(e), "error_type": type(e).__name__}


# ---- Generator -----------------------------------------------------------------------------------

SPACES = ["\t", "\n", "\x0b", "\x0c", "\r", "\x1c", "\x1d", "\x1e", "\x1f", " ", "\x85", "\xa0",
          "\u1680", "\u2000", "\u2003", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"]
NOT_SPACES = ["\x00", "\x1b", "\x7f", "\x84", "\u180e", "\u200b", "\u2060", "\ufeff", "\u00ad"]
TAGS = ["<think>", "</think>", "<think>\n", "\n</think>\n\n", "<tool_call>", "</tool_call>",
        "<tool_response>", "</tool_response>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
        "<|vision_start|>", "<function=f>", "<parameter=p>", "</", "<", "think>", "</thin", "k>"]
WORDS = ["Hi", "weather", "in", "Paris", "na\u00efve", "\u4f60\u597d", "\U0001f600", "e\u0301", "'",
         '"', "\\", "/", "&", "<b>", "x" * 40, "1", "{}", "\ud55c", "\u0e01\u0e33", "image", "video",
         "text", "image_url", "{{ 1 }}", "{% if %}"]


class Gen:
    def __init__(self, rng):
        self.r = rng

    def chance(self, p):
        return self.r.random() < p

    def pick(self, *options):
        return self.r.choice(options)

    def text(self, tags=0.15):
        r, out = self.r, []
        for _ in range(self.pick(0, 1, 1, 2, 3, 5, 8)):
            x = r.random()
            if x < tags:
                out.append(r.choice(TAGS))
            elif x < tags + 0.25:
                out.append("".join(r.choice(SPACES) for _ in range(r.randint(1, 3))))
            elif x < tags + 0.29:
                out.append(r.choice(NOT_SPACES))
            else:
                out.append(r.choice(WORDS))
                if self.chance(0.6):
                    out.append(" ")
        return "".join(out)

    def number(self):
        r = self.r
        return self.pick(0, 1, -1, 42, 2**53 + 1, -(2**63), 10**30, 0.0, -0.0, 1.0, 0.1, 1e5, 1e15,
                         1e16, 1e17, 1.5e300, 5e-324, 1e-4, 9.999e-5, 1e-5, 1.7976931348623157e308,
                         123456789.125, 1 / 3, 2**0.5 * 10 ** r.randint(-20, 20),
                         r.uniform(-1e6, 1e6), r.randint(-(10**20), 10**20), float("inf"),
                         float("-inf"), 100000.0, 123456789012345680.0)

    def value(self, depth=0):
        x = self.r.random()
        if depth < 4 and x < 0.15:
            return [self.value(depth + 1) for _ in range(self.r.randint(0, 4))]
        if depth < 4 and x < 0.35:
            return {self.key(): self.value(depth + 1) for _ in range(self.r.randint(0, 4))}
        if x < 0.5:
            return self.number()
        if x < 0.65:
            return self.pick(None, True, False)
        return self.text()

    def key(self):
        return self.pick("a", "b", "city", "na\u00efve", "", "with space", "type", "name", "a>b", "\n",
                         '"q"', "\x01", "\u4f60") if self.chance(0.7) else self.text(0.05)

    def schema(self):
        props = {self.key(): self.pick({"type": "string"}, {"type": "integer", "minimum": 0},
                                       {"type": ["string", "null"], "enum": ["a", None, 1.0]},
                                       {"type": "object", "properties": {"x": {"type": "array"}}})
                 for _ in range(self.r.randint(0, 3))}
        return {"type": "object", "properties": props, "required": list(props)[:1]}

    def tool(self):
        t = {"type": "function", "function": {"name": self.pick("get_weather", "f", "do-it", "\u00e9"),
                                              "description": self.text(),
                                              "parameters": self.schema()}}
        if self.chance(0.2):
            t["x"] = self.value()
        return t

    def item(self):
        x = self.r.random()
        if x < 0.7:
            return {"type": "text", "text": self.text()}
        if x < 0.8:
            return {"type": "image", "image": "a.png"}
        if x < 0.87:
            return {"type": "image_url", "image_url": {"url": "data:"}}
        if x < 0.94:
            return {"type": "video", "video": "v.mp4"}
        return {"text": self.text()}

    def content(self):
        x = self.r.random()
        if x < 0.75:
            return self.text()
        if x < 0.95:
            return [self.item() for _ in range(self.r.randint(0, 4))]
        return None

    def arguments(self):
        return {self.key(): self.value() for _ in range(self.r.randint(0, 4))}

    def call(self):
        f = {"name": self.pick("get_weather", "f", "do-it", "\u00e9", "<x>", "")}
        if self.chance(0.9):
            f["arguments"] = self.arguments()
        if self.chance(0.2):
            return f
        return {"id": "call_1", "type": "function", "function": f}

    def assistant(self):
        m = {"role": "assistant"}
        if self.chance(0.92):
            m["content"] = self.content()
        if self.chance(0.4):
            m["reasoning_content"] = self.text()
        elif self.chance(0.5):
            m["content"] = (self.pick("", "\n") + self.pick("<think>", "<think>\n", "") + self.text() +
                            self.pick("</think>", "\n</think>\n\n", "\n\n</think>") + self.text())
        if self.chance(0.35):
            m["tool_calls"] = [self.call() for _ in range(self.r.randint(0, 3))]
        return m

    def user(self):
        if self.chance(0.12):
            body = self.text()
            return {"role": "user", "content": self.pick("", "\n ") + "<tool_response>" + body +
                    self.pick("</tool_response>", "</tool_response>\n", "")}
        return {"role": "user", "content": self.content()}

    def tool_result(self):
        m = {"role": "tool", "content": self.content()}
        if self.chance(0.5):
            m["tool_call_id"] = "call_1"
        return m

    def messages(self):
        out = []
        if self.chance(0.4):
            out.append({"role": "system", "content": self.text() if self.chance(0.8) else
                        [self.item() if self.chance(0.15) else {"type": "text", "text": self.text()}
                         for _ in range(self.r.randint(0, 3))]})
        if self.chance(0.02):
            out.append(self.tool_result())
        for _ in range(self.r.randint(1, 4)):
            out.append(self.user())
            while self.chance(0.35):
                out.append(self.assistant())
                for _ in range(self.r.randint(0, 3)):
                    out.append(self.tool_result())
            if self.chance(0.7):
                out.append(self.assistant())
        if self.chance(0.7):
            out.append(self.user())
        return out

    # Deliberately odd: one or more values replaced by something of another kind.

    def oddity(self):
        return self.pick(None, True, False, 0, 1, -0.0, 1.5, float("inf"), "", "x", "image", "a video",
                         "text", "</think>", [], [1], ["image"], ["video"], ["text"], [None], ["hello"],
                         [["image"]], [["a", "text"]], [[]], [{}], {}, {"text": "t"}, {"image": 1},
                         {"type": "image"}, [{"type": "image"}], [{"type": "video"}],
                         [{"type": "text"}], [{"text": None}], [{"text": True}], [{"text": 1e16}],
                         [{"text": [1, "a'b", 'c"d', "\x7f\xad\u2028\U000e0001", None]}],
                         [{"text": {"k": [True, float("-inf")], "it's": "it's"}}],
                         [{"text": "a"}, {"text": "</thi"}, {"text": "nk>b"}],
                         [{"function": None}], [{"function": {"name": None}}],
                         [{"function": {"name": "f", "arguments": None}}],
                         [{"function": {"name": "f", "arguments": "{}"}}],
                         [{"function": {"name": "f", "arguments": [1]}}],
                         [{"name": "f", "arguments": 5}], [{"name": 5}], [{"name": "f"}],
                         [{"name": "f", "function": "g"}], ["f"], [{"name": "f", "arguments": {}}],
                         self.value())

    def spoil(self, messages):
        m = self.r.choice(messages)
        what = self.pick("role", "content", "content", "reasoning_content", "tool_calls", "tool_calls",
                         "whole", "drop", "system", "item", "arguments")
        if what == "whole":
            messages[messages.index(m)] = self.oddity()
        elif what == "drop":
            m.pop(self.pick("role", "content"), None)
        elif what == "system":
            messages.insert(self.r.randint(0, len(messages)),
                            {"role": self.pick("system", "developer", "function", "User", "user "),
                             "content": self.content()})
        elif what == "item":
            m["content"] = [self.item(), self.oddity(), self.item()]
        elif what == "arguments":
            m["role"] = "assistant"
            m["tool_calls"] = [{"function": {"name": self.pick("f", 1, None), "arguments": self.oddity()}}]
        elif what == "role":
            m["role"] = self.pick("user", "assistant", "tool", self.oddity())
        else:
            m[what] = self.oddity()

    def case(self):
        case = {"messages": self.messages(), "tools": None, "kwargs": {}}
        if self.chance(0.35):
            case["tools"] = [self.tool() for _ in range(self.r.randint(0, 3))]
        kw = case["kwargs"]
        kw["add_generation_prompt"] = self.chance(0.7)
        if self.chance(0.4):
            kw["enable_thinking"] = self.chance(0.4)
        if self.chance(0.4):
            kw["preserve_thinking"] = self.chance(0.6)
        if self.chance(0.2):
            kw["add_vision_id"] = self.chance(0.8)
        if self.chance(0.3):
            for _ in range(self.pick(1, 1, 1, 2)):
                try:
                    self.spoil(case["messages"])
                except (AttributeError, TypeError):
                    pass  # it was spoilt before
            if self.chance(0.1):
                case["tools"] = self.pick("ab\u00e9", "", {}, {"a": 1}, 1, True, [1, None, "x"], [[]])
            if self.chance(0.04):
                case["messages"] = self.pick([], None, {}, "", 0, False, {"a": 1}, "abc", 7, [1])
        return case


def spell(value, rng):
    """JSON text of a case: Python's, with number spellings and escapes that json.dumps never uses."""
    s = json.dumps(value, ensure_ascii=rng.random() < 0.3)
    s = s.replace("-Infinity", "-1e999").replace("Infinity", "1E+400")
    if rng.random() < 0.3:
        s = s.replace(": 100000.0", ": 1E5").replace(": 0.0", ": 0e0").replace(": 0,", ": -0,")
    return s


# ---- Comparison ----------------------------------------------------------------------------------


def agrees(line, want, got):
    if "rendered" in want:
        return got.get("rendered") == want["rendered"]
    if "error" not in got or got["code"] not in (8, 3):
        return False
    exact = want["error_type"] == "TemplateError" or want["error"] == ITEMS_ERROR
    if isinstance(json.loads(line)["messages"], str):
        exact = False  # the template walks over its letters; calla says that a list is expected
    return not exact or got["error"] == want["error"]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--template", default="tests/data/qwen3.6/chat_template.jinja")
    ap.add_argument("--driver", default="build/oracle/chat_batch")
    ap.add_argument("--cases", type=int, default=2000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--freeze", metavar="FILE", help="write the cases with expectations, run nothing")
    args = ap.parse_args()
    rng = random.Random(args.seed)
    gen = Gen(rng)
    lines = [spell(gen.case(), rng) for _ in range(args.cases)]
    template = compile_template(args.template)
    wants = [expect(template, line) for line in lines]

    if args.freeze:
        with open(args.freeze, "w", encoding="utf-8") as f:
            for i, (line, want) in enumerate(zip(lines, wants)):
                tail = json.dumps(want, ensure_ascii=False)
                f.write('{"name": "generated_%d", %s, %s\n' % (i, line[1:-1], tail[1:]))
        return 0

    text = "".join(line + "\n" for line in lines)
    run = subprocess.run([args.driver], input=text.encode("utf-8"), stdout=subprocess.PIPE)
    if run.returncode != 0:
        print(f"{args.driver} ended with {run.returncode}", file=sys.stderr)
        return 1
    got = [json.loads(s) for s in run.stdout.decode("utf-8").split("\n")[:-1]]
    if len(got) != len(lines):
        print(f"expected {len(lines)} answers, found {len(got)}", file=sys.stderr)
        return 1
    kinds, bad = collections.Counter(), 0
    for i, (line, want, have) in enumerate(zip(lines, wants, got)):
        kinds[want.get("error_type", "rendered") +
              (": " + want["error"] if want.get("error_type") == "TemplateError" else "")] += 1
        if not agrees(line, want, have):
            bad += 1
            if bad <= 5:
                print(f"case {i} of seed {args.seed} differs\n  in   {line}\n  want {want}\n"
                      f"  have {have}", file=sys.stderr)
    for kind, n in sorted(kinds.items()):
        print(f"{n:6}  {kind}")
    print(f"seed {args.seed}, jinja2 {jinja2.__version__}")
    print(f"{len(lines) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
