"""`python -m dasrel` is the command `dasrel`."""

from dasrel.cli import main

if __name__ == "__main__":
    main()
