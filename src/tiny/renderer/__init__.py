"""From a linear program to the source text of a target."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tiny.codegen.program import LinearProgram
from tiny.uop.target import Target

__all__ = ["Renderer"]


class Renderer(ABC):
    """Turns linear programs into source text for one target."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @abstractmethod
    def render(self, program: LinearProgram) -> str:
        """The source of a program. TypeError if it holds what the target has no way to say."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target.device}, {self.target.arch})"
