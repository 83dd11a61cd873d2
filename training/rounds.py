"""`python training/rounds.py` is `python -m dreamenvs.cli.rounds`, for those who have the repository."""

import tyro

from dreamenvs.cli.rounds import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
