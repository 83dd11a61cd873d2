"""The commands, one module each; progress bars, run directories and logs live here and nowhere else."""
