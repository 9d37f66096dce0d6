"""One file per post-hoc method, named as the method is; modules that begin with `_` hold maths that several share.

A config names the class: `_target_: KNN` in configs/method/knn.yaml is `knn.KNN`.
"""
