"""The report of a study: figures, plots and text."""
