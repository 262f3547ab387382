"""The native engine: nodes, matching, integer expressions, indices, launching. No policy."""

from tiny.helpers import short_spins

with short_spins():  # `launch` loads OpenMP, which reads it then
    from tiny._core import launch as launch
