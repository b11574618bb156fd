"""Training data of the demo model: readers of public texts, and generators that write the rest.

Every generator module exports ``generate(rng, count)``; ``build`` runs them all.  The shape of what they
yield is in ``documents``.
"""
