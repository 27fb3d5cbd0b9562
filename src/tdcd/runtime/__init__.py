"""The real federation: hubs and clients as processes of their own, over mutual TLS."""
