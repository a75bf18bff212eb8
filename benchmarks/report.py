"""The report: what was measured as Markdown tables, and the goals beside what was reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.results import Move, Store, in_order, median


def to_markdown(store: Store, titles: dict[str, str], about: Sequence[str], *, with_goals: bool) -> str:
    """The whole report; ``titles`` by scenario, in order."""
    parts = [
        "# r2d1 beside its peers",
        "",
        *(f"- {line}" for line in (*about, *store.notes)),
        "",
        "![plot](plot.svg)",
        "",
    ]
    if with_goals and (goals := list(_goals(store))):
        parts += ["## Goals", "", *_table(("goal", "measured", "wanted", ""), goals), ""]
    if with_goals and (per_gib := list(_per_gib(store))):
        parts += ["## CPU seconds per GiB moved, (CPU at 4 GiB - CPU at 1 GiB) / 3", ""]
        parts += [*_table(("client", "up", "down"), per_gib), ""]
    for name, title in titles.items():
        if rows := [*_moves(store, name), *_facts(store, name)]:
            parts += [f"## {title} (`{name}`)", "", *rows]
    if store.failures:
        parts += ["## What failed", "", *(f"```\n{each}\n```" for each in store.failures), ""]
    return "\n".join(parts)


def _moves(store: Store, scenario: str) -> list[str]:
    moves = [each for each in store.moves if each.scenario == scenario]
    if not moves:
        return []
    columns = ("wall s", "CPU s", "peak MiB", "requests A+B", "connections", "at once")
    heads = ["client", "runs", *(f"{way} {each}" for way in ("up", "down") for each in columns)]
    rows = []
    for peer in in_order(each.peer for each in moves):
        of = {way: [each for each in moves if (each.peer, each.direction) == (peer, way)] for way in ("up", "down")}
        cells = [cell for way in ("up", "down") for cell in _cells(of[way])]
        rows.append([peer, str(len(of["up"])), *cells])
    moved = " or ".join(f"{each / (1 << 20):,.1f} MiB" for each in in_order(each.total_bytes for each in moves))
    return [f"{moved} moved each way.", "", *_table(heads, rows), ""]


def _cells(moves: list[Move]) -> list[str]:
    if not moves:
        return ["–"] * 6

    def shown(of: Callable[[Move], float | None], digits: int) -> str:
        value = median(found for each in moves if (found := of(each)) is not None)
        return "–" if value is None else f"{value:.{digits}f}"

    classes = f"{shown(lambda each: each.class_a, 0)}+{shown(lambda each: each.class_b, 0)}"
    return [
        shown(lambda each: each.wall, 2),
        shown(lambda each: each.cpu, 2),
        f"{max(each.peak_mib for each in moves):.0f}",
        classes if classes != "–+–" else "–",
        shown(lambda each: each.connections, 0),
        shown(lambda each: each.most_at_once, 0),
    ]


def _facts(store: Store, scenario: str) -> list[str]:
    facts = [each for each in store.facts if each.scenario == scenario]
    if not facts:
        return []
    rows = []
    for subject, name in in_order((each.subject, each.name) for each in facts):
        values = [each.value for each in facts if (each.subject, each.name) == (subject, name)]
        rows.append(
            [
                subject,
                name,
                *(f"{each:.2f}" for each in (median(values), min(values), max(values)) if each is not None),
                str(len(values)),
            ]
        )
    return [*_table(("of", "what", "median", "least", "most", "runs"), rows), ""]


def _per_gib(store: Store) -> Iterable[list[str]]:
    for peer in in_order(each.peer for each in store.moves if each.scenario == "tls-4g"):
        both = [store.cpu_per_gib(peer, way) for way in ("up", "down")]
        yield [peer, *("–" if each is None else f"{each:.2f}" for each in both)]


def _goals(store: Store) -> Iterable[list[str]]:
    """What is asked of r2d1, as ratios within this run."""
    yield from _ratio(
        "CPU per GiB up / obstore", store.cpu_per_gib("r2d1", "up"), store.cpu_per_gib("obstore", "up"), 0.9
    )
    unchecked = store.cpu_per_gib("r2d1[unchecked]", "up")
    yield from _ratio("CPU per GiB up, check off / obstore", unchecked, store.cpu_per_gib("obstore", "up"), 0.8)
    yield from _ratio("CPU per GiB up / s5cmd", store.cpu_per_gib("r2d1", "up"), store.cpu_per_gib("s5cmd", "up"), 0.45)
    down = store.cpu_per_gib("r2d1", "down")
    yield from _ratio("CPU per GiB down / obstore", down, store.cpu_per_gib("obstore", "down"), 1.0)
    for way in ("up", "down"):
        others = [each for each in in_order(move.peer for move in store.moves) if not each.startswith("r2d1")]
        walls = [wall for each in others if (wall := store.wall("link-40-10", each, way)) is not None]
        best = min(walls, default=None)
        yield from _ratio(f"link-40-10 {way}: wall / best peer", store.wall("link-40-10", "r2d1", way), best, 0.6)
        for what, of in (("wall", store.wall), ("CPU", store.cpu)):
            yield from _ratio(f"small {way}: {what} / s5cmd", of("small", "r2d1", way), of("small", "s5cmd", way), 1.0)
    yield from _steady_goals(store)
    step = "step, mean ms"
    inside, beside = store.fact("training", "inside", step), store.fact("training", "beside", step)
    yield from _ratio("training step inside / beside", inside, beside, 1.10)
    yield from _limit(
        "first request after the rename, ms", store.fact("trigger", "r2d1", "rename to first request, ms"), 100
    )
    peaks = [each.peak_mib for each in store.moves if each.peer == "r2d1"]
    yield from _limit("r2d1's peak in any scenario, MiB", max(peaks, default=None), 160)


def _steady_goals(store: Store) -> Iterable[list[str]]:
    what = "MB/s after 3 s"
    for scenario in in_order(each.scenario for each in store.facts if each.scenario.startswith("steady-")):
        for way in ("up", "down"):
            subjects = in_order(each.subject for each in store.facts if each.scenario == scenario)
            fixed = [each for each in subjects if each.startswith("r2d1[") and each.endswith(f", {way}")]
            best = max(
                (value for each in fixed if (value := store.fact(scenario, each, what)) is not None), default=None
            )
            ours = store.fact(scenario, f"r2d1, {way}", what)
            if ours is not None and best:
                yield _row(f"{scenario} {way}: MB/s / best fixed", f"{ours / best:.2f}", "≥ 0.90", ours / best >= 0.9)


def _ratio(what: str, ours: float | None, theirs: float | None, wanted: float) -> Iterable[list[str]]:
    if ours is not None and theirs:
        shown = f"{ours:.2f} / {theirs:.2f} = {ours / theirs:.2f}"
        yield _row(what, shown, f"≤ {wanted:.2f}", ours / theirs <= wanted)


def _limit(what: str, value: float | None, wanted: float) -> Iterable[list[str]]:
    if value is not None:
        yield _row(what, f"{value:.1f}", f"≤ {wanted:.0f}", value <= wanted)


def _row(what: str, measured: str, wanted: str, is_reached: bool) -> list[str]:
    return [what, measured, wanted, "reached" if is_reached else "**missed**"]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (heads, ["---"] * len(heads), *rows)]
