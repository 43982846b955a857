"""Message engines: hardware as data, and the compiler of collectives to work packets."""
