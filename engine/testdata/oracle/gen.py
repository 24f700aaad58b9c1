#!/usr/bin/env python3
"""Random cases answered by CPython's standard library.

    gen.py KIND CASES SEED     one JSON object per line on standard output
    gen.py vectors             writes KIND.jsonl for every kind beside this file

Kinds: repr, compare, fnmatch, search, ratio. The Go tests of the packages value,
pattern and difflib always run against the files; with GOVNODE_ORACLE=1 they also
ask this program for 10,000 new cases of each kind.

The answers depend on the Unicode version of the Python release where a text has
characters that are not assigned in all versions. The vectors were made with
version 14 (Python 3.11); the Go tests leave out texts with characters that one
side does not know.
"""
import difflib
import fnmatch
import json
import os
import random
import re
import struct
import sys
import unicodedata


def known(lo, hi):
    """Characters of a range that are assigned, or never will be."""
    return [chr(c) for c in range(lo, hi)
            if unicodedata.category(chr(c)) not in ("Cn", "Cs") or c & 0xFFFE == 0xFFFE or 0xFDD0 <= c <= 0xFDEF]


ASCII = [chr(c) for c in range(128)]
WORDS = list("aabbccdeEiIkKsSxyz019_-.,: /")
QUOTES = list("'\"\\\n\r\t\x00\x7f ")
LATIN = known(0x80, 0x180)
BMP = known(0x180, 0x10000)
ASTRAL = known(0x10000, 0x110000)
FOLDS = list("İıKÅſßẞΣσςΐΰﬅﬆǅǆµμ\u0307")
SPACES = list(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u2028\u3000\u200b\ufeff")
DIGITS = list("059٣७𝟘²½Ⅷ")


def text(r, limit, *pools):
    out = []
    for _ in range(r.randrange(limit + 1)):
        out.append(r.choice(r.choice(pools)))
    return "".join(out)


# --- repr ---------------------------------------------------------------------

def any_text(r):
    return text(r, r.choice((3, 12, 40)), WORDS, WORDS, QUOTES, ASCII, LATIN, BMP, ASTRAL, FOLDS, SPACES)


def number(r):
    """The JSON text of a number."""
    kind = r.randrange(8)
    if kind == 0:
        return str(r.randrange(-10, 11))
    if kind == 1:
        return str(r.randrange(-2 ** 70, 2 ** 70))
    if kind == 2:
        return str(r.choice((2 ** 53, 2 ** 63, -2 ** 63, 10 ** 16, 10 ** 30)) + r.randrange(-2, 3))
    if kind == 3:
        f = struct.unpack("<d", r.randbytes(8))[0]
        return json.dumps(f) if f == f and abs(f) != float("inf") else "0.5"
    if kind == 4:
        return json.dumps(r.uniform(-1, 1) * 10 ** r.randrange(-8, 20))
    if kind == 5:
        return "%d.%d%s" % (r.randrange(-99, 99), r.randrange(1000), r.choice(("", "E5", "e-7", "e+15", "E16")))
    if kind == 6:
        return r.choice(("-0", "-0.0", "0.0", "1e16", "1e15", "0.0001", "0.00001", "1.0", "100", "1E2", "5e-324", "1.7976931348623157e308"))
    return str(r.randrange(-10 ** 6, 10 ** 6))


def document(r, depth=0):
    """The text of a random JSON value."""
    kind = r.randrange(7 if depth < 3 else 4)
    if kind == 0:
        return r.choice(("null", "true", "false"))
    if kind in (1, 2):
        return json.dumps(any_text(r), ensure_ascii=r.random() < 0.5)
    if kind == 3:
        return number(r)
    if kind == 4:
        return "[" + ", ".join(document(r, depth + 1) for _ in range(r.randrange(5))) + "]"
    pairs = {any_text(r): document(r, depth + 1) for _ in range(r.randrange(14 if depth == 0 and r.random() < 0.2 else 4))}
    return "{" + ",".join(json.dumps(k) + " : " + v for k, v in pairs.items()) + "}"


def case_repr(r):
    doc = document(r)
    value = json.loads(doc)
    return {"json": doc, "repr": repr(value), "str": str(value), "compact": json.dumps(value, ensure_ascii=False, separators=(",", ":"))}


# --- compare ------------------------------------------------------------------

NEAR = ["0", "1", "1.0", "true", "false", "null", "-1", "2", "0.0", "-0.0", '""', '"1"', '"a"', '"ab"', '"é"', '"\\uffff"',
        '"\\ud83d\\ude00"', "9007199254740992", "9007199254740993", "9007199254740992.0", "9223372036854775807",
        "9223372036854775808", "9.223372036854775807e18", "1e30", "1000000000000000000000000000000",
        "1000000000000000019884624838656", "-1e30", "1e308", "5e-324", "[]", "{}", "[1]", "[1.0, 2]", "[true, 2]",
        "[null, 1]", "[null, 2]", '["a", 1]', '[1, "a"]', '{"a": 1}', '{"a": 1.0, "b": 2}', '{"b": 2, "a": true}', "[[1], 2]", "[[1, 0]]"]

NUMERIC = [x for x in NEAR if x[0] in "-0123456789tf"]


def near(r, depth=0):
    if r.random() < 0.15:
        return number(r)
    if r.random() < 0.7 or depth > 2:
        return r.choice(NEAR)
    if r.random() < 0.5:
        return "[" + ",".join(near(r, depth + 1) for _ in range(r.randrange(4))) + "]"
    keys = r.sample(["a", "b", "c"], r.randrange(4))
    return "{" + ",".join(json.dumps(k) + ":" + near(r, depth + 1) for k in keys) + "}"


def case_compare(r):
    x = near(r)
    y = x if r.random() < 0.2 else near(r)
    if r.random() < 0.4:
        x, y = number(r) if r.random() < 0.3 else r.choice(NUMERIC), r.choice(NUMERIC)
    if r.random() < 0.2:
        x, y = "[%s, %s]" % (x, near(r)), "[%s, %s]" % (x if r.random() < 0.5 else y, near(r))
    a, b = json.loads(x), json.loads(y)
    try:
        order = -1 if a < b else 1 if a > b else 0
    except TypeError:
        order = None
    return {"a": x, "b": y, "equal": a == b, "order": order}


# --- fnmatch ------------------------------------------------------------------

def glob(r):
    parts = []
    for _ in range(r.randrange(1, 7)):
        k = r.randrange(10)
        if k < 2:
            parts.append("*")
        elif k == 2:
            parts.append("?")
        elif k in (3, 5):
            parts.append("[" + text(r, 5, list("abc-!]^[\\&~|-"), list("abcz09-!-"), FOLDS) + r.choice(("]", "]", "]", "")))
        elif k == 4:
            parts.append(text(r, 3, QUOTES, list("[]!^-.\\{}()+$|"), LATIN))
        else:
            parts.append(text(r, 4, list("abcABC./")))
    return "".join(parts)


def name_for(r, pattern):
    """A text that has some chance to match."""
    out = []
    for c in pattern:
        if c in "*?" or r.random() < 0.1:
            out.append(text(r, 3 if c == "*" else 1, list("abcABC./-"), QUOTES, FOLDS))
        elif c == "[" or c == "]":
            out.append(r.choice(("", "a", "b", "-", "]", "[", "!", "\\", "^")))
        else:
            out.append(c)
    return "".join(out)


def case_fnmatch(r):
    g = glob(r)
    n = name_for(r, g)
    found = re.compile(fnmatch.translate(g), re.IGNORECASE).search(n)
    return {"glob": g, "name": n, "match": fnmatch.fnmatchcase(n, g), "search": found is not None}


# --- search -------------------------------------------------------------------

ATOMS = ["a", "b", "E", "i", "I", "k", "s", "x", "1", "_", "-", ".", r"\.", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S",
         r"\n", r"\t", r"\x41", r"\u00e9", r"\u0130", r"\U0001D7D8", r"\'", r"\"", r"\-", r"\ ", r"\\", r"\/", " ", "é", "ſ", "ı", "K", "ß", "Σ", "ﬅ",
         "[abc]", "[^abc]", "[a-f0-3]", r"[\w.-]", r"[^\s]", r"[^\W_]", r"[\d\s]", r"[\S\n]", r"[]a]", r"[^]a]", r"[a\]b]", r"[\-a]", "[i]", "[^i]",
         "[H-K]", r"[\x61-\x63]", r"[\u0100-\u017f]", "[[a]", "[a-]", r"[^\S\n]", "(?i:A)", "(?-i:A)", "(?s:.)", "(?:)", r"\A", "^", r"\012", r"[\b]"]


def expression(r, depth=0):
    out = []
    for _ in range(r.randrange(1, 5)):
        k = r.randrange(8)
        if k == 0 and depth < 3:
            inner = expression(r, depth + 1)
            if r.random() < 0.4:
                inner += "|" + expression(r, depth + 1)
            atom = r.choice(("(", "(?:", "(?P<n%d>" % r.randrange(10 ** 9))) + inner + ")"
        else:
            atom = r.choice(ATOMS)
        if atom not in (r"\A", "^") and r.random() < 0.3:
            # A group gets no unbounded count: Python's engine could take for ever.
            bounded = ("?", "{2}", "{,2}", "??")
            atom += r.choice(bounded if k == 0 and depth < 3 else bounded + ("*", "+", "*?", "{1,3}", "{2,}"))
        out.append(atom)
    return "".join(out)


def sample(r, tree):
    """A text that the parsed expression matches, more often than not."""
    out = []
    for op, arg in tree:
        op = str(op)
        if op == "LITERAL":
            out.append(chr(arg))
        elif op == "IN":
            out.append(sample_set(r, arg))
        elif op in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, inner = arg
            out += [sample(r, inner) for _ in range(r.randrange(low, min(high, low + 2) + 1))]
        elif op == "SUBPATTERN":
            out.append(sample(r, arg[3]))
        elif op == "BRANCH":
            out.append(sample(r, r.choice(arg[1])))
        elif op != "AT":
            out.append(text(r, 1, WORDS, DIGITS, FOLDS))
    return "".join(out)


def sample_set(r, items):
    op, arg = r.choice(items)
    op = str(op)
    if op == "LITERAL":
        return chr(arg)
    if op == "RANGE":
        return chr(r.randrange(arg[0], arg[1] + 1))
    return r.choice({"CATEGORY_DIGIT": DIGITS, "CATEGORY_SPACE": SPACES}.get(str(arg), WORDS + FOLDS))


def disguise(r, s):
    """The same text with some letters in another case."""
    out = []
    for c in s:
        if r.random() < 0.3:
            c = c.swapcase()
        if r.random() < 0.1:
            c = {"i": "ı", "I": "İ", "k": "\u212a", "s": "ſ", "S": "ſ", "σ": "ς", "\u0390": "\u1fd3", "ß": "ẞ"}.get(c, c)
        out.append(c)
    return "".join(out)


def case_search(r):
    while True:
        e = expression(r) + r.choice(("", "", "", "$", r"\Z"))
        try:
            exact, loose = re.compile(e), re.compile(e, re.IGNORECASE)
        except re.error:
            continue
        break
    noise = (WORDS, WORDS, QUOTES, FOLDS, SPACES, DIGITS, list("é𝟘"))
    t = sample(r, re._parser.parse(e))
    if r.random() < 0.6:
        t = disguise(r, t)
    if r.random() < 0.5:
        t = text(r, 4, *noise) + t
    if r.random() < 0.4:
        t += r.choice(("\n", text(r, 4, *noise)))
    at = r.randrange(len(t) + 1)
    sub = disguise(r, t[at:at + 3]) or r.choice(WORDS)
    return {"expr": e, "text": t, "exact": exact.search(t) is not None, "loose": loose.search(t) is not None,
            "sub": sub, "contains": sub.lower() in t.lower()}


# --- ratio --------------------------------------------------------------------

def case_ratio(r):
    kind = r.randrange(6)
    alphabet = r.choice((list("ab"), list("abcdefgh "), WORDS, LATIN, list("the quick brown fox jumps over")))
    size = r.choice((0, 5, 30, 199, 201, 400)) if kind else r.choice((600, 1200))
    a = "".join(r.choice(alphabet) for _ in range(r.randrange(size + 1)))
    b = list(a)
    for _ in range(r.randrange(1 + len(b) // r.choice((2, 5, 20, 100)))):
        at = r.randrange(len(b) + 1)
        edit = r.randrange(4)
        if edit == 0:
            b.insert(at, r.choice(alphabet))
        elif edit == 1:
            del b[at:at + r.randrange(4)]
        elif edit == 2:
            b[at:at + 1] = [r.choice(alphabet)]
        else:
            cut = r.randrange(at + 1)
            b = b[:cut] + b[at:] + b[cut:at]
    b = "".join(b)
    if kind == 1:
        b = "".join(r.choice(alphabet) for _ in range(r.randrange(size + 1)))
    return {"a": a, "b": b, "ratio": difflib.SequenceMatcher(None, a, b).ratio()}


KINDS = {"repr": case_repr, "compare": case_compare, "fnmatch": case_fnmatch, "search": case_search, "ratio": case_ratio}
KEPT = {"repr": 400, "compare": 500, "fnmatch": 500, "search": 500, "ratio": 250}


def write(out, kind, cases, seed):
    r = random.Random("%s %d" % (kind, seed))
    for _ in range(cases):
        out.write(json.dumps(KINDS[kind](r)) + "\n")


def main(args):
    if args == ["vectors"]:
        for kind, cases in KEPT.items():
            with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), kind + ".jsonl"), "w") as out:
                write(out, kind, cases, 1)
    elif len(args) == 3 and args[0] in KINDS:
        write(sys.stdout, args[0], int(args[1]), int(args[2]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    import warnings
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
