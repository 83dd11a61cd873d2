"""`python training/convert_lpips.py` is `python -m dreamenvs.cli.lpips`, for those who have the repository."""

import tyro

from dreamenvs.cli.lpips import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
