"""The MCP server: tools, resources and prompts for agents without hooks.

It has no policy: like the command line, it sends commands to the daemon through
`hook/client`. It imports only that, `common`, the table of commands and the official
SDK, which the extra `notebook-stepper[mcp]` installs.
"""
