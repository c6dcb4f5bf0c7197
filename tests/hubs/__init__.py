"""Hub servers for tests, all on the loopback interface: a real one, and faults in front of it."""
