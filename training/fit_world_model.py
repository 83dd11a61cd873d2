"""`python training/fit_world_model.py` is `python -m dreamenvs.cli.fit`, for those who have the repository."""

import tyro

from dreamenvs.cli.fit import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
