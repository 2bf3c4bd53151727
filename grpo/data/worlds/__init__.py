"""Toy worlds: questions, a cold start and what else a run needs, made from scratch.

world.py names them, and makes the one that a configuration names. people.py invents an encyclopedia, facts.py asks real
facts, sums.py draws sums, shop.py sells by calls; kinds.py holds what they share. model.py makes a tiny model for those
worlds that bring one.
"""
