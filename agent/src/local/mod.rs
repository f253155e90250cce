//! The local endpoint: HTTP on a unix socket, for the command line and for tools on the node.
