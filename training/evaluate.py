"""`python training/evaluate.py` is `python -m dreamenvs.cli.evaluate`, for those who have the repository."""

import tyro

from dreamenvs.cli.evaluate import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
