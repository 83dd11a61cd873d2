"""`python training/train_agent.py` is `python -m dreamenvs.cli.train`, for those who have the repository."""

from dreamenvs.cli.command_line import parse
from dreamenvs.cli.train import Args, main

if __name__ == "__main__":
    main(parse(Args))
