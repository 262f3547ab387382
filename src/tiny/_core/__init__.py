"""The native engine: nodes, matching, integer expressions, index functions, launching. No policy."""
