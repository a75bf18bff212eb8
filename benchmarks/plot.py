"""The plot: a panel for each scenario with a bar for each client, as SVG and without any library."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from benchmarks.results import Store, in_order

_LABEL, _BARS, _GAP, _ROW, _HEAD = 130, 300, 90, 30, 56
_COLOURS = {"up": "#2b6cb0", "down": "#dd6b20"}
_WIDTH = _LABEL + 2 * (_BARS + _GAP)


def to_svg(store: Store, titles: dict[str, str]) -> str:
    """Wall on the left, CPU on the right, both in seconds; up above down; shorter is better."""
    parts: list[str] = []
    top = 50.0
    for name, title in titles.items():
        peers = in_order(each.peer for each in store.moves if each.scenario == name)
        if peers:
            parts += _panel(store, name, title, peers, top)
            top += _HEAD + _ROW * len(peers) + 16
    legend = (
        f'<text x="10" y="24" font-size="16" font-weight="bold">Seconds, medians: '
        f'<tspan fill="{_COLOURS["up"]}">up</tspan> and <tspan fill="{_COLOURS["down"]}">down</tspan>; '
        "shorter is better</text>"
    )
    start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top:.0f}" font-family="sans-serif">'
    return "\n".join([start, '<rect width="100%" height="100%" fill="white"/>', legend, *parts, "</svg>", ""])


def _panel(store: Store, name: str, title: str, peers: list[str], top: float) -> Iterator[str]:
    yield f'<text x="10" y="{top + 18:.0f}" font-size="14" font-weight="bold">{escape(title)}</text>'
    moved = max(each.total_bytes for each in store.moves if each.scenario == name) / (1 << 20)
    yield f'<text x="{_WIDTH - 10}" y="{top + 18:.0f}" font-size="12" text-anchor="end">{moved:,.0f} MiB moved</text>'
    for column, (what, of) in enumerate((("wall", store.wall), ("CPU", store.cpu))):
        left = _LABEL + column * (_BARS + _GAP)
        values = {(peer, way): of(name, peer, way) for peer in peers for way in _COLOURS}
        longest = max((each for each in values.values() if each), default=1.0)
        yield f'<text x="{left}" y="{top + 40:.0f}" font-size="12" fill="#555">{what}, s</text>'
        for row, peer in enumerate(peers):
            y = top + _HEAD - 8 + row * _ROW
            if column == 0:
                weight = "bold" if peer == "r2d1" else "normal"
                yield f'<text x="10" y="{y + 16:.0f}" font-size="12" font-weight="{weight}">{escape(peer)}</text>'
            for line, way in enumerate(_COLOURS):
                value = values[peer, way]
                if value is not None:
                    yield _bar(left, y + line * 12, value, longest, _COLOURS[way])


def _bar(left: float, y: float, value: float, longest: float, colour: str) -> str:
    width = max(1.0, _BARS * value / longest)
    bar = f'<rect x="{left}" y="{y:.0f}" width="{width:.1f}" height="11" fill="{colour}"/>'
    return f'{bar}<text x="{left + width + 4:.1f}" y="{y + 9.5:.1f}" font-size="10">{value:.2f}</text>'
