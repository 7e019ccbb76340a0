"""Running nodes: one in this process, one as a process, or a small cluster on this machine.

process   one node with all its fronts, on this event loop
nodes     the node processes of a cluster on this machine: started, watched, stopped
local     a real broker for as long as a `with` block lasts
plugin    the same as fixtures for pytest
"""
