"""The arithmetic: costs of operators, rooflines, the memory ledger, plans and sweeps.

Pure: knows nothing of files, terminals or HTTP. Every quantity that can be swept may be a number or a
numpy array; plain numbers stay exact Python integers.
"""
