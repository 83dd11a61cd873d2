"""`python training/fit_world_model.py` is `python -m dreamenvs.cli.fit`, for those who have the repository."""

from dreamenvs.cli.command_line import parse
from dreamenvs.cli.fit import Args, main

if __name__ == "__main__":
    main(parse(Args))
