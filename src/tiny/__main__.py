"""`python -m tiny`: the command line."""

from tiny.cli import main

if __name__ == "__main__":
    main()
