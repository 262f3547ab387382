"""The cases of the API suite, a file for each theme; `case` runs them, `names` says what is due."""
