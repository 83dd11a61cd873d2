"""`python training/model_free.py` is `python -m dreamenvs.cli.model_free`, for those who have the repository."""

import tyro

from dreamenvs.cli.model_free import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
