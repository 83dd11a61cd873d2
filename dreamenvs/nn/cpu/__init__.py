"""What makes inference on CPUs fast."""
