"""A fast estimator, exact where decisions do not depend on time: one pass over the caches serves
many machines.
"""
