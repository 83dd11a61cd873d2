"""`python training/suite.py` is `python -m dreamenvs.cli.study`, for those who have the repository."""

import tyro

from dreamenvs.cli.study import Args, main

if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
