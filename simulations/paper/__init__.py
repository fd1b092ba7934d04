"""The paper's tables and figures again: Tables 1, 2, 6 and 9, Figures 2 to 5 and 7 to
9, and its theory.
"""
