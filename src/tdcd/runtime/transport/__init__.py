"""How messages travel: the interface, and zenoh over mutual TLS."""
