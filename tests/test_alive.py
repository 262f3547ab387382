"""Lists of living objects: those that die leave them, whatever dies with them looks."""

from __future__ import annotations

import gc
import weakref

from tiny._core.alive import Alive, Member


class Thing(Member):
    """A member with room for one object."""

    __slots__ = ("__weakref__", "held")


class Looker:
    """Looks at a list when it dies."""

    def __init__(self, alive: Alive, seen: list[int]) -> None:
        self.alive, self.seen = alive, seen

    def __del__(self) -> None:
        self.seen.append(len(self.alive.members()))


def test_members_stand_in_the_order_in_which_they_joined():
    alive, things = Alive(), [Thing() for _ in range(4)]
    for thing in things:
        alive.add(thing)
    alive.add(things[1])
    assert alive.members() == [things[0], things[2], things[3], things[1]]
    alive.discard(things[2])
    alive.discard(things[2])
    del things[0]
    assert alive.members() == [things[2], things[0]]


def test_a_member_stands_in_one_list():
    first, second, thing = Alive(), Alive(), Thing()
    first.add(thing)
    second.add(thing)
    assert first.members() == [] and second.members() == [thing]
    del second
    first.add(thing)
    assert first.members() == [thing]


def test_a_dying_member_is_not_found():
    alive, seen = Alive(), []
    thing = Thing()
    thing.held = Looker(alive, seen)
    watch = weakref.ref(thing, lambda _: seen.append(len(alive.members())))
    alive.add(thing)
    del thing
    assert watch() is None and seen == [0, 0]


def test_members_in_circles_leave_when_they_are_collected():
    alive = Alive()
    for _ in range(10):
        a, b = Thing(), Thing()
        a.held, b.held = b, a
        alive.add(a)
        alive.add(b)
    del a, b
    gc.collect()
    assert alive.members() == []


def test_a_list_keeps_nothing_alive():
    alive = Alive()
    for _ in range(1000):
        alive.add(Thing())
    assert alive.members() == []
