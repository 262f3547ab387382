"""The native engine: nodes, matching, integer expressions, indices, launching. No policy."""
