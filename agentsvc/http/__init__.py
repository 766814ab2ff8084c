"""The HTTP faces: what is on the wire, and nothing that decides anything.

`wire` reads and writes JSON, `middleware` surrounds every request, `authentication` finds out whose
it is, `routes` says what a route is, `v0` and `v1` are the two generations and never import each
other, `ops` is for whoever operates the server.
"""
