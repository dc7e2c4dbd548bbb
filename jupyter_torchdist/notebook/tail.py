"""Terminal output as text: carriage returns, cursor movement and colours applied, the last lines kept."""

from __future__ import annotations

import re

MAX_LINES = 200
_MAX_COLUMNS = 2000
_TOKEN = re.compile(
    r"\x1b\[(?P<args>[0-9;?]*)(?P<command>[A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.?|(?P<control>[\r\n\b])"
    r"|(?P<text>[^\x1b\r\n\b]+)"
)


def screen_text(data: bytes, lines: int = MAX_LINES) -> str:
    """What a terminal would show of ``data``; at most ``lines`` lines, so a progress bar is one line."""
    text = data.decode("utf-8", "replace")
    if "\r" not in text and "\x1b" not in text and "\b" not in text:
        return "\n".join(line[:_MAX_COLUMNS] for line in text.rstrip("\n").split("\n")[-lines:])
    rows: list[str] = [""]
    row = column = 0
    for token in _TOKEN.finditer(text):
        piece, control = token["text"], token["control"]
        if piece:
            line = rows[row].ljust(column)
            rows[row] = (line[:column] + piece + line[column + len(piece) :])[:_MAX_COLUMNS]
            column = min(column + len(piece), _MAX_COLUMNS)
        elif control == "\n":
            row, column = row + 1, 0
            if row == len(rows):
                rows.append("")
        elif control == "\r":
            column = 0
        elif control == "\b":
            column = max(0, column - 1)
        elif token["command"]:
            row, column = _command(token["command"], token["args"], rows, row, column)
    while len(rows) > 1 and not rows[-1]:
        rows.pop()
    return "\n".join(line.rstrip() for line in rows[-lines:])


def _command(command: str, arguments: str, rows: list[str], row: int, column: int) -> tuple[int, int]:
    digits = arguments.split(";")[0]
    count = max(1, int(digits)) if digits.isdigit() else 1
    match command:
        case "A":
            return max(0, row - count), column
        case "B":
            while len(rows) <= row + count and len(rows) < 10_000:
                rows.append("")
            return min(row + count, len(rows) - 1), column
        case "C":
            return row, min(column + count, _MAX_COLUMNS)
        case "D":
            return row, max(0, column - count)
        case "G":
            return row, min(count - 1, _MAX_COLUMNS)
        case "K":
            if digits in ("", "0"):
                rows[row] = rows[row][:column]
            elif digits == "2":
                rows[row] = ""
    return row, column
