#!/usr/bin/env python3
"""hello.c in Python: a conversation through the C API, by cffi (python3-cffi, or pip install cffi).

    make shared
    examples/hello.py build/libcalla.so include/calla.h MODEL_DIR "What is 47 + 38?" "And minus 5?"

cffi reads the declarations from calla.h itself, so structs and constants are those of the library.
"""

import json
import re
import sys

import cffi


def load(library, header):
    text = open(header, encoding="utf-8").read()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"\\\n", " ", text)
    numbers = dict(re.findall(r"^# *define (CALLA_\w+) +(\d+)u?$", text, re.M))
    lists = dict(re.findall(r"^# *define (\w+)\(X\) +(.*)$", text, re.M))  # X-macros of enumerations
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    for name, rows in lists.items():
        words = re.findall(r"X\((\w+)", rows)
        text = re.sub(name + r"\(\w+\)", lambda m, w=words: ", ".join(w) + ",", text)
    for name, value in numbers.items():
        text = re.sub(r"\b%s\b" % name, value, text)
    text = text.replace("CALLA_API", "").replace('extern "C" {', "")
    text = text[:text.rindex("}")] if text.count("}") > text.count("{") else text
    ffi = cffi.FFI()
    ffi.cdef(text)
    return ffi, ffi.dlopen(library)


class Model:
    """One conversation with one checkpoint."""

    def __init__(self, library, header, folder):
        self.ffi, self.lib = load(library, header)
        self.err = self.ffi.new("calla_error *")
        self.folder = self.ffi.new("char[]", folder.encode())
        options = self.ffi.new("calla_engine_options *", {"model_dir": self.folder})
        engine, session = self.ffi.new("calla_engine **"), self.ffi.new("calla_session **")
        self.check(self.lib.calla_engine_create(engine, options, self.err))
        self.engine = self.ffi.gc(engine[0], self.lib.calla_engine_destroy)
        self.check(self.lib.calla_session_create(session, self.engine, self.ffi.NULL, self.err))
        self.session = session[0]
        self.tokenizer = self.lib.calla_engine_tokenizer(self.engine)

    def close(self):
        self.lib.calla_session_destroy(self.session)

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.ffi.string(self.err.message).decode())

    def feed(self, encode, *arguments):
        ids, n = self.ffi.new("int32_t **"), self.ffi.new("size_t *")
        self.check(encode(self.tokenizer, *arguments, ids, n, self.err))
        self.check(self.lib.calla_session_feed(self.session, ids[0], n[0], self.ffi.NULL, self.ffi.NULL, self.err))
        self.lib.calla_free(ids[0])

    def ask(self, text):
        """Yields the answer's pieces as bytes; a piece may end inside a character."""
        pieces = []
        message = json.dumps([{"role": "user", "content": text}]).encode()
        options = self.ffi.new("calla_chat_options *", {"disable_thinking": True})
        self.feed(self.lib.calla_chat_encode, message, len(message), self.ffi.NULL, 0, options)

        @self.ffi.callback("calla_token_fn")
        def on_token(user, token, data, n):
            pieces.append(self.ffi.buffer(data, n)[:])
            return True

        self.check(self.lib.calla_session_generate(self.session, self.ffi.NULL, on_token, self.ffi.NULL,
                                                   self.ffi.NULL, self.err))
        end = b"<|im_end|>\n"  # ends the reply for the next turn
        self.feed(self.lib.calla_tokenizer_encode, end, len(end), 0)
        return b"".join(pieces).decode("utf-8", "replace")


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    model = Model(*sys.argv[1:4])
    for turn in sys.argv[4:]:
        print(">", turn)
        print(model.ask(turn))
    model.close()


if __name__ == "__main__":
    main()
