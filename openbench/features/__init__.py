"""The cache of features: one forward pass for each image, shared by all methods.

`store.FeatureStore` is the cache; `extract` makes a pass, `columns` names cached columns, `texts` embeds prompts,
`changed_images` corrupts and mixes images.
"""
