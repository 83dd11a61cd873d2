"""Encoders and decoders of frames, one file per paper."""
