"""Pure policy: values in, values out. No files, sockets, clocks or asyncio; the standard library only."""
