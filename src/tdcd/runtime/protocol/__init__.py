"""What parties say to each other: hub and client as state machines, messages in and instructions out. No I/O, no clock."""
