"""`python training/evaluate.py` is `python -m dreamenvs.cli.evaluate`, for those who have the repository."""

from dreamenvs.cli.command_line import parse
from dreamenvs.cli.evaluate import Args, main

if __name__ == "__main__":
    main(parse(Args))
