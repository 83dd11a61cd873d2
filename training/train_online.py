"""`python training/train_online.py` is `python -m dreamenvs.cli.online`, for those who have the repository."""

from dreamenvs.cli.command_line import parse
from dreamenvs.cli.online import Args, main

if __name__ == "__main__":
    main(parse(Args))
