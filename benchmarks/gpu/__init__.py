"""Everything that is measured on a graphics card, packed into a kit for a machine without a network: docs/gpu.md.

`packing` makes the kit, `run` is its one command. Modules that run before the packages of the kit are installed
(`run`, `build`, `budget`, `results`, `machine`, `page`) import the standard library alone.
"""
