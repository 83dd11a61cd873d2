"""The ways from experience to a dream and from a dream to an agent, shared by the Python API and the commands."""
