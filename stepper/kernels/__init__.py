"""A live kernel: what it executes, what comes back, and what becomes an output."""
