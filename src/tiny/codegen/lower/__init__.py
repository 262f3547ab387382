"""From a kernel whose axes are typed to a linear program."""

from tiny.codegen.lower.linearize import linearize

__all__ = ["linearize"]
