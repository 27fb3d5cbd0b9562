"""Certificates: issuing and checking them."""
