"""`python training/divergence.py` is `python -m dreamenvs.cli.divergence`, for those who have the repository."""

import tyro

from dreamenvs.cli.divergence import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
