"""Encoders and decoders of one protocol."""
