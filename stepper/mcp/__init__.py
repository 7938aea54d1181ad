"""The MCP face: tools, resources and prompts over the verb table, for agents that have no hooks. It holds no policy.

It asks the daemon through `hook/client`, as the command line does, and imports nothing else but `ground`, the table of
commands and the official SDK, which the extra `notebook-stepper[mcp]` brings.
"""
