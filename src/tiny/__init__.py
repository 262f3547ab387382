"""A deep-learning framework whose compiler is fast twice."""
