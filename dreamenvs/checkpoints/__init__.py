"""World models on disk: the format, the card, where dreams are kept and found."""
