"""`python training/collect.py` is `python -m dreamenvs.cli.collect`, for those who have the repository."""

import tyro

from dreamenvs.cli.collect import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
