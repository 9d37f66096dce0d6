"""One file per post-hoc method, named as the method is; modules that begin with `_` hold maths that several share.

A config names the class: configs/method/knn.yaml has `_target_: openbench.methods.knn.KNN`.
"""
