"""Post-hoc methods, in modules by family; modules that begin with `_` hold maths that several families share.

A config names the class: configs/method/knn.yaml has `_target_: openbench.methods.knn.KNN`.
"""
