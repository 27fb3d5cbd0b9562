"""What numbers look like on the wire: as they are, in few bits, in fixed point under masks, or with private noise."""
