"""Messages between parties: their structures, their form on the wire, and what is taken of them."""
