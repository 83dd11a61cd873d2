"""`python training/train_agent.py` is `python -m dreamenvs.cli.train`, for those who have the repository."""

import tyro

from dreamenvs.cli.train import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
