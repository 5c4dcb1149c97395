"""The HTTP side of servers and callers: limits, connections, TLS, UNIX sockets."""
