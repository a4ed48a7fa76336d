#!/usr/bin/env python3
"""Writes session.jsonl, the conversation that `calla bench --agent` plays when no trace is given.

    python3 bench/agent/make_session.py > bench/agent/session.jsonl

A coding agent's session of 28 requests, in the form that src/bench/agent_trace.h describes: a long
system prompt and tools, files read, edits, test runs; a sub-agent with the same system prompt
whose requests come between the main one's; a request repeated as after a time-out; a question in
between; a user who rewrites what he asked for. All text is made here, from word lists, and is the
same at every run. It means little; its lengths and its order are what counts.
"""
import json
import sys

NOUNS = ("gauge reading station basin series interval window marker level offset sample record "
         "channel harbour sensor period cursor filter bucket report").split()
VERBS = "merge split align clip scan smooth fold shift trim collect rank repair".split()
TRAITS = "valid open late early steady missing doubled rough final pending".split()


class Dice:
    """A generator of our own, so that no version of Python changes the file."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def pick(self, words):
        return words[self.below(len(words))]


# ---- Texts ------------------------------------------------------------------------------------

def function(d):
    noun, other, verb, trait = d.pick(NOUNS), d.pick(NOUNS), d.pick(VERBS), d.pick(TRAITS)
    name, limit = f"{verb}_{noun}s", 2 + d.below(60)
    return d.pick([
        f'''def {name}(items, limit={limit}):
    """{verb.capitalize()} every {noun} whose {other} is {trait}; at most `limit` of them."""
    kept = []
    for index, item in enumerate(items):
        if item.{other} is None or len(kept) == limit:
            continue
        if item.is_{trait}(index - {d.below(9)}):
            kept.append((item.start, item.{other} * {1 + d.below(12)}))
    return kept
''',
        f'''def {name}(table, first, last):
    """The {trait} {noun}s between two days, by {other}."""
    by_{other} = {{}}
    for row in table.rows(first, last):
        key = row["{other}"] // {limit}
        by_{other}.setdefault(key, []).append(row["{noun}"])
    if not by_{other}:
        raise LookupError(f"no {trait} {noun} from {{first}} to {{last}}")
    return {{key: sum(found) / len(found) for key, found in sorted(by_{other}.items())}}
''',
        f'''class {noun.capitalize()}{verb.capitalize()}er:
    """Holds one {noun} until its {other} is known to be {trait}."""

    def __init__(self, {other}, step={limit}):
        self.{other} = {other}
        self.step = step
        self.waiting = []

    def push(self, value):
        self.waiting.append(value)
        while self.waiting and self.waiting[0].at + self.step <= value.at:
            yield self.release(self.waiting.pop(0))

    def release(self, value):
        return value if value.{trait} else value.replace({other}=self.{other})
''',
        f'''def {name}(left, right):
    """Joins two lists of {noun}s; where both have one, the {trait} {other} counts."""
    out, i, k = [], 0, 0
    while i < len(left) and k < len(right):
        if left[i].at == right[k].at:
            out.append(left[i] if left[i].{trait} else right[k])
            i, k = i + 1, k + 1
        elif left[i].at < right[k].at - {d.below(40)}:
            out.append(left[i])
            i += 1
        else:
            out.append(right[k])
            k += 1
    return out + left[i:] + right[k:]
''',
    ])


def source(d, about, n):
    head = f'"""{about}"""\nfrom tidelog import model, units\n\nSTEP_MINUTES = {5 + d.below(20)}\n'
    return head + "".join("\n\n" + function(d) for _ in range(n))


def test_run(d, n, failures):
    lines = [f"collected {n} tests"]
    for i in range(n):
        bad = i in failures
        lines.append(f"tests/test_{d.pick(NOUNS)}.py::test_{d.pick(VERBS)}_{d.pick(TRAITS)}_"
                     f"{d.pick(NOUNS)} {'FAILED' if bad else 'ok'} {d.below(900) / 1000:.3f} s")
        if bad:
            got, want = d.below(500), d.below(500)
            lines += [f"    expected {want}.{d.below(10)}, found {got}.{d.below(10)}",
                      f"    at tidelog/totals.py:{10 + d.below(200)} in daily_total",
                      f"    the {d.pick(NOUNS)} before it was {d.pick(TRAITS)}"]
    return "\n".join(lines + [f"{n - len(failures)} passed, {len(failures)} failed"])


def thought(d, n):
    return " ".join(d.pick([
        f"The {d.pick(TRAITS)} {d.pick(NOUNS)} comes from {d.pick(VERBS)}_{d.pick(NOUNS)}s.",
        f"If the {d.pick(NOUNS)} is {d.pick(TRAITS)}, the {d.pick(NOUNS)} must not count.",
        f"I should look at how a {d.pick(NOUNS)} gets its {d.pick(NOUNS)} first.",
        f"That explains why only {d.pick(TRAITS)} {d.pick(NOUNS)}s are wrong.",
        f"A smaller change would be to {d.pick(VERBS)} the {d.pick(NOUNS)} later.",
    ]) for _ in range(n))


def system_prompt(d):
    rules = "\n".join(
        f"{i + 1}. " + d.pick([
            f"Before you {d.pick(VERBS)} a {d.pick(NOUNS)}, read the file that defines it, and quote "
            f"the lines that matter.",
            f"Never leave a {d.pick(TRAITS)} {d.pick(NOUNS)} behind: the tests of that part are run "
            f"after every edit.",
            f"A change of the {d.pick(NOUNS)} format needs a sentence in the change log and a test "
            f"with a {d.pick(TRAITS)} {d.pick(NOUNS)}.",
            f"When a command fails twice in the same way, say so and ask, instead of trying a third "
            f"time with another {d.pick(NOUNS)}.",
        ]) for i in range(80))
    return ("You are a careful programmer who works in one repository through tools. You plan in a "
            "few sentences, act in small steps, and report what you did and did not do.\n\n"
            "The repository is tidelog, which turns the readings of tide gauges into daily tables. "
            "Times are UTC, levels are centimetres, a gap is a gap and not a zero.\n\n"
            f"Rules of the house:\n{rules}\n\nAnswers to the user are short and without praise.")


def tool(name, about, **members):
    properties = {k: {"type": "integer" if k in ("first", "last", "limit") else "string",
                      "description": v} for k, v in members.items()}
    return {"type": "function", "function": {
        "name": name, "description": about, "parameters": {
            "type": "object", "properties": properties, "required": list(members)[:1]}}}


TOOLS = [
    tool("list_files", "Lists the files below a folder of the repository, with their sizes in bytes. "
         "Ignored files are left out.", folder="The folder, relative to the repository",
         pattern="Only names that match this pattern"),
    tool("read_file", "Reads a text file, or some of its lines. Long files are cut after 2000 lines.",
         path="The file, relative to the repository", first="The first line, from 1",
         last="The last line"),
    tool("edit_file", "Replaces text in a file. The old text must occur exactly once; it is compared "
         "with all its white space.", path="The file", old="The text that is there now",
         new="The text that takes its place"),
    tool("write_file", "Writes a new file. An existing one is refused.", path="The file",
         content="Its whole content"),
    tool("search", "Finds lines that match a regular expression, with their files and numbers.",
         expression="The regular expression", folder="Where to look", limit="At most so many lines"),
    tool("run_tests", "Runs the tests and returns what they print. Takes up to a minute.",
         selection="Names of files or tests; all when it is missing"),
    tool("run_command", "Runs a shell command in the repository, without network, and returns its "
         "output and exit code.", command="The command line"),
    tool("ask_helper", "Hands a question to a helper with the same tools and a conversation of its "
         "own; returns its report.", question="What it shall find out, with all it has to know"),
]


# ---- The session ------------------------------------------------------------------------------

class Trace:
    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)
        return len(self.lines)


class Talk:
    """One conversation: ask() writes a request; answers and results become the next one's."""

    def __init__(self, trace, dice, first):
        self.trace, self.d, self.pending, self.n_calls, self.keep = trace, dice, [], 0, None
        self.line = trace.add(first)

    def answer(self, text, thoughts=2, calls=()):
        m = {"role": "assistant", "content": text, "reasoning_content": thought(self.d, thoughts)}
        if calls:
            m["tool_calls"] = []
        for name, arguments in calls:
            self.n_calls += 1
            m["tool_calls"].append({"id": f"call_{self.line}_{self.n_calls}", "type": "function",
                                    "function": {"name": name, "arguments": json.dumps(arguments)}})
        self.pending.append(m)
        return m

    def ask(self, tokens=None):
        line = {"after": self.line, "messages": self.pending}
        if self.keep is not None:
            line["keep"] = self.keep
        if tokens:
            line["usage"] = {"generated_tokens": tokens}
        self.line, self.pending, self.keep = self.trace.add(line), [], None
        return self.line

    def step(self, text, *calls_and_results, thoughts=2):
        """The model calls tools; their results are the next request."""
        m = self.answer(text, thoughts, [c for c, _ in calls_and_results])
        for call, (_, result) in zip(m["tool_calls"], calls_and_results):
            self.pending.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return self.ask()

    def user(self, text):
        self.pending.append({"role": "user", "content": text})
        return self.ask()


def begin(trace, system, task):
    return {"model": "calla", "stream": True, "messages": [
        {"role": "system", "content": system}, {"role": "user", "content": task}], "tools": TOOLS}


def read(path, text):
    return ("read_file", {"path": path}), text


def tests(result, selection=None):
    return ("run_tests", {"selection": selection} if selection else {}), result


def edit(d, path):
    return (("edit_file", {"path": path, "old": function(d), "new": function(d)}),
            f"{path}: 1 place changed")


def session():
    d, trace = Dice(1), Trace()
    system = system_prompt(d)
    files = "\n".join(f"{2000 + d.below(9000):6} tidelog/{n}.py" for n in sorted(NOUNS))
    main = Talk(trace, d, begin(trace, system, "The daily totals of stations with gaps are too low "
                                "since last week. Find out why and mend it."))
    main.step("I look at what there is.", (("list_files", {"folder": "tidelog"}), files))
    main.step("", read("tidelog/totals.py", source(d, "Daily totals.", 15)), thoughts=3)
    main.step("", (("search", {"expression": "daily_total|gap", "limit": 40}), "\n".join(
        f"tidelog/{d.pick(NOUNS)}.py:{d.below(300)}:    {d.pick(VERBS)}_{d.pick(NOUNS)}s(gap)"
        for _ in range(26))))
    main.step("The tests first.", tests(test_run(d, 42, {7, 19, 20})), thoughts=4)

    # A helper with the same system prompt and tools, while the main conversation goes on.
    helper = Talk(trace, d, begin(trace, system, "Find every place in tidelog that treats a gap as "
                                  "zero. Report files and lines, and change nothing."))
    main.step("Meanwhile I read the file that the failures name.",
              read("tidelog/series.py", source(d, "Series of readings.", 14)))
    helper.step("", (("search", {"expression": "or 0\\b", "limit": 60}), "\n".join(
        f"tidelog/{d.pick(NOUNS)}.py:{d.below(300)}:    level = row.{d.pick(NOUNS)} or 0"
        for _ in range(30))))
    main.step("", read("tests/test_totals.py", source(d, "Tests of the totals.", 11)), thoughts=1)
    helper.step("", read("tidelog/window.py", source(d, "Windows over series.", 10)))
    report = "Four places: " + thought(d, 6)
    helper.answer(report, 3)
    main.step("", (("ask_helper", {"question": "Where is a gap treated as zero?"}), report))

    main.step("The sum takes a gap for a zero.", edit(d, "tidelog/totals.py"), thoughts=5)
    repeated = dict(trace.lines[main.line - 1])
    main.line = trace.add(repeated)  # the client lost the answer and asked again
    main.step("", tests(test_run(d, 42, {19})), thoughts=2)
    main.step("One is left: the window's edge.", edit(d, "tidelog/series.py"),
              edit(d, "tidelog/window.py"), thoughts=3)
    main.step("", tests(test_run(d, 44, set())), thoughts=1)
    main.answer("Totals skip gaps now. " + thought(d, 4), 2)
    main.user("Why did you not use NaN for a gap? Answer in two sentences, change nothing.")
    main.answer(thought(d, 3), 4)

    # A new task, which the user then puts differently: the conversation is taken back to here.
    fork, before = main.line, list(main.pending)
    main.user("Good. Now add an export of the daily totals as CSV, with a test.")
    main.step("", read("tidelog/report.py", source(d, "Reports.", 11)))
    main.step("", edit(d, "tidelog/report.py"), thoughts=4)
    main.line, main.pending = fork, before
    main.user("Good. Now add an export of the daily totals as JSON lines, not CSV, with a test; one "
              "line a day, gaps as null.")
    main.step("", read("tidelog/report.py", source(d, "Reports.", 11)),
              read("tidelog/record.py", source(d, "Records.", 7)))
    main.step("", edit(d, "tidelog/report.py"), thoughts=5)
    main.step("", (("write_file", {"path": "tests/test_export.py",
                                   "content": source(d, "Tests of the export.", 4)}),
                   "tests/test_export.py: written"))
    main.step("", tests(test_run(d, 48, {45})), thoughts=1)
    main.step("The null is missing.", edit(d, "tidelog/record.py"))
    main.step("", tests(test_run(d, 48, set())), thoughts=1)
    main.answer("The export is there. " + thought(d, 5), 2)
    main.user("Write the entry for the change log.")
    trace.lines[-1]["usage"] = {"generated_tokens": 160}
    return trace.lines


for request in session():
    sys.stdout.write(json.dumps(request, ensure_ascii=False, separators=(",", ":")) + "\n")
