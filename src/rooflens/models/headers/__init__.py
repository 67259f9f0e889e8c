"""Headers against descriptions: which stored tensors are which parts of a model, and how they are stored.

`slots` lists what a ModelSpec needs, the two ``*_match`` modules find it in a checkpoint, the two ``*_model``
modules give the spec the formats that were found and say what is odd.
"""
