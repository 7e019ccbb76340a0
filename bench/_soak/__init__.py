"""What the soak run is made of: load, faults, a watch on the nodes, and the reckoning at the end.

topics    what is written where, and the sets of numbers that tell what became of it
load      producers and groups of consumers, a thread each
probe     a process that writes one record at a time and says how long that took
faults    what happens to the nodes, once a minute
watch     memory, files, threads and latency of the nodes every few seconds
check     what the topics hold at the end, against what was acknowledged
curves    the picture
"""
