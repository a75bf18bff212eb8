"""Hints as in model5.py, but after the head a courier looks and writes the hint again only if it is gone."""

import model2 as M
from model import explore, show
from model5 import drop, gc, rm, fin, ok, i


def courier(me, epoch):
    def g():
        yield ("put", f"idx/{epoch}", 1)
        while True:
            head = yield ("get", "h")
            ok_ = yield ("cas", "h", head, (me, epoch, False, (head[3] + 1) if head else 1))
            if ok_:
                break
        there = yield ("get", f"idx/{epoch}")
        if not there:
            yield ("put", f"idx/{epoch}", 1)

    return g


show("look: re-ship at the same epoch, rm", explore([courier("A", 9), rm()], ok, final=fin, init=i), ["A", "rm"])
show(
    "look: 9->4 and 4->9 beside gc and rm",
    explore([courier("A", 4), courier("B", 9), gc(), rm()], ok, final=fin, init=i),
    ["A", "B", "gc", "rm"],
)
show(
    "look: two couriers beside gc and gc",
    explore([courier("A", 9), courier("B", 9), gc(), gc()], ok, final=fin, init=i),
    ["A", "B", "gc", "gc2"],
)
show("look: first ship beside gc", explore([courier("A", 9), gc()], ok, final=fin), ["A", "gc"])
