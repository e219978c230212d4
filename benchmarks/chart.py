"""A chart of times as two SVG files, one for light pages and one for dark ones; steps.py --chart draws it.

It needs nothing but Python. Each net has a scale of its own, from 0 to the slowest contestant. Each bar has its number.
"""

from html import escape
from pathlib import Path

COLOURS = {  # of text, of faint text, of caffelite's bars, of the others' bars
    "": ("#1f2328", "#59636e", "#0072b2", "#c8ccd1"),
    "-dark": ("#e6edf3", "#9198a1", "#56b4e9", "#484f58"),
}
COLUMNS, WIDTH, NAMES = 2, 380, 112  # pixels of a net, and of the names in it
LINE, HEAD, GAP, FOOT = 19, 26, 22, 26


def write(path, nets, caption):
    """Write `path`, whose name ends with ".svg", and beside it the dark one, whose name ends with "-dark.svg".

    `nets` has for each net's title the contestants' times, as multiples of the first one's.
    """
    path = Path(path)
    for ending, colours in COLOURS.items():
        path.with_name(f"{path.stem}{ending}.svg").write_text(render(nets, caption, *colours), encoding="utf-8")


def render(nets, caption, ink, faint, own_colour, peer_colour):
    """Return the text of an SVG file."""
    rows = [list(nets.items())[i : i + COLUMNS] for i in range(0, len(nets), COLUMNS)]
    shapes, top = [], 0
    for row in rows:
        for column, (title, times) in enumerate(row):
            left = column * (WIDTH + GAP)
            shapes.append(f'<text x="{left}" y="{top + 14}" fill="{ink}" font-weight="600">{escape(title)}</text>')
            room = WIDTH - NAMES - 44
            for number, (name, time) in enumerate(times.items()):
                y = top + HEAD + number * LINE
                length = max(1.5, room * time / max(times.values()))
                number_at = left + NAMES + length + 5
                text = f"{time:.2g}"
                weight = ' font-weight="600"' if number == 0 else ""
                colour = own_colour if number == 0 else peer_colour
                attributes = f'y="{y + 11}" fill="{ink}"{weight}'
                shapes += [
                    f'<text x="{left + NAMES - 8}" text-anchor="end" {attributes}>{escape(name)}</text>',
                    f'<rect x="{left + NAMES}" y="{y}" width="{length:.1f}" height="14" rx="2" fill="{colour}"/>',
                    f'<text x="{number_at:.1f}" {attributes}>{text}</text>',
                ]
        top += HEAD + LINE * max(len(times) for _, times in row) + GAP
    width, height = COLUMNS * WIDTH + (COLUMNS - 1) * GAP, top - GAP + FOOT
    shapes.append(f'<text x="0" y="{height - 6}" font-size="11" fill="{faint}">{escape(caption)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13"'
    return "\n".join([f'{head} {font} role="img">', f"<title>{escape(caption)}</title>", *shapes, "</svg>", ""])
