"""What is on disk, complete or absent: atomic directories and files, and compressed frames."""
