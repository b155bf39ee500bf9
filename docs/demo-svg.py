#!/usr/bin/env python3
"""Draws what a terminal showed as an SVG that reads well on light and on dark pages.

Usage: demo-svg.py COMMAND [COLUMNS] < TYPESCRIPT > PICTURE.svg     (`make picture` does it)

TYPESCRIPT is what `script -qec` recorded; COMMAND is shown as the line that was typed.
"""

import re
import sys
from xml.sax.saxutils import escape

COLUMNS = int(sys.argv[2]) if len(sys.argv) > 2 else 104
SIZE, LINE, MARGIN = 13, 18, 20
# A monospaced glyph is 0.6 em wide; the text is stretched to that, whatever the font.
GLYPH = SIZE * 0.6

STYLE = """
text { font: %dpx ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre; fill: #1f2328 }
.page { fill: #f6f8fa; stroke: #d0d7de }
.b { font-weight: bold } .f { fill: #656d76 } .g { fill: #1a7f37 } .r { fill: #cf222e }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.page { fill: #0d1117; stroke: #30363d }
.f { fill: #8d96a0 } .g { fill: #3fb950 } .r { fill: #f85149 }
}
""" % SIZE

CLASSES = {"1": "b", "2": "f", "31": "r", "32": "g"}


def shown(line):
    """What is left of a line after the terminal has overwritten its parts."""
    line = line.rstrip("\r")
    return line.rsplit("\r", 1)[-1].replace("\x1b[K", "")


def spans(line):
    """The line as (classes, text), cut at the last column."""
    classes, left = [], COLUMNS
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            codes = part[2:-1].split(";")
            classes = [] if codes in (["0"], [""]) else classes + [CLASSES[code] for code in codes if code in CLASSES]
        elif part and left > 0:
            text = part if len(part) <= left else part[: left - 1] + "…"
            left -= len(text)
            yield " ".join(classes), text


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    lines = [shown(line) for line in sys.stdin.read().split("\n")]
    lines = [line for line in lines if not line.startswith(("Script started", "Script done"))]
    lines = [f"\x1b[2m$\x1b[0m \x1b[1m{sys.argv[1]}\x1b[0m"] + lines
    while lines and not lines[-1].strip():
        lines.pop()
    width, height = round(COLUMNS * GLYPH) + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(sys.argv[1])}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
    ]
    for number, line in enumerate(lines):
        column, y = 0, MARGIN + number * LINE + SIZE
        for classes, text in spans(line):
            x, length = MARGIN + column * GLYPH, len(text) * GLYPH
            if text.strip():
                mark = f' class="{classes}"' if classes else ""
                out.append(f'<text{mark} x="{x:.1f}" y="{y}" textLength="{length:.1f}" xml:space="preserve">{escape(text)}</text>')
            column += len(text)
    out.append("</svg>")
    print("\n".join(out))


main()
