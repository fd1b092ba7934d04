"""Texts from outside, made fit for a log, a table, a page or a spreadsheet."""

from __future__ import annotations

import unicodedata


def clean(text: object, longest: int, ends: bool = False) -> str:
    """A text from outside as one short line that can be printed: no control or direction characters.

    `ends`: of a longer text the beginning and the end, where a traceback has its cause.

    >>> clean("Basel\\n[ERROR] \\u202eall is lost", longest=20)
    'Basel [ERROR] all i…'
    >>> clean("Traceback of an error:\\n  in line 7\\nValueError", longest=20, ends=True)
    'Tra … e 7 ValueError'
    """
    if not isinstance(text, str):
        return ""
    # Unicode's categories C (control, format, surrogates, unassigned) and Z (separators); cut first, it may be huge.
    shown = (" " if unicodedata.category(c)[0] == "Z" or c in "\n\t" else c for c in text[: 4 * longest])
    line = " ".join("".join(c for c in shown if unicodedata.category(c)[0] != "C").split())
    if len(line) <= longest:
        return line
    tail = clean(text[-4 * longest :], 4 * longest)[-2 * longest // 3 :] if ends else ""
    return f"{line[: longest - len(tail) - 3]} … {tail}" if tail else line[: longest - 1] + "…"


def cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula: with an apostrophe before it where it would.

    >>> cell("=cmd|' /C calc'!A0"), cell("well")
    ("'=cmd|' /C calc'!A0", 'well')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text
